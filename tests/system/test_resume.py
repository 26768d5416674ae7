"""Whatever stops a run, what it goes on from gives the bits of the run that nothing stopped.

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

import pytest
import torch
from crash_script import agree, experiment

from cases import CASES
from fedloom import Checkpoint, Evaluation, FedAvg
from fedloom.core import interrupts
from fedloom.engines import Serial
from fedloom.engines.client_results import Request, TrainTask
from fedloom.errors import CheckpointError, ConfigError
from fedloom.report import comparison, group_runs, load_run
from fedloom.server.rounds import Run
from fedloom.storage import world
from fedloom.storage.client_state import ClientMemory
from fedloom.storage.run_directory import RunDirectory
from tiny import small, trace

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
HANGUP = lambda *_: signal.raise_signal(signal.SIGHUP)
EVENTS = {
    "a callback fails": Event(LookupError, 5, kept="00000004"),
    "it fails before the first checkpoint": Event(LookupError, 1),
    "another bound of its memory": Event(
        LookupError, 5, kept="00000004", settings={"resident_bytes": 1}
    ),
    "Ctrl-C before the memory is kept": Event(  # where it hurts most: after the server's step
        KeyboardInterrupt, patch=interrupted(ClientMemory, "put", 7, before=True), kept="00000007"
    ),
    "Ctrl-C as a row is written": Event(
        KeyboardInterrupt,
        patch=interrupted(RunDirectory, "append_round", 5),
        kept="00000005",
        settings=RARELY,
    ),
    "Ctrl-C in the row that another left to be finished": Event(
        KeyboardInterrupt, patch=COMMIT, kept="00000005", settings=RARELY
    ),
    "a callback fails when it is interrupted": Event(
        OSError, 5, patch=COMMIT, kept="00000005", settings=RARELY
    ),
    "a callback ends the program when it is interrupted": Event(
        SystemExit, 5, patch=COMMIT, kept="00000005", settings=RARELY
    ),
    "signals while it saves and closes": Event(
        KeyboardInterrupt, 5, HANGUP, signals_while_it_saves_and_closes, "00000005", RARELY
    ),
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
    callbacks = [full, in_round(8, fails(LookupError))]
    with pytest.raises(error, match=said):
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
    with pytest.raises(OSError), open(ballast, "wb", buffering=0) as f:
        while f.write(b"x" * 4096):
            pass
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
    own = lambda of: {s[0] for s in json.loads((of / "memory.json").read_text())["segments"]}
    if name.startswith("a segment"):
        (segment,) = own(new) - own(old)
        damage(run / "memory" / segment)
    else:
        damage(new / name)
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
    lines = (run / "rounds.jsonl").read_text().splitlines(keepends=True)
    row = json.loads(lines[5])
    lines[5] = json.dumps(row | {"train_loss": row["train_loss"] + 0.125}) + "\n"
    (run / "rounds.jsonl").write_text("".join(lines))
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


def test_batch_norms_buffers_are_averaged_by_weight():
    statistics = CASES["running statistics"].make
    *_, after = trace(statistics(rounds=1, cohort=[[1, 2, 5]]), 1)
    loop = statistics(rounds=1).build()
    loop.engine.open(loop.plan, loop.fed, loop.net)
    loop.begin()
    start = loop.net.init_buffers()
    total, size = torch.zeros_like(start), 0
    for i in (1, 2, 5):
        msg = loop.plan.algorithm.broadcast(loop.state.srv)
        ((_, _, part),) = loop.engine.map(Request.TRAIN, TrainTask(msg, start, {}, [i], 0)).nodes
        total += part.buffers
        size += loop.fed.weight(i)
    torch.testing.assert_close(after.state.buffers, total / size)
    ledger = after.state.ledger
    assert ledger.down["buffers"] == 3 * start.nbytes == ledger.up["buffers"]
