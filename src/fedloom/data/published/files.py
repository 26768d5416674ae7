"""The files in which data sets are published: text, JSON and CSV; the idx format of MNIST and its
kin; the pickles of CIFAR, read without running code in them. Errors name the damaged file.
"""

from __future__ import annotations

import csv
import gzip
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

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


def unpickle(file: IO[bytes], path: Path, encoding: str = "ASCII") -> Any:
    """The object in an open file, read without running code in it. Raises DataError, which names
    the path.
    """
    try:
        return _Unpickler(file, encoding=encoding).load()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # a damaged pickle can raise anything
        raise DataError(
            f"{path} is cut short or altered ({type(error).__name__}: {error}); get it again"
        ) from error


def unpickled(path: Path) -> Any:
    """The object in a file. Raises DataError."""
    with path.open("rb") as file:
        return unpickle(file, path, "bytes")
