"""Signals that stop a run (Ctrl-C, SIGTERM, SIGHUP): the run saves its state, and signals wait
until an indivisible step is done.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TOGETHER = 1.0  # seconds; closer signals count as one, because a process group gets several


class Stopped(KeyboardInterrupt, SystemExit):
    """SIGTERM or SIGHUP stopped the run, as Ctrl-C does. If it is not caught, the process ends with
    the usual exit code, 128 + the signal's number.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number, self.code = number, 128 + number

    def __reduce__(self) -> tuple[type[Stopped], tuple[int]]:
        return Stopped, (self.number,)  # another rank may have to hear of it


class TimeUpError(KeyboardInterrupt):
    """The time for several runs is over: what runs is saved, as after Ctrl-C."""


@dataclass
class _State:
    before: dict[int, Any] = field(default_factory=dict)  # the handlers that ours replace
    blocks: int = 0  # number of open undisturbed() blocks
    waiting: list[tuple[int, float]] = field(
        default_factory=list
    )  # a signal in one of them, and its time
    last: float = -math.inf  # time of the last signal


_STATE = _State()


@contextmanager
def stoppable() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP raise Stopped as Ctrl-C raises KeyboardInterrupt, and all three
    wait for undisturbed(). Ignored signals (nohup) stay ignored, and a user's handler is called.
    """
    replaced: dict[int, Any] = {}
    try:
        for number in _STOPS if _in_main_thread() else ():
            before = signal.getsignal(number)
            if before not in (None, signal.SIG_IGN, _receive):
                replaced[number] = _STATE.before[number] = before
                signal.signal(number, _receive)
        if replaced:
            _STATE.waiting, _STATE.last = [], -math.inf
        yield
    finally:
        with undisturbed():
            for number in reversed(replaced):
                signal.signal(number, replaced[number])


@contextmanager
def undisturbed() -> Iterator[None]:
    """Signals wait until the block is done: a state that is half old and half new would be lost."""
    if not _in_main_thread():
        yield
        return
    _STATE.blocks += 1
    try:
        yield
    finally:
        _STATE.blocks -= 1
        waiting = [] if _STATE.blocks else _STATE.waiting
        if waiting:
            _STATE.waiting = []
    for number, moment in waiting:
        _obey(number, None, moment)


@contextmanager
def heeding() -> Iterator[None]:
    """Inside an undisturbed() block, signals come through again; those that waited do so now."""
    if not _in_main_thread():
        yield
        return
    blocks, waiting = _STATE.blocks, _STATE.waiting
    _STATE.blocks, _STATE.waiting = 0, []
    try:
        for number, moment in waiting:
            _obey(number, None, moment)
        yield
    finally:
        _STATE.blocks = blocks


def leave_to_parent() -> None:
    """Ignore these signals in a worker process: its parent handles them."""
    for number in _STOPS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def block_hangups() -> Iterator[None]:
    """Processes started inside never receive SIGHUP; here it waits until the block is done. For
    helper processes of libraries, which would end with the terminal while they are needed.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _receive(number: int, frame: FrameType | None) -> None:
    if _STATE.blocks:
        _STATE.waiting.append((number, time.monotonic()))
    else:
        _obey(number, frame, time.monotonic())


def _obey(number: int, frame: FrameType | None, at: float) -> None:
    before = _STATE.before[number]
    if callable(before) and before is not signal.default_int_handler:
        before(number, frame)
        return
    if at - _STATE.last < _TOGETHER:
        return  # the run is stopping; later signals count again, in case this one was caught
    _STATE.last = at
    raise KeyboardInterrupt if number == signal.SIGINT else Stopped(number)
