"""Processes that end with the one that started them, also if that is killed."""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
from collections.abc import Callable
from typing import Any


def ended_with_parent(number: int, parent: int | None = None) -> Callable[[], None]:
    """What a new process calls to get a signal when the thread that started it ends, however that
    was; on Linux only. number: the signal, or 0 for none any more; parent: the process that started
    it, by default this one.
    """
    if sys.platform != "linux":
        return lambda: None
    prctl = ctypes.CDLL(None).prctl  # found here: between fork and exec little is allowed
    parent = os.getpid() if parent is None else parent

    def ask() -> None:
        prctl(1, number)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:  # it ended before it could be asked for
            os.kill(os.getpid(), signal.SIGKILL)

    return ask


def begin_guarded(parent: int, module: str, name: str, *arguments: Any) -> None:
    """Call a function of a module whose import takes long, in a new process that ends with its
    parent meanwhile. Afterwards only the function itself watches the parent: what started this
    process may be a thread, which ends before the parent does.
    """
    ended_with_parent(signal.SIGKILL, parent)()
    function = getattr(importlib.import_module(module), name)
    ended_with_parent(0, parent)()
    function(*arguments)
