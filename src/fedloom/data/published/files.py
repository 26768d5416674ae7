"""The files in which data sets are published: text, JSON, CSV, MNIST's idx, CIFAR's pickles, read
without running code in them; and a cache of arrays that take long to make of them.

The cache lies beside these files, in the folder .prepared; where that cannot be written, in the
user's cache. All of it may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import hashlib
import json
import os
import pickle
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.core.parsing import decoded, parse_json
from fedloom.errors import DataError


def read_text(path: Path) -> str:
    """A text file in UTF-8, with or without a byte order mark. Raises DataError if it is missing or
    in another encoding.
    """
    try:
        return decoded(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path} {error}, or get the file again") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def read_json(path: Path) -> Any:
    """A JSON file. Raises DataError for one that is cut short or no JSON."""
    try:
        return parse_json(read_text(path))
    except ValueError as error:
        raise DataError(f"{path} is no whole JSON file: {error}; get it again") from error


def read_rows(path: Path, columns: int | None = None, tabs: bool = False) -> Iterator[list[str]]:
    """The rows of a CSV file, or of one with tabs and without quotes; empty lines are left out.

    columns: how many every row must have; None: as many as the first. Raises DataError naming the
    line.
    """
    text = read_text(path)
    if tabs:
        rows: Iterator[list[str]] = (line.split("\t") for line in text.split("\n"))
    else:
        rows = csv.reader(text.splitlines(keepends=True), strict=True)
    try:
        for number, row in enumerate(rows, start=1):
            if not any(row):
                continue
            columns = columns or len(row)
            if len(row) != columns:
                raise DataError(
                    f"{path}, row {number}: {len(row)} columns, expected {columns}; the file is "
                    "cut short or altered: get it again"
                )
            yield row
    except csv.Error as error:
        raise DataError(f"{path} is no whole CSV file: {error}; get it again") from error


def read_idx(path: Path) -> Tensor:
    """The values of a verified idx file (gzipped if the name ends in .gz): two zero bytes, a type
    code, the number of dimensions, each as a big-endian 32-bit integer, then the values.
    """
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    kind, dimensions = {0x08: "u1", 0x0C: ">i4"}[raw[2]], raw[3]
    shape = np.frombuffer(raw, ">u4", count=dimensions, offset=4)
    values = np.frombuffer(raw, kind, offset=4 + 4 * dimensions).reshape(shape)
    return torch.from_numpy(values.astype(values.dtype.newbyteorder("=")))


def read_batch(path: Path, key: bytes) -> tuple[Tensor, Tensor]:
    """Images (n, 3, 32, 32) uint8 and the labels (n,) int64 under this key, of a verified file."""
    batch = unpickled(path)
    return torch.from_numpy(batch[b"data"]).view(-1, 3, 32, 32), torch.tensor(batch[key])


class _Unpickler(pickle.Unpickler):
    """Reads arrays and plain values; anything else in a pickle is refused, not run."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = {
            "_reconstruct": np.empty(0).__reduce__()[0],
            "ndarray": np.ndarray,
            # later versions of numpy warn of the flags that these old files give as numbers
            "dtype": lambda kind, *_: np.dtype(kind.decode() if isinstance(kind, bytes) else kind),
        }
        if module.split(".")[0] != "numpy" or name not in allowed:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which data do not need")
        return allowed[name]


def unpickled(path: Path) -> Any:
    """The object in a file, read without running code in it. Raises DataError."""
    try:
        with path.open("rb") as file:
            return _Unpickler(file, encoding="bytes").load()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # a damaged pickle can raise anything
        raise DataError(
            f"{path} is cut short or altered ({type(error).__name__}: {error}); get it again"
        ) from error


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
            return _cached(target)
        shutil.rmtree(target, ignore_errors=True)
        try:
            home.mkdir(parents=True, exist_ok=True)
            part = home / f".part-{secrets.token_hex(8)}"
            part.mkdir()  # not by tempfile, whose files only their owner can read
        except OSError:
            continue
        return _make(target, part, kind, make)
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


def _make(target: Path, part: Path, kind: str, make: Callable[[New], None]) -> dict[str, Array]:
    """Fill the folder `part`, which then becomes `place`."""
    try:
        make(lambda name, shape, dtype: _new_array(part / f"{name}.npy", shape, dtype))
        sums = {file.stem: _sum(file) for file in part.glob("*.npy")}
        (part / _SUMS).write_text(json.dumps(sums))
        for old in target.parent.glob(f"{kind}-*"):  # of other files than these
            if old != target:
                shutil.rmtree(old, ignore_errors=True)
        with contextlib.suppress(OSError):  # another process was faster
            os.replace(part, target)
        return _cached(target)
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


def _new_array(path: Path, shape: tuple[int, ...], dtype: Any) -> Array:
    if 0 in shape:  # nothing to map
        np.save(path, np.empty(shape, dtype))
        return np.empty(shape, dtype)
    return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)


def _cached(folder: Path) -> dict[str, Array]:
    arrays = {}
    for name, checksum in parse_json((folder / _SUMS).read_text()).items():
        path = folder / f"{name}.npy"
        if _sum(path) != checksum:
            raise ValueError(f"{path} is not as it was written")
        large = path.stat().st_size >= LARGE
        arrays[name] = np.load(path, mmap_mode="c" if large else None)
    return arrays
