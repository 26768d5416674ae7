"""What a run asks of the system: clocks, sleep, randomness, threads, and every change of a file.

Storage and the server's half of a deployment ask here and nowhere else, as `world.sync(path)`, so
that a simulation of faults can put a virtual clock and a disk that crashes in their place
(docs/faults.md). Files are read directly: the simulated disk is a folder.
"""

from __future__ import annotations

import contextlib
import os
import queue
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
Opener = Callable[[str, int], int]


monotonic = time.monotonic  # seconds, from any beginning; no change of the clock moves it
clock = time.time  # seconds since 1970, as the machine's clock says, which may be put back
sleep = time.sleep
urandom = os.urandom
truncate, replace = os.truncate, os.replace


def start(task: Callable[..., object], *arguments: Any) -> None:
    """Do something beside, in a thread that ends with the process."""
    threading.Thread(target=task, args=arguments, daemon=True).start()


def take(inbox: queue.SimpleQueue[T], seconds: float) -> T:
    """The next thing in a queue; waits so long at most. Raises queue.Empty."""
    return inbox.get(timeout=seconds)


def write(
    path: Path, content: bytes | Callable[[Path], None], opener: Opener | None = None
) -> None:
    """Write a whole file. content: the bytes, or a function that writes to a path. Raises
    OSError.
    """
    if not callable(content):
        with open(path, "wb", opener=opener) as file:
            file.write(content)
        return
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)  # the mode of a new file under the umask
    content(path)
    if stat.S_IMODE(path.stat().st_mode) != mode:  # safetensors makes files of its own
        path.chmod(mode)


def append(path: Path, raw: bytes, opener: Opener | None = None) -> None:
    """Add bytes to a file, which is made if it is not there. Raises OSError."""
    with open(path, "ab", opener=opener) as file:
        file.write(raw)


def open_handle(path: Path, flags: int) -> int:
    """A handle of a file. Raises OSError."""
    return os.open(path, flags, 0o666)


def sync(path: Path) -> None:
    """Force a file's content to the disk. Raises OSError."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Force a folder's entries to the disk, where the system can do that."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def unlink(path: Path) -> None:
    """Remove a file, if it is there. Raises OSError."""
    path.unlink(missing_ok=True)


def mkdir(folder: Path, mode: int = 0o777) -> None:
    """Make a folder, if it is not there. Raises OSError."""
    folder.mkdir(mode, exist_ok=True)


def rmdir(folder: Path) -> None:
    """Remove an empty folder. Raises OSError."""
    folder.rmdir()
