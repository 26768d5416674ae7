"""Writing files so that a crash, or a full disk, leaves either the old one or the new one."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, ConfigError
from . import world

_PART = re.compile(r"\..+\.[0-9]+\.part")  # the name of an unfinished file in write_atomic
_CHUNK = 1 << 20


def write_atomic(path: Path, content: bytes | str | Callable[[Path], None]) -> None:
    """Write a file under a temporary name, force it to the disk, then rename it.

    content: the bytes or text, or a function that writes to a path. Raises OSError; then nothing is
    left.
    """
    part = path.with_name(f".{path.name[:200]}.{os.getpid()}.part")
    try:
        world.write(part, content.encode() if isinstance(content, str) else content)
        world.sync(part)
        world.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            world.unlink(part)
        raise
    world.sync_folder(path.parent)


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Make a folder, and those above it that are not there, and force their names to the disk:
    what is written into a folder is lost with its name. Raises OSError.
    """
    if folder.is_dir():
        return
    if not folder.parent.exists():
        make_folder(folder.parent)
    world.mkdir(folder, mode)
    world.sync_folder(folder.parent)


def append_line(path: Path, line: str, opener: world.Opener | None = None) -> None:
    """Add a line to a file and force it to the disk, in the place of what a crash left of another
    one. Raises OSError.
    """
    new = not path.exists()
    if not new and not path.read_bytes().endswith(b"\n"):
        world.truncate(path, path.read_bytes().rfind(b"\n") + 1)
    world.append(path, line.encode() + b"\n", opener)
    world.sync(path)
    if new:
        world.sync_folder(path.parent)


def write_out(out: Path, content: bytes | str | Callable[[Path], None]) -> Path:
    """Write a file that a user named, and the folders that it lacks -> it. Raises ConfigError for a
    place where no file can be, CheckpointError for a disk that takes no more.
    """
    try:
        make_folder(out.parent)
        write_atomic(out, content)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO)
        raise (CheckpointError if full else ConfigError)(
            f"'{out}' cannot be written: {error.strerror or error}; choose another place"
        ) from None
    return out


def reason(error: OSError) -> str:
    """The system's reason for an error, and the file if it names one.

    >>> reason(FileNotFoundError(2, "No such file or directory", "a/b"))
    "No such file or directory: 'a/b'"
    """
    text = error.strerror or str(error) or type(error).__name__
    return f"{text}: '{error.filename}'" if error.filename else text


_ADVICE = {
    (errno.ENOSPC, errno.EDQUOT): "make room",
    (errno.ENOENT, errno.ENOTDIR, errno.ESTALE): "put it back, or find what removes it",
    (errno.EACCES, errno.EPERM, errno.EROFS): "change who may use it",
    (errno.EIO,): "check the disk",
    (errno.EMFILE, errno.ENFILE): "close files, or raise the limit (ulimit -n)",
    (errno.ENOMEM,): "free memory",
}


def remedy(error: OSError) -> str:
    """What to do about a system error; only a full disk or quota needs room.

    >>> remedy(OSError(errno.ENOSPC, "No space left on device")), remedy(OSError("?"))
    ('make room', 'mend that')
    """
    return next((hint for numbers, hint in _ADVICE.items() if error.errno in numbers), "mend that")


def concerns(error: OSError, folder: Path) -> bool:
    """True if an error may be about a file of this folder, not about another named file."""
    name = error.filename
    return not isinstance(name, str) or Path(folder).absolute() in Path(name).absolute().parents


def parts(folder: Path) -> list[Path]:
    """Temporary files in a folder that a killed process left."""
    if folder.is_symlink() or not folder.is_dir():
        return []
    return [
        p
        for p in folder.iterdir()
        if _PART.fullmatch(p.name) and p.is_file() and not p.is_symlink()
    ]


def checksum(path: Path, size: int | None = None) -> str:
    """SHA-256 of a file's content, or of its first bytes, in hexadecimal. Raises OSError."""
    return str(running_checksum(path, size).hexdigest())


def running_checksum(path: Path, size: int | None = None) -> Any:
    """The same as a hashlib object, to which more can be added. Raises OSError."""
    state = hashlib.sha256()
    with open(path, "rb") as f:
        while raw := f.read(_CHUNK if size is None else min(size, _CHUNK)):
            state.update(raw)
            size = None if size is None else size - len(raw)
    return state
