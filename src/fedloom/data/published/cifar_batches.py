"""The pickles of CIFAR-10 and CIFAR-100, read without running code in them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.data.dataset import check_labels
from fedloom.errors import DataError


def read_batch(path: Path, key: bytes, classes: int) -> tuple[Tensor, Tensor]:
    """Images (n, 3, 32, 32) uint8 and the labels (n,) int64 under this key. Raises DataError."""
    batch = unpickled(path)
    rows: Any = batch.get(b"data")
    labels: Any = batch.get(key)
    whole = isinstance(rows, np.ndarray) and rows.dtype == np.uint8 and rows.ndim == 2
    if not whole or rows.shape[1] != 3072 or not isinstance(labels, list):
        raise DataError(
            f"{path} holds no 'data' (n, 3072) uint8 with '{key.decode()}': it is no batch of "
            "CIFAR's; get it again"
        )
    if len(rows) != len(labels):
        raise DataError(f"{path} has {len(rows)} images, but {len(labels)} labels; get it again")
    images = torch.from_numpy(rows).view(-1, 3, 32, 32)
    return images, check_labels(torch.tensor(labels), classes, path)


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


def unpickled(path: Path) -> dict[bytes, Any]:
    """The content of a file. Raises DataError."""
    try:
        with path.open("rb") as file:
            value = _Unpickler(file, encoding="bytes").load()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # a damaged pickle can raise anything
        raise DataError(
            f"{path} is cut short or altered ({type(error).__name__}: {error}); get it again"
        ) from error
    if not isinstance(value, dict):
        raise DataError(f"{path} is no batch of images: it holds a {type(value).__name__}")
    return value
