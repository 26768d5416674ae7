"""Locks on files, several pieces of work at once, and signals that stop a run."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fedloom.core import interrupts
from fedloom.core.interrupts import Stopped, stoppable, undisturbed
from fedloom.errors import ConfigError, FedloomError
from fedloom.storage import locks
from fedloom.storage.locks import hold, holder
from fedloom.study.trial import Jobs
from tiny import environment

HOLD = """
import sys, time
from pathlib import Path
from fedloom.storage.locks import hold

with hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / ".lock"


def test_who_holds_a_lock_is_known_as_long_as_it_lives(path):
    assert holder(path) is None
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "held\n"
            words = holder(path)
            assert words.startswith(f"process {process.pid} on ")
            with pytest.raises(BlockingIOError) as caught:
                hold(path).__enter__()
            assert caught.value.strerror == words
        finally:
            process.kill()
    assert path.read_text().strip() == words and holder(path) is None
    with hold(path):
        assert holder(path).startswith(f"process {os.getpid()} on ")
    assert holder(path) is None


def test_asking_keeps_nobody_from_the_lock(path):
    done = threading.Event()

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


def test_a_lock_that_somebody_has_for_a_moment_is_waited_for(path, monkeypatch):
    flock, refused = locks.fcntl.flock, []

    def busy(handle, how):
        if how & locks.fcntl.LOCK_EX and len(refused) < 2:
            refused.append(handle)
            raise BlockingIOError
        flock(handle, how)

    monkeypatch.setattr(locks.fcntl, "flock", busy)
    monkeypatch.setattr(locks, "_PATIENCE", 60.0)  # a busy machine is slow
    with hold(path):
        assert len(refused) == 2


def test_a_lock_ends_with_its_block_though_a_fork_still_has_its_handle(path, monkeypatch):
    flock, forks = locks.fcntl.flock, []

    def forked(handle, how):
        flock(handle, how)
        if not forks:
            forks.append(os.dup(handle))  # shares the lock, as the handle of a fork does

    monkeypatch.setattr(locks.fcntl, "flock", forked)
    with hold(path):
        assert holder(path) is not None
    assert holder(path) is None
    os.close(*forks)


def test_a_lock_whose_file_was_replaced_says_so(path):
    with hold(path) as replaced:
        assert not replaced()
        path.unlink()
        assert not replaced()
        with hold(path) as second:
            assert replaced() and not second()


def test_where_there_are_no_locks_everybody_may_go_on_and_that_is_said_once(
    path, monkeypatch, caplog
):
    def none(*_):
        raise OSError(95, "Operation not supported")

    with monkeypatch.context() as patch:
        patch.setattr(locks.fcntl, "flock", none)
        with hold(path) as replaced:
            assert not replaced() and holder(path) is None
    (said,) = [record.getMessage() for record in caplog.records]
    assert f"'{path.parent}' has no locks (Operation not supported)" in said


def test_a_lock_can_be_written_by_whom_the_umask_allows(path):
    before = os.umask(0o002)
    try:
        with hold(path):
            assert path.stat().st_mode & 0o777 == 0o664
    finally:
        os.umask(before)


def test_what_is_no_lock_or_has_no_words_is_not_shown(path):
    notes = path.with_name("notes")
    notes.write_text("mine")
    path.symlink_to(notes)
    with pytest.raises(OSError):
        hold(path).__enter__()
    assert holder(path) is None and notes.read_text() == "mine"
    path.unlink()
    with hold(path):
        path.write_bytes(b"\x1b[2J\xff")
        assert holder(path) == "an unknown process"


class Adder:
    """Keeps a sum from piece to piece."""

    sum = 0

    def __call__(self, piece, say):
        self.sum += piece
        say(("has", piece))
        return piece, self.sum, len(os.sched_getaffinity(0))


def test_all_pieces_are_done_and_heard_of():
    begun, heard, pieces = [], [], [5, 6, 7, 8]
    ends = dict(Jobs(Adder(), 2).run(pieces, begun.append, lambda n, w: heard.append((n, w))))
    assert {n: piece for n, (piece, _, _) in ends.items()} == {n: n for n in pieces}
    assert sorted(begun) == pieces
    assert sorted(heard) == [(n, ("has", n)) for n in pieces]
    assert max(total for _, total, _ in ends.values()) > 8, "a process keeps what it has"
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    assert {processors for _, _, processors in ends.values()} == {share}


def misbehave(piece, say):
    """Raise, die, or wait for a stop and write that it came."""
    if piece == "raise":
        raise ConfigError("the piece is wrong")
    if piece == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if piece.startswith("/"):
        signal.signal(signal.SIGTERM, lambda *_: Path(piece).write_text("saved") and exit(0))
        say("ready")
        signal.pause()
    return piece


@pytest.mark.parametrize(
    ("piece", "kind", "said"),
    [
        ("raise", ConfigError, "the piece is wrong"),
        ("die", FedloomError, r"exit code -9.*run the same command again to resume"),
    ],
)
def test_what_goes_wrong_stops_all_and_is_said(piece, kind, said, tmp_path):
    file, ready = tmp_path / "file", []
    with pytest.raises(kind, match=said):
        # the second piece of one of two waits until it is stopped, if it has begun
        list(Jobs(misbehave, 2).run([str(file), piece], lambda _: None, lambda *w: ready.append(w)))
    assert file.is_file() or not ready


def test_a_stop_stops_all(tmp_path):
    files, heard = [str(tmp_path / name) for name in "ab"], []

    def hear(piece, what):
        heard.append(piece)
        if len(heard) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(Jobs(misbehave, 2).run(files, lambda _: None, hear))
    assert all(Path(file).read_text() == "saved" for file in files)


HUP, INT, TERM = signal.SIGHUP, signal.SIGINT, signal.SIGTERM


def handlers():
    return [signal.getsignal(n) for n in (INT, TERM, HUP)]


@pytest.fixture(autouse=True)
def _put_back():
    before = handlers()
    yield
    assert handlers() == before


@pytest.fixture
def handled():
    """Another handler of a signal for a test."""
    before = {}

    def by(number, handler):
        before[number] = signal.signal(number, handler)

    yield by
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [TERM, HUP])
def test_a_signal_is_an_interruption_with_its_own_exit_code(number):
    with pytest.raises(KeyboardInterrupt) as caught, stoppable():
        signal.raise_signal(number)
    assert isinstance(caught.value, Stopped) and caught.value.code == 128 + number


def test_a_signal_waits_until_the_block_is_done():
    done = []
    with pytest.raises(Stopped), stoppable():
        with undisturbed():
            with undisturbed():
                signal.raise_signal(TERM)
                done.append("inner")
            done.append("outer")
        done.append("never")
    assert done == ["inner", "outer"]


def test_several_signals_at_once_are_one_wish_to_stop():
    saved = []
    with pytest.raises(KeyboardInterrupt) as caught, stoppable():
        try:
            os.kill(os.getpid(), HUP)
        except KeyboardInterrupt:
            for number in (TERM, INT, HUP):
                signal.raise_signal(number)  # before anything could begin to save
            saved.append(1)
            raise
    assert saved == [1] and caught.value.code == 128 + HUP


def test_a_signal_that_somebody_swallowed_can_be_sent_again(monkeypatch):
    monkeypatch.setattr(interrupts, "_TOGETHER", 0.0)
    with pytest.raises(Stopped), stoppable():
        with pytest.raises(Stopped):
            signal.raise_signal(TERM)
        signal.raise_signal(TERM)


def test_what_is_ignored_stays_ignored(handled):
    handled(HUP, signal.SIG_IGN)  # nohup
    with stoppable(), undisturbed():
        signal.raise_signal(HUP)


def test_a_handler_of_the_users_is_called_after_the_block(handled):
    came = []
    handled(TERM, lambda number, frame: came.append(number))
    with stoppable():
        with stoppable(), undisturbed():
            signal.raise_signal(TERM)
            assert came == []
        assert came == [TERM]


def test_another_thread_changes_nothing():
    seen = []

    def elsewhere():
        with stoppable(), undisturbed():
            seen.append(handlers())

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [handlers()]


def test_a_script_that_catches_nothing_ends_with_the_usual_code():
    code = """
import os, signal
from fedloom.core.interrupts import stoppable
with stoppable():
    os.kill(os.getpid(), signal.SIGTERM)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment(), capture_output=True, check=False)
    assert done.returncode == 128 + TERM and done.stderr == b""
