"""Writing files so that a crash, or a full disk, leaves either the old one or the new one."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

__all__ = ["checksum", "reason", "remedy", "sync_folder", "write_atomic"]


def write_atomic(path: Path, content: bytes | str | Callable[[Path], None]) -> None:
    """Write a file under a temporary name, force it to the disk, then give it its name.

    content: what to write, or a function that writes to the path it is given. Raises OSError; then
    nothing is left.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        if callable(content):
            part.touch()
            mode = stat.S_IMODE(part.stat().st_mode)  # what the umask leaves to a new file
            content(part)
            if stat.S_IMODE(part.stat().st_mode) != mode:  # safetensors makes files of its own
                part.chmod(mode)
        else:
            part.write_bytes(content.encode() if isinstance(content, str) else content)
        with open(part, "rb+") as f:
            os.fsync(f.fileno())
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def reason(error: OSError) -> str:
    """What the system refused, and at which file where it says so.

    >>> reason(FileNotFoundError(2, "No such file or directory", "a/b"))
    "No such file or directory: 'a/b'"
    """
    said = error.strerror or str(error) or type(error).__name__
    return f"{said}: '{error.filename}'" if error.filename else said


def remedy(error: OSError) -> str:
    """What to do about a file that could not be written; only a full disk or quota needs room.

    >>> remedy(OSError(errno.ENOSPC, "No space left on device")), remedy(OSError(errno.EIO, "I/O"))
    ('make room', 'mend that')
    """
    return "make room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "mend that"


def checksum(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal. Raises OSError."""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """Force a folder's entries to the disk, where the system can do that."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
