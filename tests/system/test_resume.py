"""Whatever stops a run, what it goes on from gives the bits of the run that nothing stopped; a run
that stops early is finished, and the best model is kept beside the last.

The table: what happens, and what is there then. That every kind of run goes on with its bits is in
contract/test_engines_agree.py, crashes of the machine are in test_crash_points.py, and processes
that are killed in test_kills.py.
"""

import errno
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from crash_script import agree, experiment
from torch import nn

from fedloom import Checkpoint, Evaluation, Experiment, FedAvg, Local, StopRun
from fedloom.core import interrupts
from fedloom.data import from_clients
from fedloom.engines import Serial
from fedloom.errors import CheckpointError, ConfigError
from fedloom.evaluation.stopping import EarlyStop
from fedloom.report import comparison, group_runs, load_run
from fedloom.server.rounds import Run
from fedloom.storage import world
from fedloom.storage.client_state import ClientMemory
from fedloom.storage.run_directory import RunDirectory
from support.folders import fill, parameters, record, rows
from tiny import small, timeless, weights

RARELY = {"checkpoint": Checkpoint(every_seconds=None)}  # at the end, or at a stop


def fails(error):
    def fail(*_):
        raise error

    return fail


def in_round(number, then):
    return lambda row: then() if row["round"] == number else None


def interrupted(owner, name, number, before=False):
    """A patch: Ctrl-C comes in the call of this number."""

    def change(patch):
        real, calls = getattr(owner, name), []

        def called(self, *given):
            calls.append(1)
            result = None if before else real(self, *given)
            if len(calls) == number:
                signal.raise_signal(signal.SIGINT)
            return real(self, *given) if before else result

        patch.setattr(owner, name, called)

    return change


def signals_while_it_saves_and_closes(patch):
    """A scheduler sends several, to every process of a group."""
    save, close = RunDirectory.save, Serial.close

    def insist():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.raise_signal(number)

    patch.setattr(interrupts, "_TOGETHER", 60.0)  # a busy machine is slow
    patch.setattr(RunDirectory, "save", lambda self, *a: (insist(), save(self, *a)))
    patch.setattr(Serial, "close", lambda self: (insist(), close(self)))


class Full:
    def __init__(self, patch, rounds):
        self.now, self.rounds, replace = False, rounds, os.replace

        def written(a, b):
            if self.now:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            replace(a, b)

        patch.setattr(world, "replace", written)

    def __call__(self, row):
        self.now = row["round"] in self.rounds


class Event(NamedTuple):
    """error: how the run ends; at: the round in whose callback `what` happens; patch: what is
    changed meanwhile; kept: the checkpoint that must be there then; settings: of this run, but not
    of the one that goes on.
    """

    error: type[BaseException]
    at: int = 0
    what: Callable[..., Any] | None = None
    patch: Callable[[Any], None] = lambda patch: None
    kept: str = ""
    settings: dict[str, Any] = {}


COMMIT = interrupted(Run, "_commit", 5)
APPEND = interrupted(RunDirectory, "append_round", 5)
PUT = interrupted(ClientMemory, "put", 7, before=True)
SEVERAL, BOUND = signals_while_it_saves_and_closes, {"resident_bytes": 1}
HANGUP = lambda *_: signal.raise_signal(signal.SIGHUP)
STOP, FIFTH = KeyboardInterrupt, "00000005"
EVENTS = {
    "a callback fails": Event(LookupError, 5, kept="00000004"),
    "it fails before the first checkpoint": Event(LookupError, 1),
    "another bound of its memory": Event(LookupError, 5, kept="00000004", settings=BOUND),
    # where it hurts most: after the server's step
    "Ctrl-C before the memory is kept": Event(STOP, patch=PUT, kept="00000007"),
    "Ctrl-C as a row is written": Event(STOP, patch=APPEND, kept=FIFTH, settings=RARELY),
    "Ctrl-C in the row that another left to be finished": Event(
        STOP, patch=COMMIT, kept=FIFTH, settings=RARELY
    ),
    "a callback fails when it is interrupted": Event(
        OSError, 5, patch=COMMIT, kept=FIFTH, settings=RARELY
    ),
    "a callback ends the program when it is interrupted": Event(
        SystemExit, 5, patch=COMMIT, kept=FIFTH, settings=RARELY
    ),
    "signals while it saves and closes": Event(STOP, 5, HANGUP, SEVERAL, FIFTH, RARELY),
}


@pytest.mark.parametrize("name", EVENTS)
def test_a_run_goes_on_after(name, whole, tmp_path, monkeypatch):
    event = EVENTS[name]
    callback = in_round(event.at, event.what or fails(event.error))
    with monkeypatch.context() as patch, pytest.raises(event.error):
        event.patch(patch)
        experiment(rounds=10, on_round=[callback], **event.settings).run(tmp_path / "run")
    kept = {p.parent.name for p in (tmp_path / "run" / "checkpoints").glob("*/manifest.json")}
    assert not event.kept or event.kept in kept
    goes_on(tmp_path / "run", whole)


def goes_on(run, whole):
    agree(experiment(rounds=10).resume(run), whole)
    assert not list(run.rglob("*.part"))


@pytest.mark.parametrize(
    ("rounds", "error", "said"),
    [
        (range(5, 10), LookupError, None),
        (range(1, 11), CheckpointError, r"after round \d+ .*; no other is there yet: "),
    ],
    ids=["from the fifth round on", "at the first checkpoint"],
)
def test_a_run_goes_on_after_a_full_disk(rounds, error, said, whole, tmp_path, monkeypatch):
    full = Full(monkeypatch, rounds)
    with pytest.raises(error, match=said):
        callbacks = [full, in_round(8, fails(LookupError))]
        experiment(rounds=10, resident_bytes=None, on_round=callbacks).run(tmp_path / "run")
    full.now = False
    goes_on(tmp_path / "run", whole)


def test_a_run_that_has_ended_stays_as_it_is(whole, tmp_path):
    goes_on(Path(shutil.copytree(whole.path, tmp_path / "run")), whole)


def test_a_full_disk_at_a_checkpoint_is_a_warning_and_at_the_end_an_error(
    whole, tmp_path, monkeypatch, caplog
):
    full, free = Full(monkeypatch, range(3, 7)), {"rounds": 10, "resident_bytes": None}
    agree(experiment(on_round=[full], **free).run(tmp_path / "run"), whole)
    assert "could not be written" in caplog.text and "No space left" in caplog.text
    full.rounds = range(9, 11)
    with pytest.raises(CheckpointError, match="No space left") as caught:
        experiment(on_round=[full], **free).run(tmp_path / "late")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("bound", [None, 2000])
def test_a_disk_that_is_really_full(bound, whole, tiny_disk, tmp_path):
    run, ballast = tiny_disk / "run", tiny_disk / "ballast"
    with pytest.raises(LookupError):
        stop = in_round(5, fails(LookupError))
        experiment(rounds=10, resident_bytes=bound, on_round=[stop]).run(run)
    fill(ballast)
    with pytest.raises(CheckpointError, match="space"):
        experiment(rounds=10, resident_bytes=bound).resume(run)
    ballast.unlink()
    shutil.copytree(run, tmp_path / "moved")
    goes_on(tmp_path / "moved", whole)


def test_ctrl_c_while_a_memory_is_read_is_not_taken_for_a_broken_file(tmp_path, monkeypatch):
    """torch makes a ValueError of an interrupt that comes while it takes a tensor over."""
    from fedloom.storage import client_state as memory

    opened, calls = memory.safe_open, []

    def interrupted(*arguments, **options):
        calls.append(1)
        try:
            if len(calls) == 3:
                signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ValueError("could not determine the shape of object type") from None
        return opened(*arguments, **options)

    monkeypatch.setattr(memory, "safe_open", interrupted)
    with pytest.raises(KeyboardInterrupt):
        experiment(kind="everything").run(tmp_path / "run")


# ------------------------------------------------------------------ what is damaged, or was changed
def truncate(path):
    os.truncate(path, path.stat().st_size // 2)


def flip(path):
    raw = bytearray(path.read_bytes())
    raw[-5] ^= 255
    path.write_bytes(raw)


FILES = ["state.safetensors", "memory.json", "manifest.json", "a segment of memory"]


@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_checkpoint_is_passed_over(name, damage, whole, run, caplog):
    old, new = sorted((run / "checkpoints").iterdir())
    segments = lambda of: {s[0] for s in record(of, "memory")["segments"]}
    (segment,) = segments(new) - segments(old)
    damage(run / "memory" / segment if name.startswith("a segment") else new / name)
    agree(experiment(rounds=10).resume(run), whole)
    if (name, damage) != ("manifest.json", Path.unlink):  # without one it never was a checkpoint
        assert f"{new.name} is damaged" in caplog.text


def test_an_older_checkpoint_that_is_damaged_is_let_go(whole, run, caplog):
    old = min((run / "checkpoints").iterdir())
    truncate(old / "memory.json")
    saving = Checkpoint(every_rounds=2, every_seconds=None, keep=4)
    agree(experiment(rounds=10, checkpoint=saving).resume(run), whole)
    assert not old.exists() and f"{old.name} is damaged" in caplog.text


def test_nothing_whole_is_one_clear_error(run):
    for folder in (run / "checkpoints").iterdir():
        flip(folder / "state.safetensors")
    with pytest.raises(CheckpointError, match=r"no checkpoint of .* can be read") as caught:
        experiment(rounds=10).resume(run)
    assert "\n" not in str(caught.value)


def test_a_change_of_the_log_after_an_older_checkpoint_goes_on_from_that(run, whole, caplog):
    """Another digit in a line: it is still JSON, and of its round."""
    lines = rows(run)
    lines[5]["train_loss"] += 0.125
    (run / "rounds.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    agree(experiment(rounds=10).resume(run), whole)
    assert "00000006 is damaged and passed over: rounds.jsonl does not" in caplog.text
    assert load_run(run).rounds.tolist() == list(range(1, 11))


# ---------------------------------------------------------------------------------- another target
@pytest.mark.parametrize(("every", "then"), [(0, 5), (9, 5), (4, 4)])
def test_the_only_evaluation_may_reach_the_target(every, then, tmp_path):
    def run(rounds, target=0.01):
        evaluate = Evaluation(every=every, target=target)
        often = Checkpoint(every_rounds=2, every_seconds=None)
        return small(FedAvg(), rounds=rounds, evaluate=evaluate, checkpoint=often)

    first = run(3).run(tmp_path / "run")
    summary = first.summary
    assert summary["rounds_to_target"] == 3 and summary["rounds_to_target_text"] == "3"
    assert summary["bytes_to_target"] == first.ledger.traffic
    assert summary["seconds_to_target"] == first.ledger.seconds and summary["last_ema"] is None
    for target in (None, 0.01):
        (row,) = comparison(group_runs([load_run(tmp_path / "run")]), target)
        assert (row["rounds_to_target"], row["reached"]) == (3, 1)
    missed = run(3, 1.0).run()
    assert missed.last < 1 and missed.summary["rounds_to_target_text"] == "3+"
    longer = run(5).resume(tmp_path / "run")  # has not kept it
    assert longer.summary["rounds_to_target"] == run(5).run().summary["rounds_to_target"] == then


def test_a_memory_bound_needs_a_folder():
    with pytest.raises(ConfigError, match=r"this run has no folder: give run\(out=...\)"):
        experiment(rounds=6, resident_bytes=7).run()


# --------------------------------------------------------------------------- a run that stops early
def clinic(seed, n):
    draw = np.random.default_rng(seed)
    inputs = draw.normal(size=(n, 5)).astype("float32")
    return inputs, (inputs.sum(1) + 2 * draw.normal(size=n) > 0).astype("int64")


def clinics(rounds=60, stop=None, tests=True, keep="", **more):
    """It stops as `stop` says, and keeps the best model by a column."""
    test = {"test": clinic(9, 50)} if tests else {}
    data = from_clients([clinic(i, 20 + i) for i in range(3)], **test)
    parts = {"algorithm": FedAvg(), "model": lambda: nn.Linear(5, 2), "local": Local(lr=0.5)}
    parts |= {"evaluate": Evaluation(stop=stop)} if stop else {}
    parts |= {"checkpoint": Checkpoint(keep_best=keep)} if keep else {}
    return Experiment(rounds=rounds, data=data, **(parts | more))


def last_of(values, patience, higher=True):
    """The round after which a run ends: so many evaluations after the best one so far."""
    signed = [v if higher else -v for v in values]
    for t in range(len(signed)):
        if t - int(np.argmax(signed[: t + 1])) >= patience:
            return t + 1
    return len(signed)


@pytest.mark.parametrize(("metric", "higher"), [("test_accuracy", True), ("test_loss", False)])
def test_it_stops_after_so_many_evaluations_without_a_better_value(tmp_path, metric, higher):
    whole = clinics().run()
    stop = EarlyStop(metric=metric, patience=4)
    expected = last_of([row[metric] for row in whole.history], 4, higher)
    assert 4 < expected < 60, "the data are to make a run that stops in the middle"
    result = clinics(stop=stop).run(tmp_path / "a")
    assert timeless(result.history) == timeless(whole.history[:expected])
    assert result.summary["finished"] is True and result.summary["stopped"] == expected
    assert len(clinics(80, stop).resume(tmp_path / "a").history) == expected
    clinics(expected - 2, stop).run(tmp_path / "b")
    resumed = clinics(stop=stop).resume(tmp_path / "b")
    assert timeless(resumed.history) == timeless(result.history)
    longer = EarlyStop(metric=metric, patience=5)
    assert len(clinics(expected + 1, longer).resume(tmp_path / "b").history) > expected


def test_a_callback_may_end_a_run(tmp_path):
    def enough(row):
        if row["round"] >= 3:
            raise StopRun

    every = Evaluation(every=2)
    result = clinics(9, evaluate=every, on_round=enough).run(tmp_path / "a")
    assert [row["round"] for row in result.history] == [1, 2, 3, 4], "the last round is evaluated"
    assert "test_accuracy" in result.history[-1]
    assert result.summary["finished"] is True and result.summary["stopped"] == 4
    assert len(clinics(12, evaluate=every).resume(tmp_path / "a").history) == 4


def test_the_best_model_is_that_of_its_round_also_over_a_resume(tmp_path):
    whole = clinics(20, keep="test_loss").run(tmp_path / "a")
    losses = [row["test_loss"] for row in whole.history]
    best = int(np.argmin(losses)) + 1
    assert best < 20
    about = {"metric": "test_loss", "round": best, "value": min(losses)}
    at_best = clinics(best).run().model
    in_memory = clinics(20, keep="test_loss").run()
    for result in (whole, in_memory):
        assert result.summary["best_model"] == about
        assert weights(result.best_model) == weights(at_best)
    kept = parameters(tmp_path / "a", "best.safetensors")
    assert kept == {k: v.tolist() for k, v in at_best.state_dict().items()}
    for first in (best - 1, best + 2):
        clinics(first, keep="test_loss").run(tmp_path / str(first))
        again = clinics(20, keep="test_loss").resume(tmp_path / str(first))
        assert again.summary["best_model"] == about
        assert parameters(tmp_path / str(first), "best.safetensors") == kept


NONE = "has neither test nor validation rows"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"stop": EarlyStop(metric="accuracy")},
            "metric = 'accuracy': .* test_accuracy, test_loss",
        ),
        ({"keep": "validation_loss"}, "keep_best = 'validation_loss'"),
        ({"evaluate": Evaluation(every=0, stop=EarlyStop())}, "evaluate.every = 0"),
        ({"stop": EarlyStop(), "tests": False}, NONE),
        ({"keep": "test_loss", "tests": False}, NONE),
    ],
)
def test_what_is_not_measured_cannot_be_watched(options, said):
    with pytest.raises(ConfigError, match=said):
        clinics(**options).run()


def test_validation_rows_decide_where_there_are_some():
    evaluate = Evaluation(validation=0.3, stop=EarlyStop(patience=3))
    result = clinics(40, evaluate=evaluate).run()
    values = [row["validation_accuracy"] for row in result.history]
    assert result.summary["stopped"] == len(values) == last_of(values, 3) < 40


def test_the_command_line_stops_exports_the_best_and_a_sweep_takes_it_as_finished(fedloom):
    words = ["digits", "rounds=30", "data.partition.clients=5", "local.lr=1.5"]
    words += ["evaluate.stop.metric=test_loss", "evaluate.stop.patience=3"]
    output = fedloom("run", *words, "checkpoint.keep_best=test_accuracy", "--out", "a").output
    assert "evaluate.stop: test_loss has not been lower than" in output
    summary = record("a")
    assert summary["finished"] and summary["stopped"] == summary["rounds"] < 30
    assert "unfinished" not in fedloom("compare", "a").output
    fedloom("export", "a", "--best", "--out", "best")
    fedloom("export", "a", "--out", "last")
    best, last = (record(name, "about")["round"] for name in ("best", "last"))
    assert best == summary["best_model"]["round"] < last
    sweep = ["sweep", *words, "local.batch=10,20", "--out", "s"]
    assert "unfinished" not in fedloom(*sweep).output
    ended = {path: path.stat().st_mtime_ns for path in Path("s").glob("*/rounds.jsonl")}
    assert len(ended) == 2
    fedloom(*sweep)  # finished runs are skipped
    assert ended == {path: path.stat().st_mtime_ns for path in ended}
    said = fedloom("run", "digits", "evaluate.stop.metric=loss", "--out", "b", code=2).output
    assert "evaluate.stop.metric = 'loss': rows have no such column" in said
    said = fedloom("export", "a", "--best", "--client", "1", code=2).output
    assert "--best is of the server's model" in said
