"""Worker processes and the memory that they share: nobody else's is touched, one that stands still
is replaced, and no more are started than is of use.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fedloom.engines import shared
from fedloom.engines.shared import Board, load
from tiny import environment


# --------------------------------------------------------------------------- boards of other owners
def hold(told):
    """In another process: a board, until somebody ends this process."""
    board = Board()
    told.send((str(board.folder), board.post("something")))
    signal.pause()


@pytest.fixture
def other():
    """Another process with a board -> the process, the board's folder and a post on it."""
    context = multiprocessing.get_context("fork")
    told, tell = context.Pipe(duplex=False)
    process = context.Process(target=hold, args=(tell,))
    process.start()
    folder, post = told.recv()
    yield process, Path(folder), post
    process.kill()
    process.join()
    shutil.rmtree(folder, ignore_errors=True)


def test_a_board_is_swept_when_its_owner_has_died_and_not_before(other, monkeypatch):
    def unknown(pid, number):
        raise ProcessLookupError  # as in another PID namespace

    process, folder, post = other
    monkeypatch.setattr(os, "kill", unknown)
    Board().close()
    assert load(post) == "something"
    monkeypatch.undo()
    process.kill()
    process.join()
    Board().close()
    assert not folder.exists()


def test_what_is_not_a_board_of_this_user_is_left_alone(other, monkeypatch, tmp_path):
    process, folder, _ = other
    process.kill()
    process.join()
    (tmp_path / "kept").touch()
    link = folder.with_name("fedloom.board-link")
    older = folder.with_name("fedloom-999999999-of_another_version")
    link.symlink_to(tmp_path)
    older.mkdir()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "getuid", lambda: -1)
            Board().close()
        assert folder.exists()
        Board().close()
        assert not folder.exists()
        assert link.is_symlink() and (tmp_path / "kept").exists() and older.exists()
    finally:
        link.unlink()
        older.rmdir()


def test_a_folder_that_is_swept_before_it_is_locked_is_made_again(monkeypatch):
    made, make = [], tempfile.mkdtemp

    def swept(**options):
        made.append(make(**options))
        if len(made) < 3:
            shared._sweep(Path(made[-1]).parent)
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", swept)
    board = Board()
    assert [Path(folder).exists() for folder in made] == [False, False, True]
    assert board.folder == Path(made[-1])
    board.close()
    board.close()


@pytest.mark.slow
def test_a_run_in_another_pid_namespace_leaves_a_board_alone():
    apart = ["unshare", "--pid", "--fork", "--map-root-user", "--user"]
    if os.getuid() == 0:
        apart = apart[:3]
    try:
        subprocess.run([*apart, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no PID namespace may be made here")
    board = Board()
    try:
        post = board.post("something")
        code = "from fedloom.engines.shared import Board; Board().close()"
        subprocess.run([*apart, sys.executable, "-c", code], check=True, env=environment())
        assert load(post) == "something"
    finally:
        board.close()
