"""A cache for arrays that take long to make from a data set's files, beside these files."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = ".prepared"  # inside the data set's own folder
LARGE = 64 << 20  # bytes from which an array is mapped into memory instead of read

Array = np.ndarray[Any, np.dtype[Any]]
New = Callable[[str, tuple[int, ...], Any], Array]  # name, shape, type -> an array to fill


def prepared(
    folder: Path, kind: str, files: Iterable[Path], make: Callable[[New], None]
) -> dict[str, Array]:
    """{name: array} as `make` fills them, or from the cache if the files are the same.

    make(new) calls new(name, shape, dtype) for every array and fills it. The cache is
    <folder>/.prepared/<kind>-<hash of the files' names, sizes and times>; arrays of 64 MiB and more
    are mapped, copy on write. If the folder cannot be written, the arrays are made each time, in
    memory. kind: must change when `make` changes.
    """
    place = folder / FOLDER / f"{kind}-{_stamp(folder, files)}"
    if place.is_dir():
        with contextlib.suppress(OSError, ValueError):  # damaged: made again
            return _load(place)
        shutil.rmtree(place, ignore_errors=True)
    try:
        (folder / FOLDER).mkdir(exist_ok=True)
        part = folder / FOLDER / f".part-{secrets.token_hex(8)}"
        part.mkdir()  # not by tempfile, whose files only their owner can read
    except OSError:
        return _in_memory(make)
    try:
        make(lambda name, shape, dtype: _new(part / f"{name}.npy", shape, dtype))
        for old in (folder / FOLDER).glob(f"{kind}-*"):  # of other files than these
            shutil.rmtree(old, ignore_errors=True)
        with contextlib.suppress(OSError):  # another process was faster
            os.replace(part, place)
        return _load(place)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _stamp(folder: Path, files: Iterable[Path]) -> str:
    state = hashlib.sha256()
    for path in sorted(files):
        about = path.stat()
        name = path.relative_to(folder).as_posix()
        state.update(f"{name} {about.st_size} {about.st_mtime_ns}\n".encode())
    return state.hexdigest()[:16]


def _new(path: Path, shape: tuple[int, ...], dtype: Any) -> Array:
    if 0 in shape:  # nothing to map
        np.save(path, np.empty(shape, dtype))
        return np.empty(shape, dtype)
    return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)


def _in_memory(make: Callable[[New], None]) -> dict[str, Array]:
    out: dict[str, Array] = {}
    make(lambda name, shape, dtype: out.setdefault(name, np.zeros(shape, dtype)))
    return out


def _load(place: Path) -> dict[str, Array]:
    files = sorted(place.glob("*.npy"))
    if not files:
        raise ValueError(f"{place} is empty")
    return {
        path.stem: np.load(path, mmap_mode="c" if path.stat().st_size >= LARGE else None)
        for path in files
    }
