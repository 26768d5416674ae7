"""A cache for arrays that take long to make from a data set's files.

It lies beside these files, in the folder .prepared; where that cannot be written, in the user's
cache. All of it may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.core.parsing import parse_json

_SUMS = "checksums.json"  # {array: checksum, none of a large one}
FOLDER = ".prepared"  # inside the data set's own folder
LARGE = 64 << 20  # bytes from which an array is mapped into memory instead of read
CHECKED = 256 << 20  # bytes of a file up to which its checksum is looked at: a fifth of a second

Array = np.ndarray[Any, np.dtype[Any]]
New = Callable[[str, tuple[int, ...], Any], Array]  # name, shape, type -> an array to fill


def prepared(
    folder: Path, kind: str, files: Iterable[Path], make: Callable[[New], None]
) -> dict[str, Array]:
    """{name: array} as `make` fills them, or from the cache if the files are the same.

    make(new) calls new(name, shape, dtype) for every array and fills it. The cache is
    <folder>/.prepared/<kind>-<hash of the files' names, sizes and times>; arrays of 64 MiB and more
    are mapped, copy on write. Several processes may make it at once. What is cut short is made
    again, and files of up to 256 MiB also if a bit is wrong. If no folder can be written, the
    arrays are made each time, in memory. kind: must change when `make` changes.
    """
    files = list(files)
    for home in _homes(folder):
        target = home / f"{kind}-{_stamp(folder, files)}"
        with contextlib.suppress(OSError, ValueError):  # there is none, or it is damaged
            return _load(target)
        shutil.rmtree(target, ignore_errors=True)
        try:
            home.mkdir(parents=True, exist_ok=True)
            part = home / f".part-{secrets.token_hex(8)}"
            part.mkdir()  # not by tempfile, whose files only their owner can read
        except OSError:
            continue
        return _fill(target, part, kind, make)
    out: dict[str, Array] = {}
    make(lambda name, shape, dtype: out.setdefault(name, np.zeros(shape, dtype)))
    return out


def _homes(folder: Path) -> list[Path]:
    """Where the arrays of a data set may lie: beside its files, in FEDLOOM_CACHE (nowhere else if
    that is empty), in the user's cache.
    """
    cache = os.environ.get("FEDLOOM_CACHE")
    if cache is None:
        cache = os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "fedloom")
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
    return [folder / FOLDER, *([Path(cache).expanduser() / "prepared" / name] if cache else [])]


def _fill(target: Path, part: Path, kind: str, make: Callable[[New], None]) -> dict[str, Array]:
    """Fill the folder `part`, which then becomes `place`."""
    try:
        make(lambda name, shape, dtype: _new(part / f"{name}.npy", shape, dtype))
        sums = {file.stem: _sum(file) for file in part.glob("*.npy")}
        (part / _SUMS).write_text(json.dumps(sums))
        for old in target.parent.glob(f"{kind}-*"):  # of other files than these
            if old != target:
                shutil.rmtree(old, ignore_errors=True)
        with contextlib.suppress(OSError):  # another process was faster
            os.replace(part, target)
        return _load(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _sum(file: Path) -> str | None:
    if file.stat().st_size > CHECKED:
        return None
    with file.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _stamp(folder: Path, files: Iterable[Path]) -> str:
    state = hashlib.sha256()
    for path in sorted(files):
        info = path.stat()
        name = path.relative_to(folder).as_posix()
        state.update(f"{name} {info.st_size} {info.st_mtime_ns}\n".encode())
    return state.hexdigest()[:16]


def _new(path: Path, shape: tuple[int, ...], dtype: Any) -> Array:
    if 0 in shape:  # nothing to map
        np.save(path, np.empty(shape, dtype))
        return np.empty(shape, dtype)
    return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)


def _load(folder: Path) -> dict[str, Array]:
    arrays = {}
    for name, checksum in parse_json((folder / _SUMS).read_text()).items():
        path = folder / f"{name}.npy"
        if _sum(path) != checksum:
            raise ValueError(f"{path} is not as it was written")
        large = path.stat().st_size >= LARGE
        arrays[name] = np.load(path, mmap_mode="c" if large else None)
    return arrays
