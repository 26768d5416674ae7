"""What a hostile node, a hostile server and a bad night may do to a federation."""

from __future__ import annotations

import errno
import json
import shutil
import stat
import struct
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from federations.nodes import deployed
from federations.places import (
    EVERY,
    LOGISTIC,
    PRIVATE,
    Here,
    asking,
    digits,
    everybody,
    folder,
    rows_of,
    said_by,
    site_files,
)
from fedloom.algorithm import FedAvg
from fedloom.checks.tiny_federation import experiment
from fedloom.cli.results import summarise
from fedloom.config import resolve
from fedloom.errors import (
    CheckpointError,
    ClientError,
    CompositionError,
    ConfigError,
    DataError,
    WireError,
)
from fedloom.evaluation.metrics import Perplexity
from fedloom.experiment.provenance import environment
from fedloom.report import as_text, comparison, group_runs, load_run
from fedloom.report.clients import attendance
from fedloom.storage.run_directory import RunDirectory
from fedloom_flower import message_exchange as exchange_module
from fedloom_flower.agreement import read_agreement
from fedloom_flower.engine import read_score
from fedloom_flower.folder import write_secret
from fedloom_flower.local_socket import join_blocks
from fedloom_flower.message import ANSWER, Measured, Refusal, Site, Update, decode, encode
from fedloom_flower.message_exchange import MessageExchange, Reply, UnreadableError
from fedloom_flower.node import Node
from fedloom_flower.node_files import NodeStates
from fedloom_flower.server import experiment_at_server
from fedloom_flower.sites import run_of, settings_of

private = lambda path, *changes, **settings: digits(path, *PRIVATE, EVERY, *changes, **settings)


# ------------------------------ the exchange
class Transport:
    """Three clients. hostile: what pulling client 2's answer gives, by its message's name."""

    def __init__(self, hostile):
        self.hostile, self.sent, self.taken, self.pushed = hostile, {}, set(), []

    def present(self):
        return {i: i for i in range(3)}

    def push(self, messages, seconds):
        names = {f"{i}-{len(self.pushed)}-{i}": i for i in messages}
        self.pushed += messages
        self.sent |= names
        return names

    def pull(self, names):
        """As Flower: all that is there is taken, then read one after another."""
        gone = [name for name in names if name in self.taken]
        there = sorted({*names} - {*gone})
        self.taken |= {*there}
        out = [Reply(name, b"", "error: unknown message") for name in gone]
        for name in there:
            i = self.sent[name]
            out.append(self.hostile(name) if i == 2 else Reply(name, b"answer of %d" % i))
        return out


def raising(error):
    def pull(name):
        raise error

    return pull


def endless(name):
    time.sleep(30)


@pytest.mark.parametrize(
    ("hostile", "come"),
    [
        (raising(UnreadableError("KeyError")), 2),
        (endless, 2),
        (lambda name: Reply("0-0-0", b"I am 0"), 3),
        (lambda name: Reply("x", b"?"), 3),
    ],
    ids=["unreadable", "announced only", "another's", "nobody's"],
)
def test_one_clients_answer_keeps_no_others_away(hostile, come, monkeypatch):
    monkeypatch.setattr(exchange_module, "_STUCK", 0.1)
    monkeypatch.setattr(exchange_module, "_POLL", 0.02)
    carry = MessageExchange(Transport(hostile))
    for _ in range(2):
        answers = carry(dict.fromkeys(range(3), b"m"), 15.0, come)
        assert len(answers) == come
        assert {i: answers[i] for i in (0, 1)} == {0: b"answer of 0", 1: b"answer of 1"}


def test_an_exchange_ends_at_its_deadline_or_when_its_link_is_gone():
    began = time.monotonic()
    assert MessageExchange(Transport(endless))({2: b"m"}, 0.1, 1) == {}
    assert time.monotonic() - began < 10
    with pytest.raises(ConnectionError):
        MessageExchange(Transport(raising(ConnectionError("gone"))))({2: b"m"}, 5.0, 1)


def test_a_node_that_only_fails_is_asked_a_few_times(monkeypatch, caplog):
    monkeypatch.setattr(exchange_module, "_POLL", 0.01)
    post = Transport(lambda name: Reply(name, b"", "error 0: no"))
    assert len(MessageExchange(post)({2: b"m"}, 0.5, 1)) == 0
    assert post.pushed == [2, 2] and len(caplog.records) == 2


# ------------------------------ hostile bytes
def update(**about):
    told = {"run": "r", "what": "round", "round": 0, "client": 1, "loss": 0.0, "squares": None}
    counts = dict.fromkeys(("lost", "gradients", "passes", "values", "value_passes"), 0)
    return Update.model_construct(kind="update", **{**told, **counts, "lost": False, **about})


def framed(head):
    raw = json.dumps(head).encode()
    return b"FEDLOOM2" + struct.pack("<I", len(raw)) + raw


def test_a_number_in_place_of_bytes_makes_no_memory_of_its_size():
    assert join_blocks([10**12]) == join_blocks([b"a", 3]) == join_blocks([None]) == b""
    assert join_blocks([b"a", b"b"]) == b"ab"


def test_what_others_write_is_one_line_that_no_terminal_obeys():
    ugly = "a\nround 7: all is well\x1b[2J\x9b\u2028"
    fine = json.loads(update().model_dump_json())
    for raw in (
        encode(update(run=ugly), {}),
        encode(update(), {ugly: b""}),
        framed(fine | {ugly: 1}),
        framed(fine | {"kind": ugly}),
    ):
        with pytest.raises(WireError) as error:
            decode(ANSWER, raw)
        assert str(error.value).isprintable()
    about = {"run": "r", "what": "round", "round": 0, "client": 1, "lost": False}
    told = Refusal.model_construct(kind="refusal", why=ugly, **about)
    assert decode(ANSWER, encode(told, {}))[0].why == "a round 7: all is well [2J"


def test_a_refusal_does_not_fill_the_log():
    """A header has room for a thousand names, which an error would repeat in every round."""
    many = encode(update(client=0), {f"{n:060d}": b"" for n in range(500)})
    make = lambda: experiment(algorithm=FedAvg(), rounds=1)
    _, engine = deployed(make, lambda messages, *_: dict.fromkeys(messages, many))
    assert max(len(refused.why) for refused in engine.refused) <= 500


# ------------------------------ hostile numbers
@pytest.mark.parametrize(("name", "what"), [("fedadam", "round"), ("fedlin", "question")])
def test_finite_numbers_that_overflow_cost_their_sender_its_place_and_no_more(name, what, tmp_path):
    """Client 2 makes its numbers as large as they can be, in one kind of its answers."""

    def forged(i, raw):
        head, parts = decode(ANSWER, raw)
        if i != 2 or head.what != what or isinstance(head, Refusal):
            return raw
        largest = torch.full((1,), 3e38).numpy().tobytes()
        numbers = {k: largest * (len(v) // 4) if len(v) > 8 else v for k, v in parts.items()}
        return encode(head, numbers)

    fed = digits(tmp_path, f"algorithm={name}", "weighting=uniform")
    result = Here(fed, awry=forged).serve()
    assert len(result.history) == 2
    assert all(torch.isfinite(v).all() for v in result.model.state_dict().values())
    for row in rows_of(fed):
        told = row["questioned"] if what == "question" else row["answered"]
        assert 2 not in told and {0, 1} <= {*told} and ("2" in row["refused"] or what == "question")


def test_a_measurement_that_no_metric_can_be_is_left_out():
    class Root(Perplexity):
        @staticmethod
        def final(mean):
            return mean**0.5 / abs(mean - 1)

    who = {"run": "r", "what": "evaluate", "round": 3, "client": 0, "examples": 2, "loss": 1.0}
    head = Measured(**who, values={"root": 2.0}, weights={"root": 2.0})
    with pytest.raises(WireError, match="it measured what no metric can be"):
        read_score(head, 2, {"root": Root()})


def test_a_sites_word_about_itself_has_bounds(tmp_path):
    """The server computes with the numbers that sites say: steps, classes, sums."""
    fed = folder(tmp_path, resolve("digits", [*LOGISTIC, "rounds=1"]), standardise=True)
    here = Here(fed, site_files(tmp_path))
    join = asking("join", -1, 1, run_of(fed, settings_of(fed)))
    site, parts = decode(ANSWER, here.places[1].answer(encode(join, {})))
    assert isinstance(site, Site)
    for about, sums, said in (
        ({"examples": 1 << 53}, parts["sums"], "less than or equal to 1000000000"),
        ({"classes": 1 << 53}, parts["sums"], "less than or equal to 16777216"),
        ({}, parts["sums"][:16], "are no two rows of 3 numbers"),
        ({}, struct.pack("<6d", *[float("nan")] * 6), "are not finite"),
    ):
        wrong = encode(site.model_copy(update=about), {"sums": sums})
        here.awry = lambda i, raw, wrong=wrong: wrong if i == 1 else raw
        with pytest.raises(DataError, match=f"client 1 cannot join.*{said}"):
            here.serve()


# ------------------------------ hostile server
def test_a_site_tells_what_its_own_settings_say_and_a_failure_does_not_make_it_deaf(
    tmp_path, monkeypatch
):
    fed = digits(tmp_path)
    place, agreed = Here(fed).places[0], fed.node(0).agreement_file.read_bytes()
    for what, said in (
        ("evaluate", "this site measures no models"),
        ("join", "this site joins nothing"),
        ("agree", "this site joins nothing"),
    ):
        head = said_by(place, asking(what))
        assert isinstance(head, Refusal) and said in head.why
    assert fed.node(0).agreement_file.read_bytes() == agreed

    def fails(node, raw):
        raise MemoryError("/data/visits.csv")

    monkeypatch.setattr(Node, "answer", fails)
    why = said_by(place, asking("round", 0)).why
    assert why == "the node failed: MemoryError; its own log says why"


# ------------------------------ privacy
@pytest.mark.usefixtures("accounts_at_hand")
def test_a_private_runs_cohorts_are_drawn_from_a_secret_of_its_own(tmp_path):
    changes = "data.clients=8", "cohort=0.5"
    all_of = lambda fed: everybody(lambda *_: {}, read_agreement(fed.agreement_file))
    begun = lambda fed: experiment_at_server(fed, all_of(fed))
    cohorts = lambda made: [made.build().cohorts.of(t) for t in range(8)]
    drawn, feds = [], [private(tmp_path / str(k), *changes) for k in range(2)]
    for fed in (feds[0], feds[0], feds[1]):  # the first one twice: two runs, one after the other
        drawn.append(cohorts(begun(fed)))
    drawn.append(cohorts(resolve(fed.run_file, []).experiment()))  # of the seed
    assert len({str(each) for each in drawn}) == 4
    fed.run.mkdir()
    (fed.run / "config.toml").touch()  # the run goes on
    assert cohorts(begun(fed)) == drawn[2]
    for early in ("4611686018427387903", "zz" * 32, ""):  # the first one as secrets were before
        write_secret(fed.secret("cohorts"), early.encode())
        with pytest.raises(ConfigError, match=r"damaged, or of an earlier version .* delete it: "):
            begun(fed)
    with pytest.raises(CompositionError, match=r"min_updates = 2 would let one client"):
        begun(private(tmp_path / "2", *changes, min_updates=2))


@pytest.mark.usefixtures("accounts_at_hand")
def test_a_private_runs_rows_and_report_do_not_tell_who_took_part(tmp_path):
    fed = private(tmp_path, "evaluate.target=0.01")
    result = Here(fed).serve()
    for row in result.history:
        told = {name for name in row if not name.startswith("test_")}
        assert told == {"round", "lr", "train_loss", "epsilon"}
    ledger = json.loads((fed.run / "ledger.json").read_text())
    counted = ("down", "up", "client_rounds", "answers", "steps", "gradients", "seconds")
    assert not any(ledger[name] for name in counted)
    timed = {k: v for k, v in result.summary.items() if "seconds" in k}
    assert {*timed} == {"seconds", "seconds_per_round", "seconds_to_target"}
    assert not any(timed.values())
    name = f"test_{result.summary['metric']['name']}"  # of noise that no seed repeats
    first = next((row["round"] for row in result.history if row[name] >= 0.01), None)
    assert result.summary["rounds_to_target"] == first
    assert attendance(fed.run) is None and load_run(fed.run).finished
    shown = summarise(result) + result._repr_html_()
    (row,) = comparison(group_runs([load_run(fed.run)]))  # what reads a run needs no times
    assert row["seconds"] is row["seconds_per_round"] is row["seconds_to_target"] is None
    assert " ms" not in shown and "time" not in as_text([row]) + shown.replace("runtime", "")
    assert len(Here(fed).serve().history) == 2  # it is read again
    who = fed.attendance(private=True)
    assert stat.S_IMODE(who.stat().st_mode) == 0o600 and len(who.read_text().splitlines()) == 2


@pytest.mark.usefixtures("accounts_at_hand")
def test_a_private_round_that_cannot_be_saved_ends_the_run_and_none_is_paid_twice(
    tmp_path, monkeypatch
):
    fed, save, rounds = private(tmp_path, "rounds=4"), RunDirectory.save, []

    def full(self, state, *more):
        rounds.append(state.round)
        if state.round == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(self, state, *more)

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "save", full)
        with pytest.raises(CheckpointError, match="No space left"):
            Here(fed).serve()
    assert rounds == [1, 2, 3] and len(Here(fed).serve().history) == 4
    newest = max((fed.run / "checkpoints").iterdir())
    (newest / "state.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"has done 4 rounds, and its newest whole .* has 3"):
        Here(fed).serve()


def test_a_runs_folder_has_no_token(monkeypatch):
    words = ["--token", "a1b2", "--root-certificates", "ca", "--api-key=c3"]
    monkeypatch.setattr(sys, "argv", ["flwr-serverapp", *words])
    hidden = "flwr-serverapp --token ... --root-certificates ca --api-key=..."
    assert environment()["command"] == hidden


def test_a_runs_folder_names_the_command_for_which_flower_began_its_process(monkeypatch):
    server = pytest.importorskip("fedloom_flower.flower_app.server", reason="needs Flower")
    told = []
    monkeypatch.setattr(sys, "argv", ["flwr-serverapp", "--token", "a1b2"])
    monkeypatch.setattr(server, "serve", lambda *_: told.append(environment()["command"]))
    server._main(None, SimpleNamespace(run_config={"folder": "."}))
    assert told == ["fedloom deploy run"]


# ------------------------------ nodes whose files fail
def round_2(does):
    """Before the second round something is done to the folder of client 0's states."""

    def before(here, ask):
        if (ask.what, ask.round) == ("round", 1):
            does(here, here.fed.node(0).path / "states")

    return before


def test_states_that_are_removed_under_a_running_node_are_made_anew(tmp_path):
    here = Here(
        digits(tmp_path, "rounds=3"), before=round_2(lambda _, states: shutil.rmtree(states))
    )
    assert [row["answered"] for row in here.serve().history] == [3, 3, 3]
    states = here.fed.node(0).path / "states"
    assert stat.S_IMODE(states.stat().st_mode) == 0o700 and list(states.glob("*.safetensors"))


def test_a_node_whose_disk_fails_names_no_path_and_is_no_missing_answer(tmp_path, caplog):
    def blocks(here, states):
        shutil.rmtree(states)
        states.write_text("no folder")
        here.off.add(1)

    least = {"min_updates": 2, "max_failed_rounds": 1, "redraws": 0}
    fed = digits(tmp_path, "rounds=3", "algorithm=scaffold", **least)
    with pytest.raises(ClientError) as ended:
        Here(fed, before=round_2(blocks)).serve()
    assert "round 2: 1 of 3 updates came, fewer than min_updates = 2" in str(ended.value)
    assert "(no answer in time: 1; refused by the node: 1)" in str(ended.value)
    why = next(message for message in caplog.messages if "client 0: not counted" in message)
    assert "the node's files cannot be used: File exists" in why and "/" not in why


def test_a_damaged_state_is_named_without_the_folder_of_the_node(tmp_path):
    def damages(here, states):
        for file in states.glob("*.safetensors"):
            file.write_bytes(b"damaged")

    fed = digits(tmp_path, "rounds=3", "algorithm=scaffold")
    here = Here(fed, before=round_2(damages))
    here.serve()
    row = rows_of(fed)[1]
    assert row["declined"] == [0] and str(tmp_path) not in row["refused"]["0"]
    assert "'states/0000" in row["refused"]["0"]
    with pytest.raises(CheckpointError, match=str(fed.node(0).path)):  # here it is named in full
        NodeStates(fed.node(0).path / "states").at(0, 0)
