"""Whatever stops a run, what it goes on from gives the bits of the run that nothing stopped."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import time
from pathlib import Path

import crash_script
import pytest
import torch
from crash_script import ROUNDS, agree, experiment

import fedloom.storage.atomic
from fedloom import Checkpoint
from fedloom.errors import CheckpointError, WorkerError
from tiny import environment, same, timeless, trace, weights

HERE = Path(__file__).parent


# Every process to be killed is forked from one that has imported torch and nothing else has run in.
FORKS = multiprocessing.get_context("forkserver")


@pytest.fixture(scope="module", autouse=True)
def _imported():
    with pytest.MonkeyPatch.context() as patch:
        paths = [str(HERE), str(HERE.parent), environment()["PYTHONPATH"]]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        FORKS.set_forkserver_preload(["crash_script"])
        yield


class Begun:
    """A process in which a run goes on. rounds: those that it has told of."""

    def __init__(self, folder, engine, kind):
        self.told, tell = FORKS.Pipe(duplex=False)
        self.errors, self.rounds = folder.with_suffix(".errors"), []
        self.process = FORKS.Process(
            target=crash_script.main, args=(tell, self.errors, folder, engine, kind)
        )
        self.process.start()
        tell.close()

    def wait(self, until):
        """Wait until this many rounds are done, or the process is."""
        with contextlib.suppress(EOFError):
            while not self.rounds or self.rounds[-1] < until:
                self.rounds.append(self.told.recv())

    def stop(self, number):
        """Send a signal -> exit status, what it wrote to stderr."""
        os.kill(self.process.pid, number)
        self.wait(math.inf)
        self.process.join(60)
        return self.process.exitcode, self.errors.read_text()


def begin(folder, engine="serial", until=1, kind="scaffold"):
    """Start a process; this many rounds are done when this returns."""
    begun = Begun(folder, engine, kind)
    begun.wait(until)
    return begun


def stop(begun, number, seconds):
    """Send a signal after a while -> exit status."""
    time.sleep(seconds)
    status, errors = begun.stop(number)
    assert "Error" not in errors, errors
    return status


# ---------------------------------------------------------------------------------------- kill -9
def test_kill_9_and_resume(undisturbed, tmp_path):
    process = begin(tmp_path / "run", until=18)
    assert stop(process, signal.SIGKILL, random.uniform(0, 0.03)) == -signal.SIGKILL
    agree(experiment().resume(tmp_path / "run"), undisturbed)
    leftovers = list((tmp_path / "run").rglob("*.part"))
    assert not leftovers


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "runs"), [("serial", 20), ("workers:2", 20)])
def test_kill_9_at_twenty_random_moments(engine, runs, undisturbed, tmp_path, engine_of):
    draw, killed = random.Random(7), 0
    for number in range(runs):
        folder = tmp_path / f"run{number}"
        for until in sorted(draw.sample(range(1, ROUNDS - 25), draw.choice([1, 1, 2]))):
            process = begin(folder, engine, until)  # some are killed again after they went on
            killed += stop(process, signal.SIGKILL, draw.uniform(0, 0.05)) == -signal.SIGKILL
        agree(experiment(engine_of(engine)).resume(folder), undisturbed)
    assert killed >= runs


@pytest.fixture(scope="module", params=["everything", "fafed"])
def with_all_of_it(request, tmp_path_factory):
    """A kind with every part that remembers something, and its undisturbed run."""
    folder = tmp_path_factory.mktemp(request.param) / "run"
    return request.param, experiment(kind=request.param).run(folder)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["serial", "workers:2"])
def test_kill_9_with_all_of_it_on(engine, with_all_of_it, tmp_path, engine_of):
    kind, whole = with_all_of_it
    draw = random.Random(f"{kind} {engine}")
    for number, moments in enumerate([(1,), (6, 7, 15)]):
        folder = tmp_path / f"run{number}"
        for until in moments:  # some are killed again after they went on
            process = begin(folder, engine, until, kind)
            assert stop(process, signal.SIGKILL, draw.uniform(0, 0.05)) == -signal.SIGKILL
        end = experiment(engine_of(engine), kind=kind).resume(folder)
        agree(end, whole)
        assert same(end.state, whole.state) and end.clients == whole.clients


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["alg", "obj", "link"])
def test_every_part_of_client_memory_matters(lost, with_all_of_it, tmp_path, monkeypatch):
    """Else the test above could not fail: a memory that is lost at the stop is another run."""
    from fedloom.core.vector import leaves, tree
    from fedloom.storage.client_state import ClientMemory

    kind, whole = with_all_of_it
    experiment(kind=kind, rounds=12).run(tmp_path / "run")
    read = ClientMemory._read

    def forgetful(self, name, clients):
        empty = lambda row: {lost: tree(torch.zeros_like, getattr(row, lost))}
        return {i: row._replace(**empty(row)) for i, row in read(self, name, clients).items()}

    monkeypatch.setattr(ClientMemory, "_read", forgetful)
    end = experiment(kind=kind).resume(tmp_path / "run")
    empty = not any(True for _ in leaves(getattr(_row(kind), lost)))
    assert same(end.state, whole.state) == empty


def _row(kind):
    """One client's memory."""
    (loop,) = trace(experiment(kind=kind), 0)
    return loop.engine._client.first_memory(loop.state.srv.x, 0)


# ----------------------------------------------------------------------------------------- Ctrl-C
@pytest.mark.slow
@pytest.mark.parametrize("engine", ["serial", "workers:2"])
def test_ctrl_c_saves_every_round_that_is_done(engine, undisturbed, tmp_path, engine_of):
    process = begin(tmp_path / "run", engine, 9)
    status, errors = process.stop(signal.SIGINT)
    assert status == 1 and "KeyboardInterrupt" in errors
    done = process.rounds[-1]
    saved = max(int(p.name) for p in (tmp_path / "run" / "checkpoints").iterdir())
    assert 0 < done < ROUNDS and saved == done
    lines = (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["round"] == done
    agree(experiment(engine_of(engine)).resume(tmp_path / "run"), undisturbed)


def test_signals_while_it_saves_and_closes_change_nothing(whole, tmp_path, monkeypatch):
    """A scheduler sends several, to every process of a group."""
    from fedloom.core import interrupts
    from fedloom.engines import Serial
    from fedloom.storage.run_directory import RunDirectory

    monkeypatch.setattr(interrupts, "_TOGETHER", 60.0)  # a busy machine is slow
    save, close, came = RunDirectory.save, Serial.close, []

    def insist(*arguments):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.raise_signal(number)
        came.append(1)

    def saved(self, *arguments):
        insist()
        save(self, *arguments)

    def closed(self):
        insist()
        close(self)

    monkeypatch.setattr(RunDirectory, "save", saved)
    monkeypatch.setattr(Serial, "close", closed)
    with pytest.raises(KeyboardInterrupt) as caught:
        stop = lambda row: row["round"] == 7 and signal.raise_signal(signal.SIGHUP)
        experiment(rounds=10, checkpoint=Checkpoint(every_seconds=None), on_round=[stop]).run(
            tmp_path / "run"
        )
    assert getattr(caught.value, "code", None) == 128 + signal.SIGHUP and len(came) == 2
    monkeypatch.undo()
    assert (tmp_path / "run" / "checkpoints" / "00000007").is_dir()
    agree(experiment(rounds=10).resume(tmp_path / "run"), whole)


def test_ctrl_c_between_any_two_lines(whole, tmp_path, monkeypatch):
    """Interrupted where it hurts most: after the server's step and before the memory is kept."""
    from fedloom.storage.client_state import ClientMemory

    put, calls = ClientMemory.put, []

    def interrupted(self, rows):
        calls.append(1)
        if len(calls) == 7:
            signal.raise_signal(signal.SIGINT)
        return put(self, rows)

    monkeypatch.setattr(ClientMemory, "put", interrupted)
    with pytest.raises(KeyboardInterrupt):
        experiment(rounds=10).run(tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / "00000007").is_dir()
    agree(experiment(rounds=10).resume(tmp_path / "run"), whole)


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


def test_a_second_ctrl_c_while_saving_does_not_lose_the_state(whole, tmp_path, monkeypatch):
    from fedloom.storage.run_directory import RunDirectory

    append = RunDirectory.append_round

    def interrupted(self, row):
        append(self, row)
        if row["round"] == 5:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(RunDirectory, "append_round", interrupted)
    with pytest.raises(KeyboardInterrupt):
        experiment(rounds=10, checkpoint=Checkpoint(every_seconds=None)).run(tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / "00000005").is_dir()
    shutil.rmtree(tmp_path / "run")

    # the second one comes in the row that the first one left to be finished
    from fedloom.server.rounds import Run

    commit = Run._commit

    def commit_and_interrupt(self, *arguments):
        commit(self, *arguments)
        if self.state.round == 5:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Run, "_commit", commit_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        experiment(rounds=10, checkpoint=Checkpoint(every_seconds=None)).run(tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / "00000005").is_dir()
    monkeypatch.undo()
    agree(experiment(rounds=10).resume(tmp_path / "run"), whole)


@pytest.mark.parametrize("error", [OSError, SystemExit])
def test_a_callback_that_fails_when_it_is_interrupted_loses_no_round(
    error, whole, tmp_path, monkeypatch
):
    """It writes to a terminal that is gone, or ends the program."""
    from fedloom.server.rounds import Run

    commit = Run._commit

    def commit_and_interrupt(self, *arguments):
        commit(self, *arguments)
        if self.state.round == 5:
            signal.raise_signal(signal.SIGINT)

    def fail(row):
        if row["round"] == 5:
            raise error

    free = {"rounds": 10, "checkpoint": Checkpoint(every_seconds=None)}
    with monkeypatch.context() as patch, pytest.raises(error):
        patch.setattr(Run, "_commit", commit_and_interrupt)
        experiment(**free, on_round=[fail]).run(tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / "00000005").is_dir()
    agree(experiment(rounds=10).resume(tmp_path / "run"), whole)


# ---------------------------------------------------------------------------------------- workers
class Deadly(torch.nn.Module):
    """Kills its own process once; a file says whether it has."""

    def __init__(self, mark: Path, times: int) -> None:
        super().__init__()
        self.line, self.mark, self.times = torch.nn.Linear(5, 3), str(mark), times
        self.parent = os.getpid()

    def forward(self, x):
        if os.getpid() != self.parent:
            done = len(list(Path(self.mark).iterdir()))
            if done < self.times:
                (Path(self.mark) / str(os.getpid())).touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return self.line(x)


def deadly(folder, engine, times):
    folder.mkdir()
    torch.manual_seed(1)
    return experiment(engine, rounds=3, model=Deadly(folder, times), resident_bytes=None)


def test_a_worker_that_dies_is_replaced(tmp_path, caplog):
    whole = deadly(tmp_path / "none", "serial", 0).run()
    end = deadly(tmp_path / "one", "workers:1", 1).run()
    assert len(list((tmp_path / "one").iterdir())) >= 1
    assert "a worker died" in caplog.text
    assert weights(end.model) == weights(whole.model)
    assert timeless(end.history) == timeless(whole.history)


@pytest.mark.slow
def test_workers_that_keep_dying_are_an_error_of_one_line(tmp_path):
    with pytest.raises(WorkerError, match="died 3 times") as caught:
        deadly(tmp_path / "all", "workers:1", 10**6).run()
    assert "\n" not in str(caught.value)


# -------------------------------------------------------------------------------------- full disks
def test_a_full_disk_at_a_checkpoint_is_a_warning(whole, tmp_path, monkeypatch, caplog):
    replace, full = os.replace, [False]

    def no_space(a, b):
        if full[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(a, b)

    monkeypatch.setattr(fedloom.storage.atomic.os, "replace", no_space)

    def fill(row):
        full[0] = 3 <= row["round"] < 7

    free = {"rounds": 10, "resident_bytes": None}
    agree(experiment(on_round=[fill], **free).run(tmp_path / "run"), whole)
    assert "could not be written" in caplog.text and "No space left" in caplog.text

    class StopError(Exception):
        pass

    def fill_and_stop(row):
        full[0] = row["round"] >= 5
        if row["round"] == 8:
            raise StopError

    with pytest.raises(StopError):
        experiment(on_round=[fill_and_stop], **free).run(tmp_path / "again")
    full[0] = False
    kept = [p.name for p in (tmp_path / "again" / "checkpoints").glob("*/manifest.json")]
    assert kept
    agree(experiment(**free).resume(tmp_path / "again"), whole)


def test_a_full_disk_at_the_end_is_an_error_of_one_line(tmp_path, monkeypatch):
    def no_space(a, b):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    fill = lambda row: monkeypatch.setattr(fedloom.storage.atomic.os, "replace", no_space)
    with pytest.raises(CheckpointError, match="No space left") as caught:
        experiment(rounds=3, on_round=[fill], resident_bytes=None).run(tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_a_full_disk_at_the_first_checkpoint_stops_the_run(whole, tmp_path, monkeypatch):
    """There is no other that a run could go on from."""
    replace, full = os.replace, [False]

    def no_space(a, b):
        if full[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(a, b)

    monkeypatch.setattr(fedloom.storage.atomic.os, "replace", no_space)
    begun = lambda row: full.__setitem__(0, True)
    free = {"rounds": 10, "resident_bytes": None}
    with pytest.raises(
        CheckpointError, match=r"after round \d+ .*; no other is there yet: "
    ) as caught:
        experiment(on_round=[begun], **free).run(tmp_path / "run")
    assert "the one before" not in str(caught.value)
    full[0] = False
    agree(experiment(**free).resume(tmp_path / "run"), whole)


@pytest.mark.parametrize("bound", [None, 2000])
def test_a_disk_that_is_really_full(bound, whole, tiny_disk, tmp_path):
    def stop(row):
        if row["round"] == 5:
            raise LookupError

    run = tiny_disk / "run"
    with pytest.raises(LookupError):
        experiment(rounds=10, resident_bytes=bound, on_round=[stop]).run(run)
    ballast = tiny_disk / "ballast"
    with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as f:
        while f.write(b"x" * 4096):
            pass
    with pytest.raises((CheckpointError, OSError)) as caught:
        experiment(rounds=10, resident_bytes=bound).resume(run)
    assert isinstance(caught.value, CheckpointError), repr(caught.value)
    assert "space" in str(caught.value)
    ballast.unlink()
    shutil.copytree(run, tmp_path / "moved")
    agree(experiment(rounds=10).resume(tmp_path / "moved"), whole)
