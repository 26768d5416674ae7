"""The idx format, in which MNIST and its kin are published."""

from __future__ import annotations

import gzip
import math
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.errors import DataError

TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}

Array = np.ndarray[Any, np.dtype[Any]]


def decoded(path: Path) -> Array:
    """The array of an idx file, read-only; an unchanged file is decoded once."""
    state = path.stat()
    return _once(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=8)  # two sets of four files: several seeds in one process decode once
def _once(path: Path, mtime: int, size: int) -> Array:
    array = read_idx(path)
    array.flags.writeable = False
    return array


def read_idx(path: Path) -> Array:
    """Return the array of an idx file (gzipped if the name ends in .gz), in native byte order.

    The format: two zero bytes, a type code, the number of dimensions, each dimension as a
    big-endian 32-bit integer, then the values. Raises DataError for a file that is missing,
    truncated, longer than its header says, or not idx.
    """
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, MemoryError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}; get the file again") from error
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in TYPES or len(raw) < 4 + 4 * raw[3]:
        raise DataError(f"{path} is no idx file: it begins with {raw[:4].hex() or 'nothing'}")
    start = 4 + 4 * raw[3]
    shape = tuple(int(n) for n in np.frombuffer(raw, ">u4", count=raw[3], offset=4))
    dtype = np.dtype(TYPES[raw[2]])
    expected = start + math.prod(shape) * dtype.itemsize
    if len(raw) != expected:
        raise DataError(
            f"{path} has {len(raw)} bytes, but its header (shape {shape}, type {dtype}) asks for "
            f"{expected}; get the file again"
        )
    if len(shape) > 32:
        raise DataError(f"{path} has {len(shape)} dimensions; data sets have a few")
    values = np.frombuffer(raw, dtype, offset=start).reshape(shape)
    return values.astype(dtype.newbyteorder("="))
