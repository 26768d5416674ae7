"""Records on disk: shape and numbers as JSON, and named tensors for safetensors."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file, save_model
from torch import Tensor, nn

from ..core.vector import Rec, aligned, is_rec, rec, tree
from .atomic import write_atomic

_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}
_THIN = ("only", "where", "of")


def freeze(record: Rec, prefix: str = "") -> tuple[Any, dict[str, Tensor]]:
    """-> (JSON description, {dotted path: tensor}). Leaves are tensors, numbers or None.

    >>> from fedloom.core.vector import rec
    >>> freeze(rec(x=torch.zeros(2), own=rec(), t=3.0))[0]
    {'fields': {'x': {'tensor': 'x'}, 'own': {'fields': {}}, 't': 3.0}}
    """
    if is_rec(record):
        shape: dict[str, Any] = {}
        tensors: dict[str, Tensor] = {}
        for name, value in zip(record._fields, record, strict=True):
            shape[name], more = freeze(value, f"{prefix}.{name}" if prefix else name)
            tensors |= more
        return {"fields": shape}, tensors
    if isinstance(record, Tensor):
        return {"tensor": prefix}, {prefix: record.detach().cpu().contiguous()}
    if record is None or isinstance(record, (int, float)):
        return record, {}
    raise TypeError(
        f"a record holds tensors and numbers, not {type(record).__name__} at '{prefix}'"
    )


def thaw(shape: Any, tensors: dict[str, Tensor], device: torch.device | str = "cpu") -> Rec:
    """The record that freeze() described. Raises KeyError for a missing tensor."""
    if isinstance(shape, dict) and "fields" in shape:
        return rec(**{k: thaw(v, tensors, device) for k, v in shape["fields"].items()})
    if isinstance(shape, dict):
        return aligned(tensors[shape["tensor"]].to(device))
    return shape


def sparsify(record: Rec) -> Rec:
    """The record with every vector that is zero nearly everywhere as its other values and a bit for
    each place, as of clients that hold a part of the model. densify() gives the same bits again.

    >>> from fedloom.core.vector import rec
    >>> sparsify(rec(c=torch.eye(1, 32)[0], last=3.0)).c
    rec(only=tensor([1.]), where=tensor([128,   0,   0,   0], dtype=torch.uint8), of=32)
    """
    return tree(lambda v: _thin(v) if isinstance(v, Tensor) else v, record)


def _thin(v: Tensor) -> Any:
    if v.ndim != 1 or v.dtype not in _BITS:
        return v
    marks = v.detach().view(_BITS[v.dtype]) != 0  # -0.0 is none of the zeros
    if 2 * int(marks.count_nonzero()) > len(v) or len(v) < 32:
        return v
    where = torch.from_numpy(np.packbits(marks.cpu().numpy()))
    return rec(only=v[marks], where=where, of=len(v))


def densify(record: Rec) -> Rec:
    """The record that sparsify() took."""
    if not is_rec(record):
        return record
    if record._fields != _THIN:
        return rec(**{k: densify(v) for k, v in zip(record._fields, record, strict=True)})
    marks = np.unpackbits(record.where.cpu().numpy(), count=int(record.of)).view(np.bool_)
    whole = record.only.new_zeros(int(record.of))
    whole[torch.from_numpy(marks).to(whole.device)] = record.only
    return whole


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    """Write a safetensors file whole or not at all. Raises OSError."""
    with disk_errors():
        write_atomic(path, lambda part: save_file(_apart(tensors), part, metadata=metadata))


def write_model(path: Path, module: nn.Module) -> None:
    """Write a module's state as safetensors, whole or not at all. Raises OSError."""
    with disk_errors():
        write_atomic(path, lambda part: save_model(module, str(part)))


@contextlib.contextmanager
def disk_errors() -> Iterator[None]:
    """Turn safetensors' errors about the file system, above all a full disk, into OSError."""
    try:
        yield
    except SafetensorError as error:
        match = re.search(r"os error (\d+)|Os { code: (\d+)", str(error))  # the second: 0.4
        number = int(match[1] or match[2]) if match else errno.EIO
        raise OSError(number, os.strerror(number) if match else str(error)) from error


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors that share memory with an earlier one, which safetensors refuses."""
    pointers: set[int] = set()
    out = {}
    for name, t in tensors.items():
        pointer = t.untyped_storage().data_ptr()
        out[name] = t.clone() if pointer in pointers and t.numel() else t
        pointers.add(pointer)
    return out
