"""Processes of a run that are killed or stopped: what they go on from has the run's bits."""

import contextlib
import math
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import crash_script
import pytest
import torch
from crash_script import ROUNDS, agree, experiment

from fedloom.errors import WorkerError
from support.folders import rows
from tiny import environment, same, timeless, weights

# every process to be killed is forked from one that has imported torch and nothing else has run in
FORKS = multiprocessing.get_context("forkserver")


@pytest.fixture(scope="module", autouse=True)
def _imported():
    here = Path(__file__).parent
    with pytest.MonkeyPatch.context() as patch:
        paths = [str(here), str(here.parent), environment()["PYTHONPATH"]]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        FORKS.set_forkserver_preload(["crash_script"])
        yield


class Begun:
    """A process in which a run goes on, of which this many rounds are done."""

    def __init__(self, folder, engine="serial", until=1, kind="scaffold"):
        self.told, tell = FORKS.Pipe(duplex=False)
        self.errors, self.rounds = folder.with_suffix(".errors"), []
        given = (tell, self.errors, folder, engine, kind)
        self.process = FORKS.Process(target=crash_script.main, args=given)
        self.process.start()
        tell.close()
        self.wait(until)

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

    def kill(self, within):
        time.sleep(within)
        status, errors = self.stop(signal.SIGKILL)
        assert status == -signal.SIGKILL and "Error" not in errors, errors


def test_kill_9_and_resume(undisturbed, tmp_path):
    Begun(tmp_path / "run", until=18).kill(random.uniform(0, 0.03))
    agree(experiment().resume(tmp_path / "run"), undisturbed)
    assert not list((tmp_path / "run").rglob("*.part"))


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
            Begun(folder, engine, until, kind).kill(draw.uniform(0, 0.05))
        end = experiment(engine_of(engine), kind=kind).resume(folder)
        agree(end, whole)
        assert same(end.state, whole.state) and end.clients == whole.clients


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["serial", "workers:2"])
def test_ctrl_c_saves_every_round_that_is_done(engine, undisturbed, tmp_path, engine_of):
    process = Begun(tmp_path / "run", engine, 9)
    status, errors = process.stop(signal.SIGINT)
    assert status == 1 and "KeyboardInterrupt" in errors
    done = process.rounds[-1]
    saved = max(int(p.name) for p in (tmp_path / "run" / "checkpoints").iterdir())
    assert 0 < done < ROUNDS and saved == done == rows(tmp_path / "run")[-1]["round"]
    agree(experiment(engine_of(engine)).resume(tmp_path / "run"), undisturbed)


# ---------------------------------------------------------------------------------------- workers
class Deadly(torch.nn.Module):
    """Kills its own process so many times; files say how often it has."""

    def __init__(self, mark, times):
        super().__init__()
        self.line, self.mark, self.times = torch.nn.Linear(5, 3), str(mark), times
        self.parent = os.getpid()

    def forward(self, x):
        if os.getpid() != self.parent and len(os.listdir(self.mark)) < self.times:
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
    assert os.listdir(tmp_path / "one") and "a worker died" in caplog.text
    assert weights(end.model) == weights(whole.model)
    assert timeless(end.history) == timeless(whole.history)


@pytest.mark.slow
def test_workers_that_keep_dying_are_an_error_of_one_line(tmp_path):
    with pytest.raises(WorkerError, match="died 3 times") as caught:
        deadly(tmp_path / "all", "workers:1", 10**6).run()
    assert "\n" not in str(caught.value)
