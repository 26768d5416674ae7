"""Ctrl-C that waits until what must not be cut in two is done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["undisturbed"]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let Ctrl-C wait until the block is done: a state that is half old and half new would be
    lost.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came and callable(before):  # Python's own handler, or the note of a block around this one
        before(signal.SIGINT, None)
    elif came and before is not signal.SIG_IGN:
        raise KeyboardInterrupt
