"""Sites that come and go while a run goes on: the numbers of a simulation with the same clients."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
import ssl

import pytest
import torch

from federations.places import LOGISTIC, SECURE, Here, folder, rows_of, site_files, table
from fedloom.config import resolve
from fedloom.data.client_indices import Ragged
from fedloom.errors import CompositionError, ConfigError, DataError
from fedloom.federation.availability import Availability
from fedloom.report.clients import attendance
from fedloom_flower import certificates, membership
from fedloom_flower.agreement import read_agreement
from fedloom_flower.certificates import make_node_key, renew, validity
from fedloom_flower.check import other_disclosures
from fedloom_flower.clients import read_clients
from fedloom_flower.folder import Folder
from fedloom_flower.new import make
from fedloom_flower.sites import ClientSite
from tiny import same

pytest.importorskip("cryptography", reason="the extra flower is not installed")
from cryptography import x509

ROUNDS = 7
BASE = [*LOGISTIC, f"rounds={ROUNDS}", "cohort=1.0", "local.lr=0.01"]
STATEFUL = ["compress=topk:0.3", "compress.feedback=residual"]
removes = lambda name: lambda here: membership.remove(here.fed, name)
there = lambda fed: [row.get("there") for row in rows_of(fed)]


@pytest.fixture
def places(tmp_path):
    """A function that makes a federation of three sites. then: what happens once in a round."""

    def made(*more, then=(), **settings):
        fed = folder(tmp_path, resolve("digits", [*BASE, *more]), evaluate="nodes", **settings)
        files, left = site_files(tmp_path, (20, 35, 50, 40), (12,) * 4), dict(then)

        def before(here, ask):
            if ask.what == "round" and (does := left.pop(ask.round + 1, None)):
                does(here)

        here = Here(fed, files[:3], before=before)
        here.files = files
        return here

    return made


def adds(here):
    i = membership.add(here.fed, "ulm")
    here.places[i] = ClientSite(here.fed.node(i), here.files[i])


def simulated(here, spans, tmp_path):
    """The simulation in which clients are available: client, first and last round, from 1."""
    lines = [f"{i},{first},{last}" for i, first, last in spans]
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join(["client,first_round,last_round", *lines]) + "\n")
    own = [here.data(i) for i in sorted(here.places)]
    starts = itertools.accumulate([len(data.inputs) for data in own], initial=0)
    lists = Ragged.from_lists([range(a, b) for a, b in itertools.pairwise(starts)])
    parts = ("inputs", "targets", "test_inputs", "test_targets")
    whole = {p: torch.cat([getattr(data, p) for data in own]) for p in parts}
    data = dataclasses.replace(own[0], **whole, clients=lists, roll=None, client_names=())
    made = resolve(here.fed.run_file, ["engine=serial"]).experiment(data)
    made.availability = Availability(trace=str(trace))
    return dataclasses.replace(made).run().state


@pytest.mark.parametrize(
    "more", [[], STATEFUL, ["cohort=0.6", "server=adam"]], ids=["plain", "states", "part of them"]
)
def test_added_and_removed_sites_equal_a_simulation(more, places, tmp_path):
    here = places(*more, then={2: adds, 4: removes("1")})
    ours, fed = here.serve(), here.fed
    spans = [(0, 1, 7), (1, 1, 4), (2, 1, 7), (3, 3, 7)]
    assert same(ours.state, simulated(here, spans, tmp_path))
    assert there(fed) == [None] * 2 + [[0, 1, 2, 3]] * 2 + [[0, 2, 3]] * 3
    assert len(ours.history) == ROUNDS and not any(row["refused"] for row in rows_of(fed))
    first, new = (fed.node(i).run_file.read_text() for i in (0, 3))
    assert first == new  # rules of columns too
    seen = attendance(fed.run, [entry.name for entry in read_clients(fed.clients_file).client])
    assert "3 ulm" in {line[0] for line in seen.lines}
    assert seen.left == ["1: taken out after round 4"]


def test_a_site_that_is_away_hears_of_others_before_it_takes_part(places, tmp_path):
    """Its node's weights of all clients would be old ones; and it goes on with its own state."""

    def leaves(here):
        adds(here)
        here.off = {2}

    here = places(*STATEFUL, then={2: leaves, 5: lambda here: here.off.clear()})
    ours = here.serve()
    # in round 2 it was asked and did not answer
    spans = [(0, 1, 7), (1, 1, 7), (2, 1, 1), (2, 6, 7), (3, 3, 7)]
    assert same(ours.state, simulated(here, spans, tmp_path))
    assert there(here.fed)[2:] == [[0, 1, 3]] * 3 + [[0, 1, 2, 3]] * 2
    assert here.data(2).population == 4
    # a server that begins again tells all of it once more, for nobody knows who has heard
    again = Here(here.fed, here.files)
    assert again.serve().history == ours.history and len(again.asked) == 4


def test_a_removed_client_leaves_its_part_in_the_servers_state(places, tmp_path):
    """As one that is never available again. Nobody waits for its measurements, either."""
    here = places("algorithm=scaffold", then={3: removes("south")})
    ours = here.serve()
    assert same(ours.state, simulated(here, [(0, 1, 7), (1, 1, 7), (2, 1, 3)], tmp_path))
    measured = {(t, i) for what, t, i in here.asked if what == "evaluate"}
    assert {t for t, i in measured if i == 2} == {1, 2, 3}
    assert {i for t, i in measured if t > 3} == {0, 1}
    assert len(ours.history) == ROUNDS and ours.history[-1]["test_accuracy"] > 0


def test_a_site_whose_data_do_not_fit_waits_and_the_run_goes_on(places, tmp_path):
    here = places(then={2: adds})
    table(tmp_path / "3.csv", 40, lambda y: y + 2, seed=3)  # of classes 2 to 4
    here.serve()
    said = "client 3 has 5 classes, and all agreed on 3"
    waits = [row.get("waits") for row in rows_of(here.fed)]
    assert waits == [None, None, *[{"3": said}] * 5] and there(here.fed)[-1] == [0, 1, 2]
    assert [what for what, _, i in here.asked if i == 3] == ["join"]  # asked once


def test_a_wrong_list_of_clients_changes_nothing(places, caplog):
    here = places(then={2: lambda here: here.fed.clients_file.write_text("client = 3")})
    assert len(here.serve().history) == ROUNDS
    assert "the clients stay as they were: file" in caplog.text


AGREED = {"examples": [20, 35, 50], "tests": [12] * 3, "shape": [3], "type": "float32"}
AGREED |= {"targets": "labels", "target_shape": [], "classes": 3}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["algorithm=scaffold"], "Scaffold: the server's state is a mean over"),
        (["compress=topk:0.3", "compress.feedback=ef21"], "ef21: the server's state is a mean"),
        (SECURE, "the keys of all others"),
        (["cohort=[[0, 1], [1, 2]]"], "cohort names the clients"),
    ],
)
def test_a_run_that_is_made_for_its_clients_takes_no_more(more, said, tmp_path):
    fed = folder(tmp_path, resolve("digits", [*BASE, *more]), evaluate="nodes")
    fed.agreement_file.write_text(json.dumps(AGREED))  # it has begun
    with pytest.raises(CompositionError, match=f"no site can be added to a run .*{said}"):
        membership.add(fed, "ulm")
    assert read_clients(fed.clients_file).population == 3 and not fed.node_to_be(3).path.exists()


def test_what_an_operator_may_not_do_is_said(places):
    fed = places(min_updates=2).fed
    (fed.path / "odd.pub").write_text("ssh-rsa AAAA me")
    for change, words, said in (
        (membership.add, ("",), "1 to 100 char"),
        (membership.add, ("7",), "not only digits"),
        (membership.add, ("north",), "choose another"),
        (membership.add, ("ulm", fed.path / "none.pub"), "cannot be read"),
        (membership.add, ("ulm", fed.path / "odd.pub"), "is no public key"),
        (membership.remove, ("ulm",), "no site 'ulm'; there are north, 1, south"),
    ):
        with pytest.raises(ConfigError, match=said):
            change(fed, *words)
    assert membership.remove(fed, "north") == 0
    with pytest.raises(ConfigError, match="without client 1 there are 1, and a round needs 2"):
        membership.remove(fed, "1")
    entry = read_clients(fed.clients_file).client[0]
    assert entry.removed and entry.name == "north" and "added" not in fed.clients_file.read_text()


def digits(tmp_path, *more):
    return make(resolve("digits", ["data.clients=3", *more]), tmp_path / "fed", None, {})


def test_masked_sums_take_a_client_out_and_none_that_a_node_does_not_know(tmp_path):
    """The masks of a round are those of the clients that it asked; two hide nothing."""
    pytest.importorskip("Crypto", reason="the extra secure is not installed")
    words = ["data.clients=4", "cohort=1.0", "rounds=3", "model.hidden=[4]", *SECURE]
    fed = digits(tmp_path, *words)

    def before(here, ask):
        if (ask.what, ask.round) == ("unmask", 0):
            membership.remove(fed, "2")
        # none of a smaller sum than the sites know of
        assert (ask.what, ask.round) != ("unmask", 1)
        for i in here.places if ask.round == 2 else ():  # each site marks it in its own list
            shutil.copy(fed.clients_file, fed.node(i).clients_file)

    here = Here(fed, (None,) * 4, before=before)
    assert len(here.serve().history) == 3
    rows = rows_of(fed)
    assert [row["answered"] for row in rows] == [[0, 1, 2, 3], [], [0, 1, 3]]
    assert "is marked removed = true there" in rows[1]["refused"]["0"]
    with pytest.raises(ConfigError, match="without client 1 there are 2, and a round needs 3"):
        membership.remove(fed, "1")
    agreement = read_agreement(fed.agreement_file)
    longer = {"examples": [*agreement.examples, 400], "tests": [*agreement.tests, 0]}
    more = agreement.model_copy(update=longer)
    fed.node(0).agreement_file.write_text(more.model_dump_json())
    with pytest.raises(DataError, match=r"has 5 clients, and clients\.toml here the keys of 4"):
        ClientSite(fed.node(0))


# ------------------------------ certificates and keys
def test_another_certificate_is_of_the_same_authority(tmp_path):
    fed = digits(tmp_path)
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


@pytest.mark.parametrize(
    ("days", "said"),
    [(30, "valid for 30 days"), (29, "valid for 29 days: {}"), (-2, "has expired: {}")],
)
def test_a_certificate_that_ends_soon_is_named_with_the_command(days, said, tmp_path, monkeypatch):
    monkeypatch.setattr(certificates, "days_left", lambda path: days)
    assert validity(Folder(tmp_path)) == said.format(f"fedloom deploy renew {tmp_path}")


def test_a_key_that_was_made_beside_the_servers_is_said_until_the_site_has_its_own(tmp_path):
    fed = digits(tmp_path)
    assert all(entry.key_made_here for entry in read_clients(fed.clients_file).client)
    assert ClientSite(fed.node(1)).key_made_here
    (tmp_path / "node.pub").write_text(make_node_key(tmp_path / "own" / "node"))
    membership.change_key(fed, "1", tmp_path / "node.pub")
    said = dict(other_disclosures(fed.settings(), read_clients(fed.clients_file), False, 3))["keys"]
    assert said.startswith("of client 0, client 2: made where the federation was made")
    shutil.copy(fed.clients_file, fed.node(1).clients_file)
    assert not ClientSite(fed.node(1)).key_made_here
    membership.change_key(fed, "1")
    assert read_clients(fed.clients_file).client[1].key_made_here
