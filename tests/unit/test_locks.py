"""Locks on files: who lives holds them, who died does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from fedloom.storage import locks
from fedloom.storage.locks import hold, holder
from tiny import environment

HOLD = """
import sys, time
from pathlib import Path
from fedloom.storage.locks import hold

with hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def begin(path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_who_holds_a_lock_can_be_asked_as_long_as_it_lives(tmp_path):
    path = tmp_path / ".lock"
    assert holder(path) is None
    process = begin(path)
    try:
        words = holder(path)
        assert words is not None and words.startswith(f"process {process.pid} on ")
        with pytest.raises(BlockingIOError) as caught:
            hold(path).__enter__()
        assert caught.value.strerror == words
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        assert path.read_text().strip() == words and holder(path) is None
        with hold(path):
            assert (holder(path) or "").startswith(f"process {os.getpid()} on ")
        assert holder(path) is None
    finally:
        process.kill()
        process.communicate()


def test_asking_keeps_nobody_from_the_lock(tmp_path):
    path, done = tmp_path / ".lock", threading.Event()

    def ask():
        while not done.is_set():
            holder(path)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for _ in range(50):
            with hold(path):
                pass
    finally:
        done.set()
        asking.join()


def test_a_lock_that_somebody_has_for_a_moment_is_waited_for(tmp_path, monkeypatch):
    flock, refused = locks.fcntl.flock, []

    def busy(handle, how):
        if how & locks.fcntl.LOCK_EX and len(refused) < 2:
            refused.append(handle)
            raise BlockingIOError
        flock(handle, how)

    monkeypatch.setattr(locks.fcntl, "flock", busy)
    monkeypatch.setattr(locks, "_PATIENCE", 60.0)  # a busy machine is slow
    with hold(tmp_path / ".lock"):
        assert len(refused) == 2


def test_a_lock_ends_with_its_block_though_a_fork_still_has_its_handle(tmp_path, monkeypatch):
    locked, forks = locks._locked, []

    def forked(path):
        handle = locked(path)
        forks.append(os.dup(handle))  # shares the lock, as the handle of a fork does
        return handle

    monkeypatch.setattr(locks, "_locked", forked)
    with hold(tmp_path / ".lock"):
        assert holder(tmp_path / ".lock") is not None
    assert holder(tmp_path / ".lock") is None
    os.close(*forks)


def test_a_lock_whose_file_was_replaced_says_so(tmp_path):
    path = tmp_path / ".lock"
    with hold(path) as replaced:
        assert not replaced()
        path.unlink()
        assert not replaced()
        with hold(path) as second:
            assert replaced() and not second()


def test_where_there_are_no_locks_everybody_may_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "fcntl", None)
    with locks.hold(tmp_path / ".lock") as replaced, locks.hold(tmp_path / ".lock"):
        assert not replaced() and locks.holder(tmp_path / ".lock") is None
    assert not (tmp_path / ".lock").exists()


def test_a_file_system_without_locks_is_said_once(tmp_path, monkeypatch, caplog):
    def none(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(locks.fcntl, "flock", none)
    with hold(tmp_path / ".lock") as replaced:
        assert not replaced() and holder(tmp_path / ".lock") is None
    (said,) = [record.getMessage() for record in caplog.records]
    assert f"'{tmp_path}' has no locks (Operation not supported)" in said


def test_a_lock_can_be_written_by_whom_the_umask_allows(tmp_path):
    before = os.umask(0o002)
    try:
        with hold(tmp_path / ".lock"):
            assert (tmp_path / ".lock").stat().st_mode & 0o777 == 0o664
    finally:
        os.umask(before)


def test_a_link_is_no_lock(tmp_path):
    (tmp_path / "notes").write_text("mine")
    (tmp_path / ".lock").symlink_to(tmp_path / "notes")
    with pytest.raises(OSError):
        hold(tmp_path / ".lock").__enter__()
    assert holder(tmp_path / ".lock") is None and (tmp_path / "notes").read_text() == "mine"


def test_words_that_are_no_words_are_not_shown(tmp_path):
    path = tmp_path / ".lock"
    with hold(path):
        path.write_bytes(b"\x1b[2J\xff")
        assert holder(path) == "an unknown process"
