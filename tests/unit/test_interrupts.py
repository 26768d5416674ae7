"""Signals that stop a run: raised once, or later, or left to who handles them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from fedloom.core import interrupts
from fedloom.core.interrupts import Stopped, stoppable, undisturbed
from tiny import environment

STOPS = [signal.SIGTERM, signal.SIGHUP]


def handlers():
    return [signal.getsignal(n) for n in (signal.SIGINT, *STOPS)]


@pytest.fixture(autouse=True)
def _put_back():
    before = handlers()
    yield
    assert handlers() == before


@pytest.mark.parametrize("number", STOPS)
def test_a_signal_is_an_interruption_with_its_own_exit_code(number):
    with pytest.raises(KeyboardInterrupt) as caught, stoppable():
        signal.raise_signal(number)
    assert isinstance(caught.value, Stopped) and caught.value.code == 128 + number


def test_a_signal_waits_until_the_block_is_done():
    done = []
    with pytest.raises(Stopped), stoppable():
        with undisturbed():
            with undisturbed():
                signal.raise_signal(signal.SIGTERM)
                done.append("inner")
            done.append("outer")
        done.append("never")
    assert done == ["inner", "outer"]


def test_several_signals_at_once_are_one_wish_to_stop():
    saved = []
    with pytest.raises(KeyboardInterrupt) as caught, stoppable():
        try:
            os.kill(os.getpid(), signal.SIGHUP)
        except KeyboardInterrupt:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.raise_signal(number)  # before anything could begin to save
            saved.append(1)
            raise
    assert saved == [1] and isinstance(caught.value, Stopped)
    assert caught.value.code == 128 + signal.SIGHUP


def test_a_signal_that_somebody_swallowed_can_be_sent_again(monkeypatch):
    monkeypatch.setattr(interrupts, "_TOGETHER", 0.0)
    with pytest.raises(Stopped), stoppable():
        with pytest.raises(Stopped):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)


def test_what_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    try:
        with stoppable(), undisturbed():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_handler_of_the_users_is_called_after_the_block():
    came = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    try:
        with stoppable():
            with stoppable(), undisturbed():
                signal.raise_signal(signal.SIGTERM)
                assert came == []
            assert came == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


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
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 128 + signal.SIGTERM and done.stderr == ""
