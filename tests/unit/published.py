"""Tiny files in the layouts of the publishers, and how to write them."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from fedloom.errors import DataError, SettingError


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refused(call, *says):
    """What a DataError says, or the error of an option: one line with all of these in it."""
    with pytest.raises((DataError, SettingError)) as error:
        call()
    message = str(error.value)
    assert "\n" not in message
    for part in says:
        assert str(part) in message
    return message


def idx(array: np.ndarray, code: int) -> bytes:
    """An idx file."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
    return header + array.tobytes()


def leaf(folder: Path, **users: dict) -> None:
    """One LEAF file with these users' data."""
    content = {
        "users": list(users),
        "num_samples": [len(data.get("y", ())) for data in users.values()],
        "user_data": users,
    }
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


def cifar100(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """CIFAR-100's three files with one image a class -> pixels (n, 3072) and labels of train."""
    draw = np.random.default_rng(0)
    out = []
    for name in ("train", "test"):
        rows = draw.integers(0, 256, (100, 3072), dtype=np.uint8)
        labels = draw.permutation(100)
        python2(
            folder / name,
            {b"data": rows, b"fine_labels": labels.tolist(), b"coarse_labels": [0] * 100},
        )
        out.append((rows, labels))
    names = [f"class {i}".encode() for i in range(100)]
    python2(folder / "meta", {b"fine_label_names": names})
    return out[0]
