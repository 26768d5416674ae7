"""Signals to the command: what is saved, what it says, how it ends."""

from __future__ import annotations

import errno
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from fedloom.cli.__main__ import cli
from fedloom.server.rounds import Run
from tiny import environment

Stop = Callable[..., Result]
SMALL = ("rounds=5", "local.epochs=1")


@pytest.fixture
def stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stop:
    """Call a command in an empty folder; a signal comes in the third round of its first run."""
    monkeypatch.chdir(tmp_path)

    def call(number: int, *args: object) -> Result:
        commit = Run._commit

        def commit_and_stop(self: Run, *arguments: Any) -> None:
            commit(self, *arguments)
            if self.state.round == 3:
                signal.raise_signal(number)

        with monkeypatch.context() as patch:
            patch.setattr(Run, "_commit", commit_and_stop)
            return CliRunner().invoke(cli, [str(a) for a in args], prog_name="fedloom")

    return call


def saved(run: str | Path) -> list[str]:
    return sorted(p.parent.name for p in Path(run).glob("checkpoints/*/manifest.json"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_and_says_how_to_go_on(number: int, stop: Stop) -> None:
    done = stop(number, "run", *SMALL, "--out", "a")
    assert done.exit_code == 128 + number
    assert done.output.strip().endswith("interrupted; go on with: fedloom run --resume a")
    assert saved("a") == ["00000003"]


def test_a_signal_to_a_sweep_ends_it_with_the_same_code(stop: Stop) -> None:
    done = stop(signal.SIGTERM, "sweep", *SMALL, "local.lr=0.1,0.2", "--out", "s", "--quiet")
    assert done.exit_code == 143 and "run the same command again to resume" in done.output
    assert [saved(p) for p in Path("s").iterdir() if p.is_dir()] == [["00000003"]]


def test_a_signal_to_another_command_ends_it_with_the_same_code(stop: Stop) -> None:
    Path("mine.py").write_text("from fedloom import FedAvg\n\n\nclass Mine(FedAvg):\n    pass\n")
    done = stop(signal.SIGTERM, "check", "mine.py")
    assert (done.exit_code, done.output.strip()) == (143, "interrupted")


def test_a_terminal_that_is_gone_changes_no_exit_code(
    stop: Stop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(click, "echo", gone)
    assert stop(signal.SIGHUP, "run", *SMALL, "--out", "a").exit_code == 129
    assert saved("a") == ["00000003"]


# ----------------------------------------------------------------------------- in a process group
def command(engine: str) -> list[str]:
    words = ["-m", "fedloom", "run", "rounds=100000", f"engine={engine}", "--out", "a"]
    return [sys.executable, *words]


def wait_for_rounds(folder: Path) -> Path:
    rows, until = folder / "a" / "rounds.jsonl", time.monotonic() + 120
    while not (rows.exists() and rows.read_bytes().count(b"\n") > 3):
        assert time.monotonic() < until
        time.sleep(0.05)
    return rows


def last(folder: Path, rows: Path) -> None:
    """What is saved is what is done."""
    assert [int(name) for name in saved(folder / "a")][-1] == rows.read_bytes().count(b"\n")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["serial", "workers:2"])
@pytest.mark.parametrize(
    "numbers", [[signal.SIGTERM], [signal.SIGHUP, signal.SIGTERM, signal.SIGHUP]]
)
def test_signals_to_a_whole_group_save(engine: str, numbers: list[int], tmp_path: Path) -> None:
    process = subprocess.Popen(
        command(engine),
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    rows = wait_for_rounds(tmp_path)
    for number in numbers:
        os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + numbers[0], errors
    assert errors.strip().endswith("go on with: fedloom run --resume a")
    assert "Traceback" not in errors and "died" not in errors
    last(tmp_path, rows)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["serial", "workers:2"])
def test_a_terminal_that_is_closed_saves(engine: str, tmp_path: Path) -> None:
    terminal, other = pty.openpty()
    # who begins a session and opens a terminal is hung up with it
    opens = ["sh", "-c", 'exec 0<>"$0" 1>&0 2>&0 "$@"', os.ttyname(other)]
    process = subprocess.Popen(
        [*opens, *command(engine)], cwd=tmp_path, env=environment(), start_new_session=True
    )
    reading = threading.Thread(target=read_all, args=(terminal,), daemon=True)
    reading.start()
    rows = wait_for_rounds(tmp_path)
    os.close(other)
    os.close(terminal)
    assert process.wait(120) == 128 + signal.SIGHUP
    last(tmp_path, rows)


def read_all(terminal: int) -> None:
    try:
        while os.read(terminal, 4096):
            pass
    except OSError:
        return
