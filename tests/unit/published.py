"""Tiny files in the layouts of the publishers, and how to write them."""

import json
import pickle
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def picture(path: Path, value: Any, size: tuple[int, int] = (4, 3), mode: str = "L") -> Path:
    """A picture of one colour."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)
    return path


def idx(array: np.ndarray, code: int) -> bytes:
    """An idx file."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
    return header + array.tobytes()


def leaf(folder: Path, **users: dict) -> None:
    """One LEAF file with these users' data."""
    counts = [len(data.get("y", ())) for data in users.values()]
    content = {"users": list(users), "num_samples": counts, "user_data": users}
    write(folder / "all_data_0.json", json.dumps(content))


class _Bytes(pickle._Pickler):
    """Python 2's texts, which is what the published pickles hold."""

    dispatch = pickle._Pickler.dispatch.copy()

    def save_bytes(self, value: bytes) -> None:
        self.write(pickle.BINSTRING + len(value).to_bytes(4, "little") + value)
        self.memoize(value)

    dispatch[bytes] = save_bytes


def python2(path: Path, value: dict) -> None:
    """A pickle of protocol 2 with Python 2's texts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        _Bytes(file, protocol=2).dump(value)


class Rows:
    """What fedloom needs of a datasets.Dataset."""

    def __init__(self, columns: dict[str, Any], classes: list[str] | None) -> None:
        self.columns, self.column_names = columns, list(columns)
        self.features = {} if classes is None else {"label": SimpleNamespace(names=classes)}

    def with_format(self, kind: Any) -> "Rows":
        return self

    def __len__(self) -> int:
        return len(self.columns[self.column_names[0]])

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]


def rows_of(classes: list[str] | None = None, **columns: Any) -> Rows:
    return Rows(columns, classes)
