"""Sites that come and go while a run goes on: the numbers of a simulation with the same clients."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
import ssl

import pytest
import torch

from federations.places import Here, folder, site_file, table
from fedloom.config import resolve
from fedloom.core.vector import fields
from fedloom.data.client_indices import Ragged
from fedloom.data.federated import Roll
from fedloom.errors import CompositionError, ConfigError, DataError
from fedloom.federation.availability import Availability
from fedloom.report.clients import attendance
from fedloom_flower import certificates, changes
from fedloom_flower.certificates import make_node_key, renew, validity
from fedloom_flower.check import other_disclosures
from fedloom_flower.clients import read_clients
from fedloom_flower.folder import Folder
from fedloom_flower.message import ASK, decode
from fedloom_flower.new import make
from fedloom_flower.server import serve
from fedloom_flower.sites import ClientSite

pytest.importorskip("cryptography", reason="the extra flower is not installed")
from cryptography import x509

ROUNDS = 7
BASE = ["model=logistic", "model.inputs=3", "model.classes=3", f"rounds={ROUNDS}", "cohort=1.0"]
BASE += ["local.epochs=1", "local.batch=8", "local.lr=0.01"]
STATEFUL = ["compress=topk:0.3", "compress.feedback=residual"]


class Changing(Here):
    """All places in this process. then: what happens once during a round (from 1)."""

    def __init__(self, fed, files, then):
        super().__init__(fed, files[:3])
        self.fed, self.files, self.then = fed, files, dict(then)

    def __call__(self, messages, seconds, enough):
        head = decode(ASK, next(iter(messages.values())))[0]
        if head.what == "round" and (does := self.then.pop(head.round + 1, None)):
            does(self)
        return super().__call__(messages, seconds, enough)

    def present(self):
        return dict.fromkeys(super().present(), 0)

    def add(self, name="ulm", there=True):
        i = changes.add(self.fed, name)
        if there:
            self.come(i)

    def come(self, i):
        self.places[i] = ClientSite(self.fed.node(i), self.files[i])


@pytest.fixture
def sites(tmp_path):
    """A function that makes a federation of three sites, and the files of five."""

    def made(*more, **settings):
        config = resolve("digits", [*BASE, *more])
        fed = folder(tmp_path, config, evaluate="nodes", **settings)
        files = []
        for i, rows in enumerate((20, 35, 50, 40, 30)):
            train, test = table(tmp_path / f"{i}.csv", rows, seed=i), tmp_path / f"{i}t.csv"
            table(test, 12, seed=9 + i)
            files.append(site_file(tmp_path / f"{i}.toml", train, test))
        return fed, files

    return made


def simulated(fed, here, spans, tmp_path):
    """The simulation in which clients are available: client, first and last round, from 1."""
    trace = tmp_path / "trace.csv"
    lines = [f"{i},{first},{last}" for i, first, last in spans]
    trace.write_text("\n".join(["client,first_round,last_round", *lines]) + "\n")
    found = {i: place._node.fed.data for i, place in here.places.items()}
    counts = torch.tensor([len(found[i].inputs) for i in sorted(found)])
    starts = [0, *counts.cumsum(0).tolist()]
    lists = [range(a, b) for a, b in itertools.pairwise(starts)]
    parts = ("inputs", "targets", "test_inputs", "test_targets")
    whole = {p: torch.cat([getattr(found[i], p) for i in sorted(found)]) for p in parts}
    data = dataclasses.replace(
        found[0], **whole, clients=Ragged.from_lists(lists), roll=None, client_names=()
    )
    made = resolve(fed.run_file, ["engine=serial"]).experiment(data)
    made.availability = Availability(trace=str(trace))
    made = dataclasses.replace(made)
    return made.run()


def rows_of(fed):
    return [json.loads(line) for line in (fed.run / "clients.jsonl").read_text().splitlines()]


def same(ours, alone):
    one, other = fields(ours.state), fields(alone.state)
    return all(torch.equal(v, other[k]) for k, v in one.items() if isinstance(v, torch.Tensor))


@pytest.mark.parametrize("more", [[], STATEFUL, ["cohort=0.6", "server=adam"]])
def test_added_and_removed_sites_equal_a_simulation(more, sites, tmp_path):
    fed, files = sites(*more)
    does = {2: Changing.add, 4: lambda here: changes.remove(fed, "1")}
    here = Changing(fed, files, does)
    ours = serve(fed, lambda clients: here)
    alone = simulated(fed, here, [(0, 1, 7), (1, 1, 4), (2, 1, 7), (3, 3, 7)], tmp_path)
    assert same(ours, alone)
    rows = rows_of(fed)
    assert [row.get("there") for row in rows] == [
        *[None] * 2,
        *[[0, 1, 2, 3]] * 2,
        *[[0, 2, 3]] * 3,
    ]
    assert len(ours.history) == ROUNDS == len(rows)
    assert not any(row["refused"] for row in rows)
    first, new = (fed.node(i).run_file.read_text() for i in (0, 3))
    assert first == new  # rules of columns too
    names = [entry.name for entry in read_clients(fed.clients_file).client]
    found = attendance(fed.run, names)
    assert "3 ulm" in {line[0] for line in found.lines}
    assert found.left == ["1: taken out after round 4"]


def test_a_site_that_is_away_hears_of_others_before_it_takes_part(sites, tmp_path):
    """Its node's weights of all clients would be old ones; and it goes on with its own state."""
    fed, files = sites(*STATEFUL)

    def leaves(here):
        here.add()
        here.off = {2}

    here = Changing(fed, files, {2: leaves, 5: lambda here: here.off.clear()})
    ours = serve(fed, lambda clients: here)
    # in round 2 it was asked and did not answer
    spans = [(0, 1, 7), (1, 1, 7), (2, 1, 1), (2, 6, 7), (3, 3, 7)]
    assert same(ours, simulated(fed, here, spans, tmp_path))
    assert [row.get("there") for row in rows_of(fed)][2:] == [
        *[[0, 1, 3]] * 3,
        *[[0, 1, 2, 3]] * 2,
    ]
    assert here.places[2]._node.fed.population == 4
    # a server that begins again tells all of it once more, for nobody knows who has heard
    again = Changing(fed, files, {})
    again.come(3)
    assert serve(fed, lambda clients: again).history == ours.history and again.requests == 4


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["algorithm=scaffold"], "Scaffold: the server's state is a mean over"),
        (["compress=topk:0.3", "compress.feedback=ef21"], "ef21: the server's state is a mean"),
        (
            ["aggregation=integer_ring", "aggregation.secure=true", "checkpoint.every_rounds=1"],
            "the keys of all others",
        ),
        (["cohort=[[0, 1], [1, 2]]"], "cohort names the clients"),
    ],
)
def test_a_run_that_is_made_for_its_clients_takes_no_more(more, said, sites):
    fed, files = sites("rounds=1", *more)
    if "secure" not in str(more):
        serve(fed, lambda clients: Changing(fed, files, {}))
    else:
        fed.agreement_file.write_text(AGREED)
    with pytest.raises(CompositionError, match=f"no site can be added to a run .*{said}"):
        changes.add(fed, "ulm")
    assert read_clients(fed.clients_file).population == 3 and not fed.node_to_be(3).path.exists()


AGREED = json.dumps(
    {
        "examples": [20, 35, 50],
        "tests": [12] * 3,
        "shape": [3],
        "type": "float32",
        "targets": "labels",
        "target_shape": [],
        "classes": 3,
    }
)


def test_a_removed_client_leaves_its_part_in_the_servers_state(sites, tmp_path):
    """As one that is never available again."""
    fed, files = sites("algorithm=scaffold")
    here = Changing(fed, files, {3: lambda here: changes.remove(fed, "south")})
    ours = serve(fed, lambda clients: here)
    alone = simulated(fed, here, [(0, 1, 7), (1, 1, 7), (2, 1, 3)], tmp_path)
    assert same(ours, alone)


def test_a_site_whose_data_do_not_fit_waits_and_the_run_goes_on(sites, tmp_path):
    fed, files = sites()
    table(tmp_path / "3.csv", 40, lambda y: y + 2, seed=3)  # of classes 2 to 4
    here = Changing(fed, files, {2: Changing.add})
    serve(fed, lambda clients: here)
    rows = rows_of(fed)
    said = "client 3 has 5 classes, and all agreed on 3"
    assert [row.get("waits") for row in rows] == [None, None, *[{"3": said}] * 5]
    assert rows[-1]["there"] == [0, 1, 2] and here.requests < 3 * (ROUNDS * 2 + 2) + 3  # asked once


def test_a_wrong_list_of_clients_changes_nothing(sites, caplog):
    fed, files = sites()
    here = Changing(fed, files, {2: lambda here: fed.clients_file.write_text("client = 3")})
    assert len(serve(fed, lambda clients: here).history) == ROUNDS
    assert "the clients stay as they were: file" in caplog.text


def test_what_an_operator_may_not_do_is_said(sites):
    fed, _ = sites(min_updates=2)
    for name, said in (
        ("", "1 to 100 char"),
        ("7", "not only digits"),
        ("north", "choose another"),
    ):
        with pytest.raises(ConfigError, match=said):
            changes.add(fed, name)
    with pytest.raises(ConfigError, match="no site 'ulm'; there are north, 1, south"):
        changes.remove(fed, "ulm")
    assert changes.remove(fed, "north") == 0
    with pytest.raises(ConfigError, match="without client 1 there are 1, and a round needs 2"):
        changes.remove(fed, "1")
    with pytest.raises(ConfigError, match="cannot be read"):
        changes.add(fed, "ulm", fed.path / "none.pub")
    (fed.path / "odd.pub").write_text("ssh-rsa AAAA me")
    with pytest.raises(ConfigError, match="is no public key"):
        changes.add(fed, "ulm", fed.path / "odd.pub")
    entry = read_clients(fed.clients_file).client[0]
    assert entry.removed and entry.name == "north" and "added" not in fed.clients_file.read_text()


def test_masked_sums_take_a_client_out_and_none_that_a_node_does_not_know(tmp_path):
    """The masks of a round are those of the clients that it asked; two hide nothing."""
    pytest.importorskip("Crypto", reason="the extra secure is not installed")
    secure = ["aggregation=integer_ring", "aggregation.secure=true", "checkpoint.every_rounds=1"]
    config = resolve(
        "digits", ["data.clients=4", "cohort=1.0", "rounds=3", "model.hidden=[4]", *secure]
    )
    fed = make(config, tmp_path / "fed", None, {})
    places = {i: ClientSite(fed.node(i)) for i in range(4)}

    def exchange(messages, *_):
        head = decode(ASK, next(iter(messages.values())))[0]
        if (head.what, head.round) == ("unmask", 0):
            changes.remove(fed, "2")
        if (head.what, head.round) == ("unmask", 1):
            raise AssertionError("a smaller sum than the sites know of")
        if head.round == 2:  # each site marks it in its own list
            for i in places:
                shutil.copy(fed.clients_file, fed.node(i).clients_file)
        return {i: places[i].answer(raw) for i, raw in messages.items()}

    exchange.present = lambda: dict.fromkeys(places, 0)
    assert len(serve(fed, lambda clients: exchange).history) == 3
    rows = rows_of(fed)
    assert [row["answered"] for row in rows] == [[0, 1, 2, 3], [], [0, 1, 3]]
    assert "is marked removed = true there" in rows[1]["refused"]["0"]
    with pytest.raises(ConfigError, match="without client 1 there are 2, and a round needs 3"):
        changes.remove(fed, "1")
    sizes = torch.tensor([len(place._data.inputs) for place in places.values()] + [400])
    with pytest.raises(DataError, match=r"has 5 clients, and clients\.toml here the keys of 4"):
        places[0]._make_node(Roll(sizes, 10), None)


def test_another_certificate_is_of_the_same_authority(tmp_path):
    fed = make(resolve("digits", ["data.clients=3"]), tmp_path / "fed", None, {})
    ca, file = fed.certificate("ca"), fed.certificate("server")
    before, authority = file.read_bytes(), ca.read_bytes()
    renew(fed)
    assert file.read_bytes() != before and ca.read_bytes() == authority
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(file, fed.secret("server"))
    new, by = (x509.load_pem_x509_certificate(path.read_bytes()) for path in (file, ca))
    new.verify_directly_issued_by(by)
    assert validity(fed) == "valid for 824 days"
    fed.secret("ca").unlink()
    with pytest.raises(ConfigError, match=r"authority's key .* cannot be read: .*; put it back"):
        renew(fed)


@pytest.mark.parametrize(("days", "said"), [(29, "valid for 29 days"), (-2, "has expired")])
def test_a_certificate_that_ends_soon_is_named_with_the_command(days, said, tmp_path, monkeypatch):
    monkeypatch.setattr(certificates, "days_left", lambda path: days)
    assert validity(Folder(tmp_path)) == f"{said}: fedloom deploy renew {tmp_path}"
    monkeypatch.setattr(certificates, "days_left", lambda path: 30)
    assert validity(Folder(tmp_path)) == "valid for 30 days"


def test_a_site_that_was_taken_out_is_not_asked_to_measure(sites):
    """Nobody would answer, and every evaluation would wait for its deadline."""
    fed, files = sites()
    asked = []

    class Listening(Changing):
        def __call__(self, messages, seconds, enough):
            heads = [decode(ASK, raw)[0] for raw in messages.values()]
            asked.extend((head.round, head.client) for head in heads if head.what == "evaluate")
            return super().__call__(messages, seconds, enough)

    here = Listening(fed, files, {2: lambda here: changes.remove(fed, "1")})
    ended = serve(fed, lambda clients: here)
    assert {round for round, client in asked if client == 1} == {1, 2}
    assert {client for round, client in asked if round > 2} == {0, 2}
    assert len(ended.history) == ROUNDS and ended.history[-1]["test_accuracy"] > 0


def test_a_key_that_was_made_beside_the_servers_is_said_until_the_site_has_its_own(tmp_path):
    fed = make(resolve("digits", ["data.clients=3"]), tmp_path / "fed", None, {})
    assert all(entry.key_made_here for entry in read_clients(fed.clients_file).client)
    assert ClientSite(fed.node(1)).key_made_here
    own = make_node_key(tmp_path / "own" / "node")
    (tmp_path / "node.pub").write_text(own)
    changes.change_key(fed, "1", tmp_path / "node.pub")
    said = dict(other_disclosures(fed.settings(), read_clients(fed.clients_file), False, 3))["keys"]
    assert said.startswith("of client 0, client 2: made where the federation was made")
    shutil.copy(fed.clients_file, fed.node(1).clients_file)
    assert not ClientSite(fed.node(1)).key_made_here
    changes.change_key(fed, "1")
    assert read_clients(fed.clients_file).client[1].key_made_here
