"""Signals that stop a run: raised once, or later, or left to who handles them."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from fedloom.core import interrupts
from fedloom.core.interrupts import Stopped, stoppable, undisturbed
from tiny import environment

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
