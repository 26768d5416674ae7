"""From lists, numpy arrays or tensors of a user to tensors for engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.errors import DataError

ONE_ARRAY = (
    "several inputs per sample are not supported; join them, as in "
    "torch.cat([a.flatten(1), b.flatten(1)], 1), and let the model's forward() take them apart"
)


def check_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return dtype if inputs may have it, else raise DataError."""
    if dtype not in (torch.float32, torch.float64):
        raise DataError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
    return dtype


def as_inputs(
    value: Any,
    dtype: torch.dtype = torch.float32,
    what: str = "inputs",
    stored: bool = False,
) -> Tensor:
    """Turn inputs (n, ...) into a tensor: floats and booleans to dtype, integers to int64 tokens.

    stored: keep the type, a transform is going to convert. Shares memory with the argument where no
    conversion is needed. Raises DataError, which begins with `what`, for uint8 images without a
    transform and for anything not a number.

    >>> as_inputs(np.zeros((2, 3))).dtype, as_inputs([[1, 2]]).dtype
    (torch.float32, torch.int64)
    """
    tensor = _as_tensor(value, what)
    if stored:
        return tensor
    if tensor.dtype == torch.uint8:
        raise DataError(
            f"{what} have type uint8, as images do; divide them by 255 to get float32, give "
            "transform=Images(...) (or turn tokens into int64)"
        )
    if tensor.is_floating_point() or tensor.dtype == torch.bool:
        return tensor.to(check_dtype(dtype))
    return tensor.to(torch.int64)


def one_input(inputs: Any, targets: Any, what: str = "inputs") -> None:
    """Raise DataError for several inputs per sample: a dictionary of arrays, or a tuple or list of
    other arrays than one per sample.
    """
    if isinstance(inputs, Mapping):
        got = f"a dictionary of {', '.join(map(str, inputs))}"
    elif isinstance(inputs, tuple | list) and hasattr(targets, "__len__"):
        sizes = {len(v) for v in inputs if getattr(v, "ndim", 0) > 0}
        if sizes != {len(targets)} or len(inputs) == len(targets):
            return
        got = f"{len(inputs)} arrays of {len(targets)} samples"
    else:
        return
    raise DataError(f"{what} are {got}, and a model gets one array: {ONE_ARRAY}")


def as_targets(value: Any, dtype: torch.dtype = torch.float32, what: str = "targets") -> Tensor:
    """Turn targets into a tensor: integers and booleans to int64 labels, floats to dtype.

    Raises DataError, which begins with `what`, for anything that is not a number.

    >>> as_targets(np.array([0, 1], dtype=np.uint8)).dtype, as_targets([0.5]).dtype
    (torch.int64, torch.float32)
    """
    tensor = _as_tensor(value, what)
    if tensor.is_floating_point():
        return tensor.to(check_dtype(dtype))
    return tensor.to(torch.int64)


def _as_tensor(value: Any, what: str) -> Tensor:
    tensor = value.detach() if isinstance(value, Tensor) else _from_numpy(value, what)
    if tensor.is_complex():
        raise DataError(f"{what} are complex numbers; give real numbers")
    if tensor.ndim == 0:
        raise DataError(f"{what} are a single number; the first dimension must count the samples")
    return tensor


def _from_numpy(value: Any, what: str) -> Tensor:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise DataError(f"{what} are not one array with equal rows: {error}") from error
    if array.dtype.kind not in "fiubc":
        raise DataError(f"{what} have type {array.dtype}; give numbers")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.ndim:
        array = np.ascontiguousarray(array)
    # torch warns of read-only arrays, because a tensor has no way to be read-only
    return torch.from_numpy(array if array.flags.writeable else array.copy())
