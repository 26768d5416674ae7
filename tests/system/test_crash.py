"""Whatever stops a run, what it goes on from gives the bits of the run that nothing stopped."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from crash_script import ROUNDS, experiment
from tiny import environment, timeless, weights

import fedloom.files
from fedloom import Saving
from fedloom.errors import CheckpointError, WorkerError

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return experiment().run(tmp_path_factory.mktemp("whole") / "run")


def agree(one, other):
    assert weights(one.model) == weights(other.model)
    assert timeless(one.history) == timeless(other.history)
    assert timeless(one.ledger.as_dict()) == timeless(other.ledger.as_dict())


def begin(folder, engine="serial", until=1):
    """Start the script; this many rounds are done when this returns."""
    paths = [str(HERE), str(HERE.parent), environment()["PYTHONPATH"]]
    process = subprocess.Popen(
        [sys.executable, str(HERE / "crash_script.py"), str(folder), engine],
        env=environment() | {"PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if int(line.split()[1]) >= until:
            break
    return process


def stop(process, number, seconds):
    """Send a signal after a while -> exit status."""
    time.sleep(seconds)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert "Error" not in errors or number == signal.SIGINT, errors
    return process.returncode


# ---------------------------------------------------------------------------------------- kill -9
@pytest.mark.parametrize("until", [1, 18, 51])
def test_kill_9_and_resume(until, undisturbed, tmp_path):
    process = begin(tmp_path / "run", until=until)
    assert stop(process, signal.SIGKILL, random.uniform(0, 0.03)) == -signal.SIGKILL
    agree(experiment().resume(tmp_path / "run"), undisturbed)
    leftovers = [p for p in (tmp_path / "run").rglob("*.part")]
    assert not leftovers


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["serial", "workers:2"])
def test_kill_9_at_twenty_random_moments(engine, undisturbed, tmp_path):
    draw, killed = random.Random(7), 0
    for number in range(20):
        folder = tmp_path / f"run{number}"
        for until in sorted(draw.sample(range(1, ROUNDS - 25), draw.choice([1, 1, 2]))):
            process = begin(folder, engine, until)  # some are killed again after they went on
            killed += stop(process, signal.SIGKILL, draw.uniform(0, 0.05)) == -signal.SIGKILL
        agree(experiment(engine).resume(folder), undisturbed)
    assert killed >= 20


def test_kill_9_in_workers_and_resume_in_workers(undisturbed, tmp_path, engine_of):
    process = begin(tmp_path / "run", "workers:2", 13)
    assert stop(process, signal.SIGKILL, random.uniform(0, 0.03)) == -signal.SIGKILL
    agree(experiment(engine_of("workers:2")).resume(tmp_path / "run"), undisturbed)


# ----------------------------------------------------------------------------------------- Ctrl-C
@pytest.mark.parametrize("engine", ["serial", "workers:2"])
def test_ctrl_c_saves_every_round_that_is_done(engine, undisturbed, tmp_path, engine_of):
    process = begin(tmp_path / "run", engine, 9)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode != 0 and "KeyboardInterrupt" in errors
    rounds = [int(line.split()[1]) for line in output.splitlines()]
    done = rounds[-1] if rounds else 9
    saved = max(int(p.name) for p in (tmp_path / "run" / "checkpoints").iterdir())
    assert 0 < done < ROUNDS and saved == done
    lines = (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["round"] == done
    agree(experiment(engine_of(engine)).resume(tmp_path / "run"), undisturbed)


def test_ctrl_c_between_any_two_lines(undisturbed, tmp_path, monkeypatch):
    """Interrupted where it hurts most: after the server's step and before the memory is kept."""
    from fedloom.memory import ClientMemory

    put, calls = ClientMemory.put, []

    def interrupted(self, rows):
        calls.append(1)
        if len(calls) == 7:
            signal.raise_signal(signal.SIGINT)
        return put(self, rows)

    monkeypatch.setattr(ClientMemory, "put", interrupted)
    with pytest.raises(KeyboardInterrupt):
        experiment().run(tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / "00000007").is_dir()
    agree(experiment().resume(tmp_path / "run"), undisturbed)


def test_a_second_ctrl_c_while_saving_does_not_lose_the_state(undisturbed, tmp_path, monkeypatch):
    from fedloom.rundir import RunDirectory

    append = RunDirectory.append_round

    def interrupted(self, row):
        append(self, row)
        if row["round"] == 5:
            signal.raise_signal(signal.SIGINT)

    def stop_in_round_5(row):
        if row["round"] == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunDirectory, "append_round", interrupted)
    with pytest.raises(KeyboardInterrupt):
        experiment(saving=Saving(seconds=None)).run(tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / "00000005").is_dir()
    shutil.rmtree(tmp_path / "run")

    # the second one comes in the row that the first one left to be finished
    from fedloom.loop import Loop

    commit = Loop._commit

    def commit_and_interrupt(self, *arguments):
        commit(self, *arguments)
        if self.round == 5:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Loop, "_commit", commit_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        experiment(saving=Saving(seconds=None)).run(tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / "00000005").is_dir()
    monkeypatch.undo()
    agree(experiment().resume(tmp_path / "run"), undisturbed)


def test_the_handler_of_ctrl_c_is_put_back(undisturbed):
    before = signal.getsignal(signal.SIGINT)
    experiment(rounds=2).run()
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_that_is_ignored_stays_ignored(monkeypatch, tmp_path):
    from fedloom.memory import ClientMemory

    put = ClientMemory.put

    def interrupted(self, rows):
        signal.raise_signal(signal.SIGINT)
        return put(self, rows)

    monkeypatch.setattr(ClientMemory, "put", interrupted)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert len(experiment(rounds=2).run().history) == 2
    finally:
        signal.signal(signal.SIGINT, before)


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
    return experiment(engine, rounds=3, model=Deadly(folder, times))


def test_a_worker_that_dies_is_replaced(tmp_path, caplog):
    whole = deadly(tmp_path / "none", "serial", 0).run()
    end = deadly(tmp_path / "one", "workers:2", 1).run()
    assert len(list((tmp_path / "one").iterdir())) >= 1
    assert "a worker died" in caplog.text
    assert {k: v for k, v in weights(end.model).items()} == weights(whole.model)
    assert timeless(end.history) == timeless(whole.history)


@pytest.mark.slow
def test_workers_that_keep_dying_are_an_error_of_one_line(tmp_path):
    with pytest.raises(WorkerError, match="died 3 times") as caught:
        deadly(tmp_path / "all", "workers:1", 10**6).run()
    assert "\n" not in str(caught.value)


def test_nothing_is_left_in_shared_memory(tmp_path, engine_of):
    def mine():
        return [p for p in Path("/dev/shm").glob(f"fedloom-{os.getpid()}-*")]

    before = mine()
    experiment(engine_of("workers:2"), rounds=2).run()
    assert mine() == before


# -------------------------------------------------------------------------------------- full disks
def test_a_full_disk_at_a_checkpoint_is_a_warning(undisturbed, tmp_path, monkeypatch, caplog):
    replace, full = os.replace, [False]

    def no_space(a, b):
        if full[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(a, b)

    monkeypatch.setattr(fedloom.files.os, "replace", no_space)

    def fill(row):
        full[0] = 9 <= row["round"] < 14

    free = {"resident_bytes": None}
    agree(experiment(on_round=[fill], **free).run(tmp_path / "run"), undisturbed)
    assert "could not be written" in caplog.text and "No space left" in caplog.text

    class Stop(Exception):
        pass

    def fill_and_stop(row):
        full[0] = row["round"] >= 9
        if row["round"] == 13:
            raise Stop

    with pytest.raises(Stop):
        experiment(on_round=[fill_and_stop], **free).run(tmp_path / "again")
    full[0] = False
    kept = [p.name for p in (tmp_path / "again" / "checkpoints").glob("*/manifest.json")]
    assert kept
    agree(experiment(**free).resume(tmp_path / "again"), undisturbed)


def test_a_full_disk_at_the_end_is_an_error_of_one_line(tmp_path, monkeypatch):
    def no_space(a, b):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    fill = lambda row: monkeypatch.setattr(fedloom.files.os, "replace", no_space)
    with pytest.raises(CheckpointError, match="No space left") as caught:
        experiment(rounds=3, on_round=[fill], resident_bytes=None).run(tmp_path / "run")
    assert "\n" not in str(caught.value)


@pytest.fixture
def tiny_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no file system may be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("bound", [None, 2000])
def test_a_disk_that_is_really_full(bound, undisturbed, tiny_disk, tmp_path):
    run = tiny_disk / "run"
    experiment(rounds=10, resident_bytes=bound).run(run)
    ballast = tiny_disk / "ballast"
    with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as f:
        while f.write(b"x" * 4096):
            pass
    with pytest.raises((CheckpointError, OSError)) as caught:
        experiment(resident_bytes=bound).resume(run)
    assert isinstance(caught.value, CheckpointError), repr(caught.value)
    assert "space" in str(caught.value)
    ballast.unlink()
    shutil.copytree(run, tmp_path / "moved")
    agree(experiment().resume(tmp_path / "moved"), undisturbed)


# ------------------------------------------------------------------------------------ broken files
def stopped(folder, round):
    """A run that broke off after a round, with checkpoints of this round and the one before."""

    class Stop(Exception):
        pass

    def stop_here(row):
        if row["round"] == round + 1:
            raise Stop

    with pytest.raises(Stop):
        experiment(on_round=[stop_here]).run(folder)
    return sorted((folder / "checkpoints").iterdir())


def truncate(path):
    os.truncate(path, path.stat().st_size // 2)


def flip(path):
    raw = bytearray(path.read_bytes())
    raw[-5] ^= 255
    path.write_bytes(raw)


FILES = ["state.safetensors", "memory.json", "manifest.json"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink])
def test_a_damaged_checkpoint_is_passed_over(name, damage, undisturbed, tmp_path, caplog):
    old, new = stopped(tmp_path / "run", 10)
    damage(new / name)
    agree(experiment().resume(tmp_path / "run"), undisturbed)
    if (name, damage) != ("manifest.json", Path.unlink):  # without one it never was a checkpoint
        assert f"{new.name} is damaged" in caplog.text


@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink])
def test_damaged_client_memory_is_passed_over(damage, undisturbed, tmp_path, caplog):
    old, new = stopped(tmp_path / "run", 10)
    own = lambda folder: {
        s[0] for s in json.loads((folder / "memory.json").read_text())["segments"]
    }
    only_new = own(new) - own(old)
    assert only_new
    for name in only_new:
        damage(tmp_path / "run" / "memory" / name)
    agree(experiment().resume(tmp_path / "run"), undisturbed)
    assert f"{new.name} is damaged" in caplog.text


def test_an_older_checkpoint_that_is_damaged_is_let_go(undisturbed, tmp_path, caplog):
    old, _ = stopped(tmp_path / "run", 10)
    truncate(old / "memory.json")
    saving = Saving(rounds=2, seconds=None, keep=4)
    agree(experiment(saving=saving).resume(tmp_path / "run"), undisturbed)
    assert not old.exists() and f"{old.name} is damaged" in caplog.text


@pytest.mark.parametrize("damage", [truncate, flip])
def test_nothing_whole_is_one_clear_error(damage, tmp_path):
    for folder in stopped(tmp_path / "run", 10):
        damage(folder / "state.safetensors")
    with pytest.raises(CheckpointError, match="no checkpoint of .* can be read") as caught:
        experiment().resume(tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_another_configuration_is_refused(tmp_path):
    from fedloom import Local
    from fedloom.algorithms import FedACG
    from tiny import clusters, mlp

    experiment(rounds=2).run(tmp_path / "run")
    others = {
        "algorithm": FedACG(),
        "seed": 6,
        "cohort": 3,
        "local": Local(epochs=1, batch=4, lr=0.051),
        "data": clusters(seed=8),
        "data ": clusters(sizes=(1, 3, 5, 8, 11, 3, 12)),
        "model": mlp(seed=6),
        "weighting": "uniform",
        "sampling": "bernoulli",
        "nonfinite": "skip",
    }
    missed = []
    for name, value in others.items():
        try:
            experiment(**{name.strip(): value, "rounds": 2}).resume(tmp_path / "run")
            missed.append(name)
        except CheckpointError as error:
            assert re.search("another configuration.*differ", str(error))
    assert not missed
    assert len(experiment(rounds=3).resume(tmp_path / "run").history) == 3
    with pytest.raises(CheckpointError, match="not a run directory"):
        experiment().resume(tmp_path)


def test_a_run_directory_that_exists_is_refused(tmp_path):
    from fedloom.errors import ConfigError

    experiment(rounds=1).run(tmp_path / "run")
    with pytest.raises(ConfigError, match="exists and is not empty.*resume"):
        experiment(rounds=1).run(tmp_path / "run")
    (tmp_path / "run" / "config.toml").unlink()
    with pytest.raises(ConfigError, match="exists and is not empty"):
        experiment(rounds=1).run(tmp_path / "run")
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(ConfigError, match="file"):
            experiment(rounds=1).run(path)


@pytest.mark.parametrize("first", ["partition.json", "fingerprint.json", "config.toml"])
def test_a_run_killed_before_it_could_be_resumed_can_be_started_again(first, tmp_path, monkeypatch):
    write = fedloom.files.os.replace

    def killed(a, b):
        if Path(b).name == first:
            raise KeyboardInterrupt
        write(a, b)

    monkeypatch.setattr(fedloom.files.os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        experiment(rounds=1).run(tmp_path / "run")
    with pytest.raises(CheckpointError, match="not a run directory"):
        experiment(rounds=1).resume(tmp_path / "run")
    monkeypatch.undo()
    assert len(experiment(rounds=1).run(tmp_path / "run").history) == 1


def test_a_failing_client_loses_no_round_that_was_done(tmp_path):
    from fedloom.algorithms import Scaffold
    from fedloom.errors import ClientError

    class Late(Scaffold):
        def direction(self, x, loc, msg, mem, grad, job):
            d, loc = super().direction(x, loc, msg, mem, grad, job)
            return torch.where(torch.as_tensor(job.round >= 7), float("inf"), d), loc

    rare = Saving(rounds=None, seconds=None)
    with pytest.raises(ClientError, match="round 8"):
        experiment(algorithm=Late(), saving=rare).run(tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / "00000007" / "manifest.json").is_file()
    lines = (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()
    assert len(lines) == 7
