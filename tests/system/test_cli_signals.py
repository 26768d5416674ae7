"""Signals to the command: what is saved, what it says, how it ends."""

import errno
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from fedloom.cli.__main__ import cli
from fedloom.server.rounds import Run
from tiny import environment

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


def saved(run):
    return sorted(p.parent.name for p in Path(run).glob("checkpoints/*/manifest.json"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_and_says_how_to_go_on(number, stop):
    done = stop(number, "run", *SMALL, "--out", "a")
    assert done.exit_code == 128 + number
    assert done.output.strip().endswith("interrupted; go on with: fedloom run --resume a")
    assert saved("a") == ["00000003"]


def test_a_signal_to_another_command_ends_it_with_the_same_code(stop):
    done = stop(signal.SIGTERM, "sweep", *SMALL, "local.lr=0.1,0.2", "--out", "s", "--quiet")
    assert done.exit_code == 143 and "run the same command again to resume" in done.output
    assert [saved(p) for p in Path("s").iterdir() if p.is_dir()] == [["00000003"]]
    Path("mine.py").write_text("from fedloom import FedAvg\n\n\nclass Mine(FedAvg):\n    pass\n")
    done = stop(signal.SIGTERM, "check", "mine.py")
    assert (done.exit_code, done.output.strip()) == (143, "interrupted")


def test_a_terminal_that_is_gone_changes_no_exit_code(stop, monkeypatch):
    def gone(*args, **kwargs):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(click, "echo", gone)
    assert stop(signal.SIGHUP, "run", *SMALL, "--out", "a").exit_code == 129
    assert saved("a") == ["00000003"]


# ----------------------------------------------------------------------------- in a process group
engines = pytest.mark.parametrize("engine", ["serial", "workers:2"])


def begin(folder, engine, *opens, **more):
    """A run that does not end by itself, in a session of its own -> its process and its log."""
    words = [sys.executable, "-m", "fedloom", "run", "rounds=100000", f"engine={engine}"]
    given = {"cwd": folder, "env": environment(), "start_new_session": True}
    process = subprocess.Popen([*opens, *words, "--out", "a"], **given, **more)
    log, until = folder / "a" / "rounds.jsonl", time.monotonic() + 120
    while not (log.exists() and log.read_bytes().count(b"\n") > 3):
        assert time.monotonic() < until
        time.sleep(0.05)
    return process, log


def all_is_saved(log):
    return int(saved(log.parent)[-1]) == log.read_bytes().count(b"\n")


@pytest.mark.slow
@engines
@pytest.mark.parametrize(
    "numbers", [[signal.SIGTERM], [signal.SIGHUP, signal.SIGTERM, signal.SIGHUP]]
)
def test_signals_to_a_whole_group_save(engine, numbers, tmp_path):
    process, log = begin(tmp_path, engine, stderr=subprocess.PIPE, text=True)
    for number in numbers:
        os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + numbers[0], errors
    assert errors.strip().endswith("go on with: fedloom run --resume a")
    assert "Traceback" not in errors and "died" not in errors
    assert all_is_saved(log)


def read_all(terminal):
    try:
        while os.read(terminal, 4096):
            pass
    except OSError:
        return


@pytest.mark.slow
@engines
def test_a_terminal_that_is_closed_saves(engine, tmp_path):
    terminal, other = pty.openpty()
    threading.Thread(target=read_all, args=(terminal,), daemon=True).start()
    # who begins a session and opens a terminal is hung up with it
    opens = ["sh", "-c", 'exec 0<>"$0" 1>&0 2>&0 "$@"', os.ttyname(other)]
    process, log = begin(tmp_path, engine, *opens)
    os.close(other)
    os.close(terminal)
    assert process.wait(120) == 128 + signal.SIGHUP
    assert all_is_saved(log)
