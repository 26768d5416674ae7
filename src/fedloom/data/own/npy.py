"""Arrays of .npy and .npz files of a user: numbers only, and as many as the file holds."""

from __future__ import annotations

import math
import zipfile
import zlib
from os import PathLike
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from fedloom.core.parsing import shortened

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_DAMAGED = (
    EOFError,
    MemoryError,
    NotImplementedError,  # a compression that Python does not have
    OSError,
    OverflowError,
    RuntimeError,  # an encrypted member
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
)


def read_npy(path: str | PathLike[str]) -> npt.NDArray[Any]:
    """The array of a .npy file. Raises ValueError of one line, for a missing file too."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            return _array(file, size)
    except _DAMAGED as error:
        raise ValueError(_reason(error)) from None


def read_npz(path: str | PathLike[str]) -> dict[str, npt.NDArray[Any]]:
    """{name: array} of a .npz file. Raises ValueError of one line, for a missing file too."""
    out = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                try:
                    with archive.open(member) as file:
                        out[name] = _array(file, member.file_size)
                except _DAMAGED as error:
                    raise ValueError(f"array '{name[:60]}': {_reason(error)}") from None
    except _DAMAGED as error:
        raise ValueError(_reason(error)) from None
    return out


def _array(file: IO[bytes], size: int) -> npt.NDArray[Any]:
    """The array of an open file of `size` bytes; memory is allocated only after the header's shape
    was compared with them.
    """
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"its format is version {version}; numbers are written as 1.0 or 2.0")
    try:
        shape, _, dtype = _HEADERS[version](file)
    except Exception:  # it is parsed as Python, which fails in many ways
        raise ValueError("its header cannot be read") from None
    if dtype.hasobject:
        raise ValueError("it holds pickled Python objects, which are never loaded; save numbers")
    available, claimed = size - file.tell(), math.prod(shape) * dtype.itemsize
    if available != claimed or min(shape, default=0) < 0:
        raise ValueError(
            f"its header says shape {_short(shape)} and type {dtype}, {_short(claimed)} bytes, but "
            f"{available} are there"
        )
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)


def _reason(error: BaseException) -> str:
    """An error's text, on one line."""
    if isinstance(error, MemoryError):
        return "it does not fit into memory"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text.splitlines()[0][:300]


def _short(value: Any) -> str:
    try:
        text = str(value)
    except ValueError:  # Python's limit of digits
        return "thousands of digits"
    return shortened(text)
