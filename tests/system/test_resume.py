"""Whatever stops a run, what it goes on from gives the bits of the run that nothing stopped.

The table: what happens, and what is there then. That every kind of run goes on with its bits is in
contract/test_engines_agree.py, crashes of the machine are in test_crash_points.py, and processes
that are killed in test_kills.py.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from crash_script import agree, experiment

import fedloom.storage.atomic as atomic
from cases import CASES, method
from fedloom import Checkpoint, Evaluation
from fedloom.compression.codecs import TopK
from fedloom.compression.error_feedback import Residual
from fedloom.compression.link import FieldCodec
from fedloom.core import interrupts
from fedloom.engines import Serial
from fedloom.engines.client_results import Request, TrainTask
from fedloom.errors import CheckpointError, ConfigError
from fedloom.report import comparison, group_runs, load_run
from fedloom.server.rounds import Run
from fedloom.storage.client_state import ClientMemory
from fedloom.storage.run_directory import RunDirectory
from fedloom.submodels import FedRolex, HeteroFL
from tiny import small, trace

Patch = pytest.MonkeyPatch
RARELY = Checkpoint(every_seconds=None)  # at the end, or at a stop


class Begun:
    """A run of ten rounds to which something happens. more: settings of it, but not of the run
    that goes on.
    """

    def __init__(self, folder: Path, patch: Patch, **more: Any) -> None:
        self.folder, self.patch, self.more = folder, patch, more

    def go(self, error: type[BaseException], at: int = 0, what: Callable[[], Any] = int) -> None:
        """Run it; at: the round in whose callback `what` happens; it must end with this error."""
        called = lambda row: what() if row["round"] == at else None
        with self.patch.context() as patch, pytest.raises(error):
            self.patched(patch)
            experiment(rounds=10, on_round=[called], **self.more).run(self.folder)

    patched: Callable[[Patch], None] = staticmethod(lambda patch: None)


def fails(error: type[BaseException]) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def again(owner: type, name: str, at: int, then: Callable[[], Any]) -> Callable[[Patch], None]:
    """A patch: something happens in the call of this number."""
    real, calls = getattr(owner, name), []

    def called(self: Any, *given: Any) -> Any:
        calls.append(1)
        found = real(self, *given) if name != "put" else None
        if len(calls) == at:
            then()
        return found if name != "put" else real(self, *given)

    return lambda patch: patch.setattr(owner, name, called)


CTRL_C = lambda: signal.raise_signal(signal.SIGINT)


# ------------------------------------------------------- events: begun -> what must be there after
def a_callback_fails(begun: Begun) -> None:
    begun.go(LookupError, 5, fails(LookupError))


def it_fails_before_the_first_checkpoint(begun: Begun) -> None:
    begun.go(LookupError, 1, fails(LookupError))


def ctrl_c_before_the_memory_is_kept(begun: Begun) -> None:
    """Where it hurts most: after the server's step."""
    begun.patched = again(ClientMemory, "put", 7, CTRL_C)
    begun.go(KeyboardInterrupt)


def ctrl_c_as_a_row_is_written(begun: Begun) -> None:
    begun.more["checkpoint"] = RARELY
    begun.patched = again(RunDirectory, "append_round", 5, CTRL_C)
    begun.go(KeyboardInterrupt)


def ctrl_c_in_the_row_that_another_left_to_be_finished(begun: Begun) -> None:
    begun.more["checkpoint"] = RARELY
    begun.patched = again(Run, "_commit", 5, CTRL_C)
    begun.go(KeyboardInterrupt)


def a_callback_fails_when_it_is_interrupted(begun: Begun) -> None:
    begun.more["checkpoint"] = RARELY
    begun.patched = again(Run, "_commit", 5, CTRL_C)
    begun.go(OSError, 5, fails(OSError))


def a_callback_ends_the_program_when_it_is_interrupted(begun: Begun) -> None:
    begun.more["checkpoint"] = RARELY
    begun.patched = again(Run, "_commit", 5, CTRL_C)
    begun.go(SystemExit, 5, fails(SystemExit))


def signals_while_it_saves_and_closes(begun: Begun) -> None:
    """A scheduler sends several, to every process of a group."""
    save, close, came = RunDirectory.save, Serial.close, []

    def insist() -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.raise_signal(number)
        came.append(1)

    def patched(patch: Patch) -> None:
        patch.setattr(interrupts, "_TOGETHER", 60.0)  # a busy machine is slow
        patch.setattr(RunDirectory, "save", lambda self, *a: (insist(), save(self, *a)))
        patch.setattr(Serial, "close", lambda self: (insist(), close(self)))

    begun.more["checkpoint"] = RARELY
    begun.patched = patched
    begun.go(KeyboardInterrupt, 5, lambda: signal.raise_signal(signal.SIGHUP))
    assert len(came) == 2


class Full:
    """A disk that is full as long as somebody says so."""

    def __init__(self, patch: Patch) -> None:
        self.now, replace = False, os.replace

        def written(a: Any, b: Any) -> None:
            if self.now:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            replace(a, b)

        patch.setattr(atomic.os, "replace", written)

    def at(self, rounds: range) -> Callable[[dict[str, Any]], None]:
        return lambda row: setattr(self, "now", row["round"] in rounds)


def a_disk_is_full_from_the_fifth_round_on(begun: Begun) -> None:
    full = Full(begun.patch)
    stop = lambda row: fails(LookupError)() if row["round"] == 8 else None
    with pytest.raises(LookupError):
        callbacks = [full.at(range(5, 10)), stop]
        experiment(rounds=10, resident_bytes=None, on_round=callbacks).run(begun.folder)
    full.now = False


def a_disk_is_full_at_the_first_checkpoint(begun: Begun) -> None:
    """There is no other that a run could go on from."""
    full = Full(begun.patch)
    with pytest.raises(CheckpointError, match=r"after round \d+ .*; no other is there yet: "):
        settings = {"resident_bytes": None, "on_round": [full.at(range(1, 11))]}
        experiment(rounds=10, **settings).run(begun.folder)
    full.now = False


def it_has_ended(begun: Begun) -> None:
    experiment(rounds=10).run(begun.folder)


def another_bound_of_its_memory(begun: Begun) -> None:
    begun.more["resident_bytes"] = 1
    begun.go(LookupError, 5, fails(LookupError))


# {event: the checkpoint that must be there then, if one must}
EVENTS = {
    a_callback_fails: "00000004",
    it_fails_before_the_first_checkpoint: "",
    ctrl_c_before_the_memory_is_kept: "00000007",
    ctrl_c_as_a_row_is_written: "00000005",
    ctrl_c_in_the_row_that_another_left_to_be_finished: "00000005",
    a_callback_fails_when_it_is_interrupted: "00000005",
    a_callback_ends_the_program_when_it_is_interrupted: "00000005",
    signals_while_it_saves_and_closes: "00000005",
    a_disk_is_full_from_the_fifth_round_on: "",
    a_disk_is_full_at_the_first_checkpoint: "",
    it_has_ended: "00000010",
    another_bound_of_its_memory: "00000004",
}


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
def test_a_run_goes_on_after(event, whole, tmp_path, monkeypatch):
    event(Begun(tmp_path / "run", monkeypatch))
    kept = {p.parent.name for p in (tmp_path / "run" / "checkpoints").glob("*/manifest.json")}
    assert not EVENTS[event] or EVENTS[event] in kept
    agree(experiment(rounds=10).resume(tmp_path / "run"), whole)
    assert not list((tmp_path / "run").rglob("*.part"))


def test_a_full_disk_at_a_checkpoint_is_a_warning_and_at_the_end_an_error(
    whole, tmp_path, monkeypatch, caplog
):
    full, free = Full(monkeypatch), {"rounds": 10, "resident_bytes": None}
    agree(experiment(on_round=[full.at(range(3, 7))], **free).run(tmp_path / "run"), whole)
    assert "could not be written" in caplog.text and "No space left" in caplog.text
    with pytest.raises(CheckpointError, match="No space left") as caught:
        experiment(on_round=[full.at(range(9, 11))], **free).run(tmp_path / "late")
    assert "\n" not in str(caught.value)


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
def newest(run: Path) -> Path:
    return max((run / "checkpoints").iterdir())


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
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


@pytest.mark.parametrize("bound", [None, 2000])
def test_a_disk_that_is_really_full(bound, whole, tiny_disk, tmp_path):
    stop = lambda row: fails(LookupError)() if row["round"] == 5 else None
    run = tiny_disk / "run"
    with pytest.raises(LookupError):
        experiment(rounds=10, resident_bytes=bound, on_round=[stop]).run(run)
    ballast = tiny_disk / "ballast"
    with pytest.raises(OSError), open(ballast, "wb", buffering=0) as f:
        while f.write(b"x" * 4096):
            pass
    with pytest.raises(CheckpointError, match="space"):
        experiment(rounds=10, resident_bytes=bound).resume(run)
    ballast.unlink()
    shutil.copytree(run, tmp_path / "moved")
    agree(experiment(rounds=10).resume(tmp_path / "moved"), whole)


# -------------------------------------------------------------------- another run, another target
def tiny(case, rounds, engine="serial", **changes):
    settings = {
        "evaluate": Evaluation(every=2, ema=0.9, target=0.5),
        "checkpoint": Checkpoint(every_rounds=2, every_seconds=None),
    } | changes
    return small(method(case), rounds=rounds, engine=engine, **settings)


@pytest.mark.parametrize(("every", "then"), [(0, 5), (9, 5), (4, 4)])
def test_the_only_evaluation_may_reach_the_target(every, then, tmp_path):
    made = lambda rounds, target=0.01: tiny(
        "fedavg", rounds, evaluate=Evaluation(every=every, target=target)
    )
    first = made(3).run(tmp_path / "run")
    summary = first.summary
    assert summary["rounds_to_target"] == 3 and summary["rounds_to_target_text"] == "3"
    assert summary["bytes_to_target"] == first.ledger.traffic
    assert summary["seconds_to_target"] == first.ledger.seconds and summary["last_ema"] is None
    for target in (None, 0.01):
        (row,) = comparison(group_runs([load_run(tmp_path / "run")]), target)
        assert (row["rounds_to_target"], row["reached"]) == (3, 1)
    missed = made(3, 1.0).run()
    assert missed.last < 1 and missed.summary["rounds_to_target_text"] == "3+"

    longer = made(5).resume(tmp_path / "run")  # has not kept it
    assert longer.summary["rounds_to_target"] == made(5).run().summary["rounds_to_target"] == then


def test_a_memory_bound_needs_a_folder():
    with pytest.raises(ConfigError, match=r"this run has no folder: give run\(out=...\)"):
        tiny("scaffold", 6, resident_bytes=7).run()


statistics = CASES["running statistics"].make


def test_batch_norms_buffers_are_averaged_by_weight():
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


HALF = FieldCodec(TopK(ratio=0.5), Residual())
SLICES = {"submodel": HeteroFL(), "capacities": [0.5, 1.0]}


@pytest.mark.parametrize(
    ("first", "then", "part"),
    [
        ({"compress": HALF}, {"compress": FieldCodec(TopK(ratio=0.4), Residual())}, "compress"),
        ({}, {"compress": HALF}, "compress"),
        (SLICES, SLICES | {"submodel": FedRolex()}, "submodel"),
        (SLICES, SLICES | {"capacities": [0.25, 1.0]}, "submodel"),
    ],
)
def test_another_view_or_codec_is_another_run(first, then, part, tmp_path):
    tiny("fedavg", 2, **first).run(tmp_path / "run")
    with pytest.raises(CheckpointError, match=f"another configuration: {part} differ"):
        tiny("fedavg", 3, **then).resume(tmp_path / "run")
    assert len(tiny("fedavg", 3, **first).resume(tmp_path / "run").history) == 3
