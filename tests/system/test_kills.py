"""Processes that are killed, stopped, or get a signal: the run, the command, ranks. What they go on
from has the run's bits.
"""

import contextlib
import errno
import json
import math
import multiprocessing
import os
import pty
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGKILL, SIGSTOP, SIGTERM

import click
import crash_script
import pytest
from click.testing import CliRunner
from crash_script import ROUNDS, agree, experiment

from fedloom.checks.tiny_federation import finish
from fedloom.cli.__main__ import cli
from fedloom.server.rounds import Run
from support import ranks
from support.folders import rows
from support.rank_cases import stateful
from tiny import environment, same

slow = pytest.mark.slow
engines = pytest.mark.parametrize("engine", ["serial", "workers:2"])


def saved(run):
    """The round of its newest checkpoint."""
    return max(int(p.parent.name) for p in Path(run).glob("checkpoints/*/manifest.json"))


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
        status, errors = self.stop(SIGKILL)
        assert status == -SIGKILL and "Error" not in errors, errors


def test_kill_9_and_resume(undisturbed, tmp_path):
    Begun(tmp_path / "run", until=18).kill(random.uniform(0, 0.03))
    agree(experiment().resume(tmp_path / "run"), undisturbed)
    assert not list((tmp_path / "run").rglob("*.part"))


@pytest.fixture(scope="module", params=["everything", "fafed"])
def with_all_of_it(request, tmp_path_factory):
    """A kind with every part that remembers something, and its undisturbed run."""
    folder = tmp_path_factory.mktemp(request.param) / "run"
    return request.param, experiment(kind=request.param).run(folder)


@slow
@engines
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


@slow
@engines
def test_ctrl_c_saves_every_round_that_is_done(engine, undisturbed, tmp_path, engine_of):
    process = Begun(tmp_path / "run", engine, 9)
    status, errors = process.stop(SIGINT)
    assert status == 1 and "KeyboardInterrupt" in errors
    done = process.rounds[-1]
    assert 0 < done < ROUNDS and saved(tmp_path / "run") == done == len(rows(tmp_path / "run"))
    agree(experiment(engine_of(engine)).resume(tmp_path / "run"), undisturbed)


# ---------------------------------------------------------------------------- the command line
SMALL = ("rounds=5", "local.epochs=1")


@pytest.fixture
def stop(tmp_path, monkeypatch):
    """Call a command in an empty folder; a signal comes in the third round of its first run."""
    monkeypatch.chdir(tmp_path)

    def call(number, *words):
        commit = Run._commit

        def commit_and_stop(self, *arguments):
            commit(self, *arguments)
            if self.state.round == 3:
                signal.raise_signal(number)

        with monkeypatch.context() as patch:
            patch.setattr(Run, "_commit", commit_and_stop)
            return CliRunner().invoke(cli, words, prog_name="fedloom")

    return call


@pytest.mark.parametrize("number", [SIGINT, SIGTERM, SIGHUP])
def test_a_signal_saves_and_says_how_to_go_on(number, stop):
    done = stop(number, "run", *SMALL, "--out", "a")
    assert done.exit_code == 128 + number
    assert done.output.strip().endswith("interrupted; go on with: fedloom run --resume a")
    assert saved("a") == 3


def test_a_signal_to_another_command_ends_it_with_the_same_code(stop):
    done = stop(SIGTERM, "sweep", *SMALL, "local.lr=0.1,0.2", "--out", "s", "--quiet")
    assert done.exit_code == 143 and "run the same command again to resume" in done.output
    assert [saved(p) for p in Path("s").iterdir() if p.is_dir()] == [3]
    Path("mine.py").write_text("from fedloom import FedAvg\n\n\nclass Mine(FedAvg):\n    pass\n")
    done = stop(SIGTERM, "check", "mine.py")
    assert (done.exit_code, done.output.strip()) == (143, "interrupted")


def test_a_terminal_that_is_gone_changes_no_exit_code(stop, monkeypatch):
    def gone(*args, **kwargs):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(click, "echo", gone)
    assert stop(SIGHUP, "run", *SMALL, "--out", "a").exit_code == 129
    assert saved("a") == 3


def begin(folder, engine, *opens, **more):
    """A run that does not end by itself, in a session of its own -> its process."""
    words = [sys.executable, "-m", "fedloom", "run", "rounds=100000", f"engine={engine}"]
    given = {"cwd": folder, "env": environment(), "start_new_session": True}
    process = subprocess.Popen([*opens, *words, "--out", "a"], **given, **more)
    log, until = folder / "a" / "rounds.jsonl", time.monotonic() + 120
    while not (log.exists() and log.read_bytes().count(b"\n") > 3):
        assert time.monotonic() < until
        time.sleep(0.05)
    return process


@slow
@engines
@pytest.mark.parametrize("numbers", [(SIGTERM,), (SIGHUP, SIGTERM, SIGHUP)])
def test_signals_to_a_whole_group_save(engine, numbers, tmp_path):
    process = begin(tmp_path, engine, stderr=subprocess.PIPE, text=True)
    for number in numbers:
        os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + numbers[0], errors
    assert errors.strip().endswith("go on with: fedloom run --resume a")
    assert "Traceback" not in errors and "died" not in errors
    assert saved(tmp_path / "a") == len(rows(tmp_path / "a"))


def read_all(terminal):
    with contextlib.suppress(OSError):
        while os.read(terminal, 4096):
            pass


@slow
@engines
def test_a_terminal_that_is_closed_saves(engine, tmp_path):
    terminal, other = pty.openpty()
    threading.Thread(target=read_all, args=(terminal,), daemon=True).start()
    # who begins a session and opens a terminal is hung up with it
    opens = ["sh", "-c", 'exec 0<>"$0" 1>&0 2>&0 "$@"', os.ttyname(other)]
    process = begin(tmp_path, engine, *opens)
    os.close(other)
    os.close(terminal)
    assert process.wait(120) == 128 + SIGHUP
    assert saved(tmp_path / "a") == len(rows(tmp_path / "a"))


# -------------------------------------------------------------------------------------------- ranks
EIGHT = 8


@pytest.fixture(scope="module")
def by_one(tmp_path_factory):
    """What one process makes of it, and nothing stops."""
    exp = stateful(EIGHT)
    exp.run(tmp_path_factory.mktemp("by_one") / "run")
    return finish(exp.loop)


def same_end(folder, by_one):
    """The finished run in a folder, as one process reads it, ended as `by_one`."""
    exp = stateful(EIGHT)
    exp.resume(folder)
    end = finish(exp.loop)
    states = all(same(end.memory[i], by_one.memory[i]) for i in by_one.memory)
    return same(end.srv, by_one.srv) and end[2:] == by_one[2:] and states


@slow
@pytest.mark.parametrize("size", [2, 3])
def test_a_killed_rank_costs_no_bit(size, by_one, tmp_path):
    """torchrun starts all ranks again, and they go on from the last checkpoint."""
    draw = random.Random(size)
    kill = f"kill:{draw.randrange(size)}:{draw.randrange(1, EIGHT)}"
    own = environment() | {"OMP_NUM_THREADS": "1"}
    own["PYTHONPATH"] += f":{ranks.HERE.parents[1]}"
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=3"]
    line += [f"--nproc-per-node={size}", str(ranks.HERE), "story", str(tmp_path / "run")]
    given = {"env": own, "capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run([*line, str(EIGHT), kill], **given)
    said = done.stdout + done.stderr
    assert done.returncode == 0 and f'"round": {EIGHT}' in said, said
    assert "a rank has ended without a word" in said and same_end(tmp_path / "run", by_one)


@slow
def test_sigterm_saves_at_all_ranks_and_another_number_goes_on(by_one, tmp_path):
    run = tmp_path / "run"
    ends = ranks.run(3, "story", run, EIGHT, "term:1:3")
    assert [end.code for end in ends] == [143] * 3, ends
    assert len(rows(run)) == 3
    ends = ranks.run(2, "story", run, EIGHT, "fail:0:5", "slow:1:5")
    assert all("a part of my own failed" in end.err and end.code == 1 for end in ends), ends
    assert time.time() - float(re.search(r"slowest: (\S+)", ends[1].err)[1]) < 10
    ends = ranks.run(4, "story", run, EIGHT)
    assert json.loads(ends[0].out)["number"] == 4, ends
    assert same_end(run, by_one)


@slow
def test_a_full_disk_at_one_rank_is_everybodys_warning_and_at_the_end_an_error(by_one, tmp_path):
    """The run goes on without these checkpoints, and without the last one it has not ended."""
    run, said = tmp_path / "run", "the checkpoint after round {} could not be written: File too"
    ends = ranks.run(2, "story", run, EIGHT, "full:1:3")
    assert all(end.code == 0 and said.format(4) in end.err for end in ends), ends
    assert all(said.format(5) in end.err and said.format(6) not in end.err for end in ends), ends
    assert same_end(run, by_one)
    late = tmp_path / "late"
    ends = ranks.run(2, "story", late, EIGHT, f"full:1:{EIGHT - 1}")
    assert all(end.code == 1 and said.format(EIGHT) in end.err for end in ends), ends
    ends = ranks.run(2, "story", late, EIGHT)
    assert all(end.code == 0 for end in ends) and same_end(late, by_one), ends


@slow
def test_a_rank_that_never_answers_is_not_waited_for_without_end(tmp_path):
    words = ["-m", "fedloom", "run", "digits", "rounds=3", "data.clients=4", "ranks.timeout=6"]
    processes = ranks.begin(2, *words, "--out", tmp_path / "run")
    processes[1].send_signal(SIGSTOP)  # as by a machine that hangs
    try:
        assert processes[0].wait(100) == 2
        said = processes[0].communicate()[1]
        assert "the ranks cannot meet at 127.0.0.1:" in said and "6 s" in said
    finally:
        processes[1].kill()
        processes[1].communicate()


FEW = ("rounds=2", "data.clients=4", "cohort=4", "--out", "run")


def lines_of(ends):
    """Of each rank, without its name."""
    lines = [x for end in ends for x in end.err.splitlines() if "error: " in x]
    return [re.sub(r"^rank [1-9]: (?=error: )", "", x) for x in lines]


@slow
@pytest.mark.parametrize(
    ("size", "last", "apart", "said"),
    [
        (2, ["local.lr=0.3"], False, "local.lr is 0.1 at rank 0"),
        (2, ["evaluate.every=2"], False, "evaluate.every is 1 at rank 0"),
        (2, [], True, "is not the folder of rank 0"),
        (5, [], False, "5 ranks, and the largest cohort has 4 clients"),
    ],
)
def test_bad_input_is_one_line_from_each_rank(size, last, apart, said, tmp_path):
    folders = [tmp_path / (str(r) if apart else "all") for r in range(size)]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    ends = ranks.run(size, "-m", "fedloom", "run", "digits", *FEW, last=last, where=folders)
    assert {end.code for end in ends} == {2}, ends
    assert len(lines_of(ends)) == size and all(said in line for line in lines_of(ends)), ends
    assert ends[0].err.startswith("error: ") and ends[1].err.startswith("rank 1: error: ")
    assert not any("Traceback" in end.err for end in ends)


@slow
def test_a_port_that_is_taken_is_named(tmp_path):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        processes = ranks.begin(
            2,
            "-m",
            "fedloom",
            "run",
            "digits",
            *FEW,
            "ranks.timeout=5",
            port=port,
            where=[tmp_path] * 2,
        )
        processes[1].kill()  # it waits for an answer of what listens there
        end = ranks.wait(processes, 60)[0]
    assert end.code == 2 and lines_of([end]) and f"127.0.0.1:{port}" in lines_of([end])[0], end
    assert "the port is in use" in end.err
