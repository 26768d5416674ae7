"""A lock on a file for the life of its process: the system releases it however the process ends.

Any container or PID namespace that sees the file can ask for the holder.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from . import world

_log = logging.getLogger(__name__)
_PATIENCE = 0.2  # seconds; a process that asks for the holder has the lock for a moment


@contextlib.contextmanager
def hold(path: Path) -> Iterator[Callable[[], bool]]:
    """Hold the lock of a file, which is created; returns a function that says whether another file
    has taken this path since.

    Raises BlockingIOError, whose strerror names the holder, and OSError for a file that cannot be
    written.
    """
    handle, owner = _locked(path), os.getpid()
    try:
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        with contextlib.suppress(OSError):  # a full disk; the lock holds without it
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"process {owner} on {platform.node()}, since {since}\n".encode(), 0)
        yield lambda: _replaced(handle, path)
    finally:
        if os.getpid() == owner:  # a process forked from this one shares the lock
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def holder(path: Path) -> str | None:
    """The holder of a file's lock, as text; None if it is not locked, or does not exist."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _words(handle)
    except OSError:  # no locks on this file system
        return None
    finally:
        os.close(handle)
    return None


def _locked(path: Path) -> int:
    """A handle of the file with its lock."""
    until = world.monotonic() + _PATIENCE
    while True:
        handle = world.open_handle(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and not _replaced(handle, path):
                return handle
        except BlockingIOError as error:
            if world.monotonic() > until:
                words = _words(handle)
                os.close(handle)
                raise BlockingIOError(error.errno, words) from None
            world.sleep(0.02)
        except OSError as error:
            _log.warning(
                "the file system of '%s' has no locks (%s): nothing keeps two processes from "
                "running there at once",
                path.parent,
                error.strerror,
            )
            return handle
        os.close(handle)


def _words(handle: int) -> str:
    text = os.pread(handle, 200, 0).decode(errors="replace").partition("\n")[0]
    return text if text.isprintable() and text else "an unknown process"


def _replaced(handle: int, path: Path) -> bool:
    try:
        current = os.stat(path)
    except OSError:  # gone, and nothing in its place
        return False
    locked = os.fstat(handle)
    return (current.st_dev, current.st_ino) != (locked.st_dev, locked.st_ino)
