"""Worker processes and the memory that they share: nobody else's is touched, one that stands still
is replaced, and no more are started than is of use.
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
from fedloom.data import from_arrays, iid
from fedloom.engines import Workers, auto, workers
from fedloom.engines import heartbeat as pulse
from fedloom.engines.shared_memory import Board, load
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
    until = time.monotonic() + 30
    while Path(folder).exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not Path(folder).exists()


# ------------------------------------------------------------------------------- workers that hang
class Standing(nn.Module):
    """Stops its own process, or waits for what never comes; a folder says how often."""

    def __init__(self, mark, times, how="stops"):
        super().__init__()
        self.line, self.mark, self.times = nn.Linear(5, 3), str(mark), times
        self.how, self.parent = how, os.getpid()

    def forward(self, x):
        if os.getpid() != self.parent and len(os.listdir(self.mark)) < self.times:
            (Path(self.mark) / str(os.getpid())).touch()
            if self.how == "stops":
                os.kill(os.getpid(), signal.SIGSTOP)
            else:
                threading.Event().wait()
        return self.line(x)


def standing(folder, engine, *how, **changes):
    folder.mkdir()
    torch.manual_seed(1)
    return small(Scaffold(), engine=engine, rounds=3, model=Standing(folder, *how), **changes)


@pytest.fixture
def shortened(monkeypatch):
    """The limits of silence, for tests. Processes that start still have long for it."""
    for name, value in {"POLL": 0.1, "SILENCE": 10.0, "TIMES": 2}.items():
        monkeypatch.setattr(pulse, name, value)


@pytest.mark.slow
def test_a_worker_that_is_stopped_in_mid_round_is_replaced(tmp_path, caplog, monkeypatch):
    def limit(self):  # a busy machine is slow to start processes: long, until one stands
        return 1.0 if any(Path("/proc", p).exists() for p in os.listdir(tmp_path / "one")) else 600

    monkeypatch.setattr(pulse, "POLL", 0.1)
    monkeypatch.setattr(pulse.Heartbeats, "limit", limit)
    whole = standing(tmp_path / "none", "serial", 0).run()
    end = standing(tmp_path / "one", "workers:1", 1).run()
    (worker,) = os.listdir(tmp_path / "one")
    said = rf"worker process {worker} has sent no heartbeat for [\d.]+ s, in client"
    assert re.search(rf"{said}s? [\d, ]+ of round 1; it is replaced", caplog.text)
    assert weights(end.model) == weights(whole.model)
    assert timeless(end.history) == timeless(whole.history)
    with pytest.raises(ProcessLookupError):
        os.kill(int(worker), 0)


@pytest.mark.slow
@pytest.mark.usefixtures("shortened")
def test_a_part_that_waits_for_ever_stops_the_run_with_one_line(tmp_path):
    unmark = lambda row: [file.unlink() for file in (tmp_path / "all").iterdir()]
    whole = standing(tmp_path / "none", "serial", 0).run()
    run = standing(tmp_path / "all", "workers:1", 10**6, "waits", on_round=[unmark])
    with pytest.raises(WorkerError, match=r"hung 3 times .* engine = serial") as caught:
        run.run(tmp_path / "run")
    assert "\n" not in str(caught.value)
    end = standing(tmp_path / "again", "workers:1", 0).resume(tmp_path / "run")
    assert weights(end.model) == weights(whole.model)


@pytest.mark.slow
@pytest.mark.usefixtures("shortened")
def test_workers_that_are_stopped_between_rounds_are_replaced(caplog):
    def stop(row):
        if row["round"] == 2:
            while len(experiment.engine._heartbeats._pulses()) < 2:
                time.sleep(0.02)  # until both have begun
            for process in experiment.engine._executor._processes.values():
                os.kill(process.pid, signal.SIGSTOP)

    whole = small(Scaffold(), rounds=3).run()
    experiment = small(Scaffold(), rounds=3, engine=Workers(2), on_round=[stop])
    end = experiment.run()
    assert "no worker has begun one" in caplog.text
    assert weights(end.model) == weights(whole.model)


def test_a_worker_that_stops_while_it_hands_over_a_result_can_be_ended(monkeypatch):
    def half_a_result():  # it is sent by value, to a process without the imports of this file

        for each in gc.get_objects():
            if type(each).__name__ == "SimpleQueue":
                os.write(each._writer.fileno(), struct.pack("!i", 1000) + b"only the beginning")
        os.kill(os.getpid(), signal.SIGSTOP)

    monkeypatch.setattr(workers, "_PATIENCE", 0.3)
    engine = Workers(1)
    engine._executor = ProcessPoolExecutor(max_workers=1)
    future = engine._executor.submit(half_a_result)
    (process,) = engine._executor._processes.values()
    while (Path("/proc") / str(process.pid) / "stat").read_text().split()[2] != "T":
        time.sleep(0.02)
    engine.close()
    assert not process.is_alive() and future.exception() is not None


def test_what_was_done_when_a_worker_died_is_not_done_again(monkeypatch):
    engine, numbers = Workers(2), []

    def submit(take, number, *task):
        numbers.append(number)
        future = Future()
        if len(numbers) == 1:
            future.set_exception(BrokenProcessPool("killed"))
        else:
            future.set_result(f"result {number}")
        return future

    engine._executor = SimpleNamespace(submit=submit)
    engine._board = SimpleNamespace(new_name=str, take=str)
    engine._heartbeats = SimpleNamespace(begin=lambda: None)
    for name in ("_end", "_start"):
        monkeypatch.setattr(engine, name, lambda: None)
    monkeypatch.setattr(engine, "_result", lambda future: future.result())
    tasks = [workers._Task("a part", ())] * 2
    assert [*engine._each(tasks)] == ["result 1", "result 2"]
    assert numbers == [1, 2, 1]


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
def test_no_more_workers_are_started_than_a_cohort_keeps_busy(
    engine, cohort, started, monkeypatch, caplog
):
    on(monkeypatch, 6)
    loop = small(FedAvg(), engine=engine, cohort=cohort).build()
    loop.engine.settle(loop.plan, loop.fed, loop.net)
    assert loop.engine.workers == started
    said = f"keeps {started} workers busy" in caplog.text
    assert said == (started < 6 and engine != "workers")  # who gave no number is told nothing
    assert loop.engine.text == ("workers:6" if engine == "workers" else engine)


def test_a_dry_run_starts_no_processes_and_estimates_what_they_compute(monkeypatch):
    monkeypatch.setattr(Workers, "_start", lambda self: pytest.fail("started"))
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
        assert str(loop.engine._board.folder) in mapped(data.inputs)
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
        end = time.monotonic() + 60
        while len([*tmp_path.glob("torch.py.*")]) < 2 and time.monotonic() < end:
            time.sleep(0.02)
        process.kill()
        killed = time.monotonic()
        process.wait()
    while any(map(running, pids)) and time.monotonic() < killed + 20:
        time.sleep(0.02)
    took = time.monotonic() - killed
    for pid in filter(running, pids):
        os.kill(pid, signal.SIGKILL)
    assert len(pids) == 2 and took < 5  # two seconds where the machine is not busy


def running(pid):
    """Whether a process has not ended; one that nobody waited for has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
