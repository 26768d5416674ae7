"""Records on disk: a JSON description of their shape and numbers, and named tensors for
safetensors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .vector import Rec, is_rec, rec

__all__ = ["freeze", "thaw"]


def freeze(record: Rec, prefix: str = "") -> tuple[Any, dict[str, Tensor]]:
    """-> (JSON description, {dotted path: tensor}). Leaves are tensors, numbers or None.

    >>> from fedloom.vector import rec
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
        return tensors[shape["tensor"]].to(device)
    return shape
