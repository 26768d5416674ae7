"""What a hostile node, a hostile server and a bad night may do to a federation."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import stat
import struct
import sys
import time
from pathlib import Path
from types import MappingProxyType

import pytest
import torch

from federations.live import alive, until
from federations.places import PRIVATE, SMALL, Here, folder, site_file, table
from fedloom.algorithms.registry import make_algorithm
from fedloom.checks.tiny_federation import experiment, run
from fedloom.cli.results import summarise
from fedloom.config import resolve
from fedloom.errors import CheckpointError, CompositionError, ConfigError, DataError, WireError
from fedloom.experiment.provenance import environment
from fedloom.report import as_text, comparison, group_runs, load_run
from fedloom.report.clients import attendance
from fedloom.report.recorded import targets
from fedloom.storage.run_directory import RunDirectory
from fedloom_flower import children as children_module
from fedloom_flower import message_exchange as exchange_module
from fedloom_flower.children import Children, FlowerError, Program
from fedloom_flower.cli.deploy import _exclusive
from fedloom_flower.engine import FederationEngine
from fedloom_flower.folder import Folder, write_secret
from fedloom_flower.local_socket import join_blocks
from fedloom_flower.message import ANSWER, Ask, Measured, Refusal, Site, Update, decode, encode
from fedloom_flower.message_exchange import MessageExchange, Reply, UnreadableError
from fedloom_flower.new import make_folders
from fedloom_flower.programs import GAVE_UP
from fedloom_flower.server import experiment_at_server, serve
from fedloom_flower.sites import run_of, settings_of

ZEROS = {"lost": False, "loss": 0.0, "gradients": 0, "passes": 0, "values": 0, "value_passes": 0}


def update(**about):
    given = {"run": "r", "what": "round", "round": 0, "client": 1, **ZEROS, "squares": None}
    return Update.model_construct(kind="update", **{**given, **about})


def asking(what, round=-1, client=0, run="r"):
    return Ask(run=run, what=what, round=round, client=client, taken=-1, kept=0)


# ---------------------------------------------------------------------------------- the exchange
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
        there = [name for name in names if name not in self.taken]
        gone = [name for name in names if name in self.taken]
        self.taken |= set(there)
        out = [Reply(name, b"", "error: unknown message") for name in gone]
        for name in sorted(there):
            i = self.sent[name]
            out.append(self.hostile(name) if i == 2 else Reply(name, b"answer of %d" % i))
        return out


def unreadable(name):
    raise UnreadableError("KeyError")


def endless(name):
    time.sleep(30)


@pytest.mark.parametrize(
    ("hostile", "come"),
    [
        (unreadable, 2),
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
        found = carry(dict.fromkeys(range(3), b"m"), 15.0, come)
        assert len(found) == come
        assert {i: found[i] for i in (0, 1)} == {0: b"answer of 0", 1: b"answer of 1"}


def test_an_exchange_ends_at_its_deadline():
    began = time.monotonic()
    assert MessageExchange(Transport(endless))({2: b"m"}, 0.1, 1) == {}
    assert time.monotonic() - began < 10


def test_a_node_that_only_fails_is_asked_a_few_times(monkeypatch, caplog):
    monkeypatch.setattr(exchange_module, "_POLL", 0.01)
    post = Transport(lambda name: Reply(name, b"", "error 0: no"))
    assert len(MessageExchange(post)({2: b"m"}, 0.5, 1)) == 0
    assert post.pushed == [2, 2] and len(caplog.records) == 2


def test_a_link_that_is_gone_ends_the_run():
    def gone(name):
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        MessageExchange(Transport(gone))({2: b"m"}, 5.0, 1)


# ----------------------------------------------------------------------------------- hostile bytes
def test_a_number_in_place_of_bytes_makes_no_memory_of_its_size():
    assert join_blocks([10**12]) == join_blocks([b"a", 3]) == join_blocks([None]) == b""
    assert join_blocks([b"a", b"b"]) == b"ab"


def test_what_others_write_is_one_line_that_no_terminal_obeys():
    ugly = "a\nround 7: all is well\x1b[2J\x9b\u2028"
    fine = json.loads(update().model_dump_json())
    for raw in (
        encode(update(run=ugly), {}),
        encode(update(), {ugly: b""}),
        b"FEDLOOM2" + _framed(fine | {ugly: 1}),
        b"FEDLOOM2" + _framed(fine | {"kind": ugly}),
    ):
        with pytest.raises(WireError) as found:
            decode(ANSWER, raw)
        assert str(found.value).isprintable()
    told = Refusal.model_construct(
        kind="refusal", run="r", what="round", round=0, client=1, lost=False, why=ugly
    )
    assert decode(ANSWER, encode(told, {}))[0].why == "a round 7: all is well [2J"


def _framed(head):
    raw = json.dumps(head).encode()
    return struct.pack("<I", len(raw)) + raw


def test_a_refusal_does_not_fill_the_log():
    """A header has room for a thousand names, which an error would repeat in every round."""
    many = encode(update(client=0), {f"{n:060d}": b"" for n in range(500)})
    given = experiment(algorithm=make_algorithm("fedavg"), rounds=1)
    engine = FederationEngine(lambda messages, *_: dict.fromkeys(messages, many), run="r")
    given.engine = engine
    run(given)
    assert max(len(refused.why) for refused in engine.refused) <= 500


# --------------------------------------------------------------------------------- hostile numbers
class Forged(Here):
    """Client 2 makes its numbers as large as they can be, in one kind of its answers."""

    def __init__(self, fed, what):
        super().__init__(fed)
        self.what = what

    def __call__(self, messages, seconds, enough):
        found = super().__call__(messages, seconds, enough)
        for i, raw in found.items():
            head, parts = decode(ANSWER, raw)
            if i == 2 and head.what == self.what and not isinstance(head, Refusal):
                largest = torch.full((1,), 3e38).numpy().tobytes()
                parts = {k: largest * (len(v) // 4) if len(v) > 8 else v for k, v in parts.items()}
                found[i] = encode(head, parts)
        return found


@pytest.mark.parametrize(("name", "what"), [("fedadam", "round"), ("fedlin", "question")])
def test_finite_numbers_that_overflow_cost_their_sender_its_place_and_no_more(name, what, tmp_path):
    config = resolve("digits", [*SMALL, f"algorithm={name}", "weighting=uniform"])
    fed = folder(tmp_path, config, [int(n) for n in config.data().sizes], classes=10)
    result = serve(fed, lambda roll: Forged(fed, what))
    rows = [json.loads(line) for line in (fed.run / "clients.jsonl").read_text().splitlines()]
    assert len(result.history) == 2 and all(torch.isfinite(v).all() for v in _vectors(result))
    for row in rows:
        told = row["questioned"] if what == "question" else row["answered"]
        assert 2 not in told and {0, 1} <= {*told} and ("2" in row["refused"] or what == "question")


def _vectors(result):
    return list(result.model.state_dict().values())


def test_a_measurement_that_no_metric_can_be_is_left_out():
    from fedloom.evaluation.metrics import Perplexity
    from fedloom_flower.scores import read_score

    class Root(Perplexity):
        @staticmethod
        def final(mean):
            return mean**0.5 / abs(mean - 1)

    about = asking("evaluate", 3)
    head = Measured(
        **about.model_dump(include={"run", "what", "round", "client"}),
        examples=2,
        loss=1.0,
        values={"root": 2.0},
        weights={"root": 2.0},
    )
    with pytest.raises(WireError, match="it measured what no metric can be"):
        read_score(head, 2, {"root": Root()})


def test_a_sites_word_about_itself_has_bounds(tmp_path):
    """The server computes with the numbers that sites say: steps, classes, sums."""
    base = ["model=logistic", "model.inputs=3", "model.classes=3", "rounds=1", "cohort=3"]
    files = [
        site_file(tmp_path / f"{i}.toml", table(tmp_path / f"{i}.csv", 9, seed=i)) for i in range(3)
    ]
    fed = folder(tmp_path, resolve("digits", base), standardise=True)
    here, run = Here(fed, files), run_of(fed, settings_of(fed))
    site, parts = decode(ANSWER, here.places[1].answer(encode(asking("join", -1, 1, run), {})))
    assert isinstance(site, Site)
    nan = struct.pack("<6d", *[float("nan")] * 6)
    for about, sums, said in (
        ({"examples": 1 << 53}, parts["sums"], "less than or equal to 1000000000"),
        ({"classes": 1 << 53}, parts["sums"], "less than or equal to 16777216"),
        ({}, parts["sums"][:16], "are no two rows of 3 numbers"),
        ({}, nan, "are not finite"),
    ):
        wrong = encode(site.model_copy(update=about), {"sums": sums})
        lies = lambda messages, *_, wrong=wrong: {
            i: wrong if i == 1 else here.places[i].answer(raw) for i, raw in messages.items()
        }
        lies.present = here.present
        with pytest.raises(DataError, match=f"client 1 cannot join.*{said}"):
            serve(fed, lambda roll, lies=lies: lies)


# ---------------------------------------------------------------------------------- hostile server
def test_a_site_tells_what_its_own_settings_say_and_a_failure_does_not_make_it_deaf(
    tmp_path, monkeypatch
):
    config = resolve("digits", SMALL)
    fed = folder(tmp_path, config, [int(n) for n in config.data().sizes], classes=10)
    place = Here(fed).places[0]
    for what, said in (
        ("evaluate", "this site measures no models"),
        ("join", "this site joins nothing"),
        ("agree", "this site joins nothing"),
    ):
        head = decode(ANSWER, place.answer(encode(asking(what), {})))[0]
        assert isinstance(head, Refusal) and said in head.why
    assert not fed.node(0).agreement_file.exists()

    def fails(raw):
        raise MemoryError("/data/visits.csv")

    monkeypatch.setattr(place._node, "answer", fails)
    head = decode(ANSWER, place.answer(encode(asking("round", 0), {})))[0]
    assert head.why == "the node failed: MemoryError; its own log says why"


# ----------------------------------------------------------------------------------------- privacy
def private(tmp_path, *changes, **settings):
    config = resolve("digits", [*SMALL, *PRIVATE, "checkpoint.every_rounds=1", *changes])
    sizes = [int(n) for n in config.data().sizes]
    return folder(tmp_path, config, sizes, classes=10, **settings)


@pytest.mark.usefixtures("accounts_at_hand")
def test_a_private_runs_cohorts_are_drawn_from_a_secret_of_its_own(tmp_path):
    changes = "data.clients=8", "cohort=0.5"
    drawn = []
    for k in (0, 0, 1):  # the first one twice, as two runs one after the other
        if not (tmp_path / str(k)).exists():
            fed = private(tmp_path / str(k), *changes)
        made = experiment_at_server(fed, lambda *_: {}, None)
        drawn.append([made._cohorts.of(t) for t in range(8)])
        assert made.build().cohorts is made._cohorts
    public = resolve(fed.run_file, []).experiment()._cohorts
    drawn.append([public.of(t) for t in range(8)])
    assert len({str(cohorts) for cohorts in drawn}) == 4
    fed.run.mkdir()
    (fed.run / "config.toml").touch()  # the run goes on
    again = experiment_at_server(fed, lambda *_: {}, None)._cohorts
    assert [again.of(t) for t in range(8)] == drawn[2]
    for early in ("4611686018427387903", "zz" * 32, ""):  # the first one as secrets were before
        write_secret(fed.secret("cohorts"), early.encode())
        with pytest.raises(ConfigError, match=r"damaged, or of an earlier version .* delete it: "):
            experiment_at_server(fed, lambda *_: {}, None)
    with pytest.raises(CompositionError, match=r"min_updates = 2 would let one client"):
        experiment_at_server(private(tmp_path / "2", *changes, min_updates=2), lambda *_: {}, None)


@pytest.mark.usefixtures("accounts_at_hand")
def test_a_private_runs_rows_and_report_do_not_tell_who_took_part(tmp_path):
    fed = private(tmp_path, "evaluate.target=0.01")
    result = serve(fed, lambda roll: Here(fed))
    for row in result.history:
        assert set(row) == {"round", "lr", "train_loss", "epsilon"} | {
            k for k in row if k.startswith("test_")
        }
    ledger = json.loads((fed.run / "ledger.json").read_text())
    counted = ("down", "up", "client_rounds", "answers", "steps", "gradients", "seconds")
    assert not any(ledger[name] for name in counted)
    timed = {k: v for k, v in result.summary.items() if "seconds" in k}
    assert set(timed) == {"seconds", "seconds_per_round", "seconds_to_target"}
    assert not any(timed.values()) and result.summary["rounds_to_target"] == 1
    assert attendance(fed.run) is None and load_run(fed.run).finished
    shown = summarise(result) + result._repr_html_()
    (row,) = comparison(group_runs([load_run(fed.run)]))  # what reads a run needs no times
    assert row["seconds"] is row["seconds_per_round"] is row["seconds_to_target"] is None
    assert targets(load_run(fed.run), [0.01])["targets"][0]["seconds"] is None
    assert " ms" not in shown and "time" not in as_text([row]) + shown.replace("runtime", "")
    assert len(serve(fed, lambda roll: Here(fed)).history) == 2  # it is read again
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

    monkeypatch.setattr(RunDirectory, "save", full)
    with pytest.raises(CheckpointError, match="No space left"):
        serve(fed, lambda roll: Here(fed))
    monkeypatch.setattr(RunDirectory, "save", save)
    assert rounds == [1, 2, 3]
    assert len(serve(fed, lambda roll: Here(fed)).history) == 4
    newest = max((fed.run / "checkpoints").iterdir())
    (newest / "state.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"has done 4 rounds, and its newest whole .* has 3"):
        serve(fed, lambda roll: Here(fed))


# ---------------------------------------------------------------------------------- files, programs
def test_nobody_else_reads_what_a_federation_writes(tmp_path):
    before = os.umask(0)
    try:
        fed = Folder(tmp_path / "fed")
        make_folders(fed, *map(fed.node_to_be, range(2)))
        write_secret(fed.secret("cohorts"), b"7")
        write_secret(fed.secret("cohorts"), b"8")  # anew
        folder(tmp_path / "other", resolve("digits", SMALL), [9] * 3)
    finally:
        os.umask(before)
    for path, mode in (
        (fed.path, 0o700),
        (fed.path / "nodes" / "1", 0o700),
        (fed.secret("cohorts"), 0o600),
        (fed.secret("cohorts").parent, 0o700),
    ):
        assert stat.S_IMODE(path.stat().st_mode) == mode
    assert fed.secret("cohorts").read_bytes() == b"8"
    assert [p.name for p in fed.secret("cohorts").parent.iterdir()] == ["cohorts"]


def test_a_node_runs_once_in_a_folder(tmp_path):
    with _exclusive(Folder(tmp_path, 3)):
        said = r"client 3 is being run in .* already"
        with pytest.raises(ConfigError, match=said), _exclusive(Folder(tmp_path, 3)):
            pass
    with _exclusive(Folder(tmp_path, 3)):
        pass


def ended(said, log, gave_up=MappingProxyType({})):
    """What is said when a program of Python ends, and how many seconds it took."""
    began, words = time.monotonic(), [sys.executable, "-c", said]
    with pytest.raises(FlowerError) as error, Children() as children:
        children.start(Program(words, log, os.environ, gave_up))
        while time.monotonic() < began + 20:
            children.check()
            time.sleep(0.01)
    return str(error.value), time.monotonic() - began


def test_a_program_that_ends_or_gives_up_ends_them_all(tmp_path, monkeypatch):
    log, name = tmp_path / "log", re.escape(Path(sys.executable).name)
    said, _ = ended("print('\\x1b[91mERROR\\x1b[0m: no key'); print('bye')", log)
    assert re.fullmatch(rf"{name} ended \(ERROR: no key\); its words are in '{log}'", said)
    stays = "import time; print('x' * 200_000); print('Giving up', flush=True); time.sleep(60)"
    said, seconds = ended(stays, log, {"Giving up": ""})
    assert re.fullmatch(f"{name} ended; its words are in .*", said) and seconds < 15
    assert log.read_text().endswith("bye\n" + "x" * 200_000 + "\nGiving up\n")
    with pytest.raises(FlowerError, match="nothing cannot be started: No such file"):
        Children().start(Program([str(tmp_path / "nothing")], log, os.environ))
    monkeypatch.setattr(children_module, "_LARGEST", 10)
    assert "ended" in ended("print('new')", log)[0]
    assert log.read_text() == "new\n" and "bye" in (tmp_path / "log.1").read_text()


@pytest.mark.parametrize(
    "line",
    [  # of Flower 1.41, recorded at a node whose site was taken out while it ran
        "\x1b[92mINFO \x1b[0m:      Run transitioned to a non-`RUNNING` status while receiving a "
        "message. Ignoring the message.",
        "httpx.HTTPStatusError: Client error '403 Forbidden' for url "
        "'https://127.0.0.1:45757/v1/fleet/send-node-heartbeat'",
    ],
)
def test_the_node_of_a_removed_site_says_why_it_ends(line, tmp_path):
    """Flower's own node goes on for ever, and says nothing of the reason."""
    stays = f"import time; print({line!r}, flush=True); time.sleep(60)"
    said, seconds = ended(stays, tmp_path / "log", GAVE_UP)
    assert "it was taken out of the federation" in said and "ask who runs the server" in said
    assert "\n" not in said and seconds < 15


def test_a_node_goes_on_when_a_run_stops_under_a_message(tmp_path):
    ends = "print('INFO : Run ID 7 is not in `RUNNING` status. Ignoring message 3.')"
    said, _ = ended(ends, tmp_path / "log", GAVE_UP)
    assert "taken out" not in said


def test_what_does_not_end_is_ended_with_what_it_started(tmp_path, monkeypatch):
    monkeypatch.setattr(children_module, "_GRACE", 0.2)
    stays = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    # one of them writes: two at a time may write over each other
    told = "child = os.fork(); child and print(os.getpid(), child, flush=True); time.sleep(60)"
    forks = f"{stays}; {told}"
    with Children() as children:
        children.start(Program([sys.executable, "-c", forks], tmp_path / "log", os.environ))
        while len(found := (tmp_path / "log").read_text().split()) < 2:
            children.check()
    until(lambda: not any(alive(int(pid)) for pid in found), "both have ended", 10)


def test_a_process_that_waited_hears_signals_as_before(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    with Children() as children, pytest.raises(FlowerError, match="ended"):
        children.start(Program([sys.executable, "-c", ""], tmp_path / "log", os.environ))
        children.wait()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_runs_folder_has_no_token(monkeypatch):
    words = ["--token", "a1b2", "--root-certificates", "ca", "--api-key=c3"]
    told = []
    for program in ("fedloom", "flwr-serverapp"):
        monkeypatch.setattr(sys, "argv", [program, *words])
        told.append(environment()["command"])
    hidden = "fedloom --token ... --root-certificates ca --api-key=..."
    assert told == [hidden, "fedloom deploy run"]
