"""Worker processes and the memory that they share: nobody else's is touched, one that stands still
is replaced, no more are started than is of use, and they end with the process that started them.
"""

import gc
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner
from loky import ProcessPoolExecutor
from loky.process_executor import BrokenProcessPool
from torch import nn

from fedloom import FedAvg
from fedloom.algorithms import Scaffold
from fedloom.cli.__main__ import cli
from fedloom.cli.dry_run import estimate, measure
from fedloom.config import from_run, resolve
from fedloom.core.vector import rec
from fedloom.data import from_arrays, iid
from fedloom.engines import Workers, auto, workers
from fedloom.engines import heartbeat as pulse
from fedloom.engines.client_results import RangeResult, Request, TrainTask
from fedloom.engines.shared_memory import Board, load, packed
from fedloom.errors import ConfigError, WorkerError
from tiny import small, timeless, weights

# ---------------------------------------------------------------------- a killed owner's board
HOLDS = """
import signal
from fedloom.engines.shared_memory import Board
board = Board()
print(board.folder, board.post("something"), flush=True)
signal.pause()
"""


def test_a_board_goes_with_an_owner_that_is_killed():
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS], stdout=subprocess.PIPE, text=True
    ) as owner:
        folder, post = owner.stdout.readline().split()
        assert load(post) == "something"
        owner.kill()
    until(lambda: not Path(folder).exists(), 30)
    assert not Path(folder).exists()


# ------------------------------------------------------------------------------- workers that hang
class Standing(nn.Module):
    """Stops or kills its own process, or waits for what never comes; a folder says how often."""

    def __init__(self, mark, times, how):
        super().__init__()
        self.line, self.mark, self.times = nn.Linear(5, 3), str(mark), times
        self.how, self.parent = how, os.getpid()

    def forward(self, x):
        if os.getpid() != self.parent and len(os.listdir(self.mark)) < self.times:
            (Path(self.mark) / str(os.getpid())).touch()
            if self.how == "waits":
                threading.Event().wait()
            os.kill(os.getpid(), {"stops": signal.SIGSTOP, "dies": signal.SIGKILL}[self.how])
        return self.line(x)


def standing(folder, engine, times=0, how="stops", **changes):
    folder.mkdir()
    torch.manual_seed(1)
    model = Standing(folder, times, how)
    return small(Scaffold(), engine=engine, rounds=3, model=model, **changes)


ENDED = ("Z", "X", "")  # states of processes; "": somebody has waited for it


def state_of(pid):
    """A process's state as the system writes it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def until(condition, seconds=60):
    """Wait until it is true, or so long."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)


@pytest.fixture
def shortened(monkeypatch):
    """The limits of silence, for tests. Processes that start still have long for it."""
    for name, value in {"POLL": 0.1, "SILENCE": 10.0, "TIMES": 2}.items():
        monkeypatch.setattr(pulse, name, value)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stops", "dies"])
def test_a_worker_that_stops_or_dies_in_mid_round_is_replaced(how, tmp_path, caplog, monkeypatch):
    def limit(self):  # a busy machine is slow to start processes: long, until one stands
        return 1.0 if any(Path("/proc", p).exists() for p in os.listdir(tmp_path / "one")) else 600

    monkeypatch.setattr(pulse, "POLL", 0.1)
    monkeypatch.setattr(pulse.Heartbeats, "limit", limit)
    whole = standing(tmp_path / "none", "serial").run()
    end = standing(tmp_path / "one", "workers:1", 1, how).run()
    (worker,) = os.listdir(tmp_path / "one")
    said = rf"worker process {worker} has sent no heartbeat for [\d.]+ s, in client"
    said = rf"{said}s? [\d, ]+ of round 1; it is replaced" if how == "stops" else "a worker died"
    assert re.search(said, caplog.text)
    assert weights(end.model) == weights(whole.model)
    assert timeless(end.history) == timeless(whole.history)
    with pytest.raises(ProcessLookupError):
        os.kill(int(worker), 0)


@pytest.mark.slow
@pytest.mark.usefixtures("shortened")
@pytest.mark.parametrize(
    ("how", "said"),
    [("waits", "hung 3 times .* engine = serial"), ("dies", "died 3 times .* fewer workers")],
)
def test_workers_that_keep_hanging_or_dying_stop_the_run_with_one_line(how, said, tmp_path):
    unmark = lambda row: [file.unlink() for file in (tmp_path / "all").iterdir()]
    whole = standing(tmp_path / "none", "serial").run()
    run = standing(tmp_path / "all", "workers:1", 10**6, how, on_round=[unmark])
    with pytest.raises(WorkerError, match=said) as caught:
        run.run(tmp_path / "run")
    assert "\n" not in str(caught.value)
    end = standing(tmp_path / "again", "workers:1").resume(tmp_path / "run")
    assert weights(end.model) == weights(whole.model)


@pytest.mark.slow
@pytest.mark.usefixtures("shortened")
def test_workers_that_are_stopped_between_rounds_are_replaced(caplog):
    def stop(row):
        if row["round"] == 2:
            engine.wait_until_ready(60)
            for process in engine._executor._processes.values():
                os.kill(process.pid, signal.SIGSTOP)

    whole, engine = small(Scaffold(), rounds=3).run(), Workers(2)
    end = small(Scaffold(), rounds=3, engine=engine, on_round=[stop]).run()
    assert "no worker has begun one" in caplog.text
    assert weights(end.model) == weights(whole.model)


def test_a_worker_that_stops_while_it_hands_over_a_result_can_be_ended(monkeypatch, tmp_path):
    def half_a_result(mark):  # it is sent by value, to a process without the imports of this file
        for each in gc.get_objects():
            if type(each).__name__ == "SimpleQueue":
                os.write(each._writer.fileno(), struct.pack("!i", 1000) + b"only the beginning")
        mark.write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)

    monkeypatch.setattr(workers, "_PATIENCE", 0.3)
    executor, mark = ProcessPoolExecutor(max_workers=1), tmp_path / "process"
    future = executor.submit(half_a_result, mark)
    until(lambda: mark.exists() and state_of(mark.read_text()) == "T")
    workers.end(executor)
    until(lambda: state_of(mark.read_text()) in ENDED)
    assert state_of(mark.read_text()) in ENDED and future.exception() is not None


def test_what_was_done_when_a_worker_died_is_not_done_again(monkeypatch):
    numbers = []

    def submit(take, number, name, request, post, sent):
        numbers.append(number)
        future, result = Future(), RangeResult([], {}, [f"part {number}"])
        if len(numbers) == 1:
            future.set_exception(BrokenProcessPool("killed"))
        else:
            future.set_result(packed(result, Path(post).parent, name))
        return future

    monkeypatch.setattr(workers, "started", lambda *given: SimpleNamespace(submit=submit))
    monkeypatch.setattr(workers, "end", lambda executor: None)
    loop = small(FedAvg(), engine=Workers(2)).build()
    loop.engine.open(loop.plan, loop.fed, loop.net)
    task = TrainTask(rec(x=loop.net.init()), loop.net.init_buffers(), {}, [0, 1], 0)
    assert loop.engine.map(Request.TRAIN, task).stats == ["part 1", "part 2"]
    loop.engine.close()
    assert numbers == [1, 2, 1]


# ------------------------------------------------------------------------------ how long is silence
class Scene:
    """Workers whose heartbeats a test writes, and a clock."""

    def __init__(self, folder, workers=1):
        self.folder, self.now = folder, 0.0
        self.watch = pulse.Heartbeats(folder, workers)

    def beats(self, count, task=1, worker=7):
        words = struct.pack("QQ", count, task)
        (self.folder / f"pulse.{worker}").write_bytes(words)

    def wait(self, seconds):
        """What is seen within these seconds."""
        for _ in range(seconds):
            self.now += 1
            if still := self.watch.look():
                return still
        return None


@pytest.fixture
def scene(tmp_path, monkeypatch):
    scenes = []

    def make(**options):
        monkeypatch.setattr(time, "monotonic", lambda: scenes[0].now if scenes else 0.0)
        scenes.append(Scene(tmp_path, **options))
        return scenes[0]

    return make


def test_a_silent_worker_is_given_ten_minutes(scene):
    seen = scene()
    seen.beats(1)
    assert seen.wait(601) is None
    assert seen.wait(1) == pulse.Hung(7, 1, 601.0)


def test_a_worker_is_given_twenty_times_the_slowest_step(scene):
    seen = scene()
    for count in range(5):
        seen.beats(count)
        assert seen.wait(100) is None
    assert seen.watch.slowest == 100
    assert seen.wait(1901) is None
    assert seen.wait(1) == pulse.Hung(7, 1, 2001.0)


def test_a_worker_without_a_task_may_be_silent_but_not_for_ever(scene):
    seen = scene(workers=2)
    seen.beats(1, task=0)
    seen.beats(1, task=2, worker=8)
    seen.wait(1)
    for count in range(2, 30):
        seen.beats(count, task=2, worker=8)
        assert seen.wait(30) is None
    seen.beats(99, task=0, worker=8)
    assert seen.wait(601) is None
    assert seen.wait(1) == pulse.Hung(None, 0, 601)


def test_processes_that_are_starting_are_given_ten_minutes(scene):
    seen = scene(workers=2)
    seen.beats(1, task=0)
    assert seen.wait(601) is None
    assert seen.wait(1).worker is None


def test_a_stop_of_the_parent_is_nobodys_silence(scene):
    seen = scene()
    seen.beats(1)
    for _ in range(20):
        assert seen.wait(1) is None
        seen.now += 3600  # Ctrl-Z
    assert seen.watch.look() is None


# -------------------------------------------------------------------------------------- how many
def on(monkeypatch, count):
    monkeypatch.setattr(workers, "processors", lambda: count)


@pytest.mark.parametrize("engine", ["workers:9", "workers:9+vectorised:5", "workers:1000"])
def test_more_workers_than_the_processors_carry_are_refused(engine, monkeypatch):
    on(monkeypatch, 2)
    with pytest.raises(ConfigError, match="at most 8 workers here, 4 for each of 2") as caught:
        small(FedAvg(), engine=engine).build()
    assert engine in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"command line: .* at most 8 workers here"):
        resolve("digits", [f"engine={engine}"])
    assert small(FedAvg(), engine="workers:8").build().engine.text == "workers:8"
    monkeypatch.setattr(workers, "Board", lambda: pytest.fail("begun"))
    loop = small(FedAvg()).build()
    with pytest.raises(ConfigError, match="at most 8 workers here"):  # one made in Python
        Workers(9).open(loop.plan, loop.fed, loop.net)
    on(monkeypatch, 300)
    assert small(FedAvg(), engine=engine).build().engine.text == engine


@pytest.mark.parametrize(
    ("engine", "cohort", "started"),
    [
        ("workers:6", 4, 4),
        ("workers:6", [[0], [1, 2, 3], [4]], 3),
        ("workers:6+vectorised:2", 4, 2),
        ("workers:6", 0.99, 6),
        ("workers", 4, 4),
    ],
)
def test_no_more_workers_are_started_than_are_busy(engine, cohort, started, monkeypatch, caplog):
    on(monkeypatch, 6)
    loop = small(FedAvg(), engine=engine, cohort=cohort).build()
    loop.engine.settle(loop.plan, loop.fed, loop.net)
    assert loop.engine.workers == started
    said = f"keeps {started} workers busy" in caplog.text
    assert said == (started < 6 and engine != "workers")  # who gave no number is told nothing
    assert loop.engine.text == ("workers:6" if engine == "workers" else engine)


def test_a_dry_run_starts_no_processes_and_estimates_what_they_compute(monkeypatch):
    monkeypatch.setattr(workers, "started", lambda *given: pytest.fail("started"))
    for module in (auto, workers):
        monkeypatch.setattr(module, "processors", lambda: 2)
    config = lambda engine: resolve("digits", ["local.epochs=1", f"engine={engine}"])
    text = estimate(config("workers:2"), 1)
    assert "2 processes" in text and "not started here" in text
    both = config("workers:2+vectorised:4"), config("vectorised:4")
    one, other = (measure(each.experiment()) for each in both)
    assert (one.up, one.down, one.client_rounds) == (other.up, other.down, other.client_rounds)
    assert (one.workers, other.workers) == (2, 0) and one.resident > 2 * other.resident


@pytest.mark.slow
def test_a_run_of_a_larger_machine_is_read_and_exported_and_goes_on_with_fewer_workers(
    tmp_path, monkeypatch
):
    run = tmp_path / "run"
    resolve("digits", ["rounds=2", "local.epochs=1", "engine=serial"]).experiment().run(run)
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace('"serial"', '"workers:64"'))
    for name in ("manifest.json", "model.safetensors"):
        (run / name).unlink()
    on(monkeypatch, 2)
    with pytest.raises(ConfigError, match="at most 8 workers"):
        from_run(run).experiment().resume(run)
    assert from_run(run, ["engine=workers:2"]).experiment().build().engine.workers == 2
    done = CliRunner().invoke(cli, ["export", str(run), "--out", str(tmp_path / "x")])
    assert done.exit_code == 0, done.output


# ------------------------------------------------------------------------------- the data's memory
SHARED = "fedloom.posts-"  # in the names of files in shared memory


def mapped(t):
    """The file that this process's memory is mapped from where a tensor lies; "": none."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        place, *_, name = [*line.split(maxsplit=5), ""][:6]
        first, end = (int(x, 16) for x in place.split("-"))
        if first <= t.data_ptr() < end:
            return name
    return ""


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="Linux only")
def test_a_process_with_workers_holds_the_data_once():
    data = from_arrays(torch.rand(20_000, 5), torch.zeros(20_000, dtype=torch.int64), iid(4))
    loop = small(FedAvg(), engine="workers:2", data=data).build()
    inputs, held = data.inputs.clone(), data.inputs
    loop.engine.open(loop.plan, loop.fed, loop.net)
    try:
        assert SHARED in mapped(data.inputs) and SHARED not in mapped(inputs)
        assert data.inputs is held  # whoever holds the tensor holds the file, and no copy
    finally:
        loop.engine.close()
    assert torch.equal(data.inputs, inputs)  # the file lives as long as it is mapped


def test_a_tensor_with_entries_that_share_memory_or_in_another_order_stays_where_it_is():
    board = Board()
    windows = torch.arange(40_000.0).as_strided((20_000, 4), (1, 1))
    turned = torch.rand(300, 400).t()
    places = windows.data_ptr(), turned.data_ptr()
    try:
        board.post((windows, turned), once=(windows, turned))
        assert (windows.data_ptr(), turned.data_ptr()) == places
        assert windows.untyped_storage().nbytes() == 160_000
    finally:
        board.close()


# -------------------------------------------------------------------------------- a killed parent
STARTS = """
import sys, time
from fedloom.engines import workers
sys.path.insert(0, sys.argv[1])  # the workers get it too
executor = workers.started(2, 'nothing')
executor.submit(int)
print(*executor._processes, flush=True)
time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_workers_end_with_a_killed_parent_while_they_import_torch(tmp_path):
    slow = "import os, time; open(f'{__file__}.{os.getpid()}', 'w').close(); time.sleep(60)"
    (tmp_path / "torch.py").write_text(slow)
    command = [sys.executable, "-c", STARTS, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        until(lambda: len([*tmp_path.glob("torch.py.*")]) == 2)
        process.kill()
        killed = time.monotonic()
        process.wait()
    alive = lambda: [pid for pid in pids if state_of(pid) not in ENDED]
    until(lambda: not alive(), 20)
    took = time.monotonic() - killed
    for pid in alive():
        os.kill(pid, signal.SIGKILL)
    assert len(pids) == 2 and took < 5  # two seconds where the machine is not busy
