"""Records as named arrays of bytes: what a message costs, and what would travel."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .vector import Rec, as_bytes, fields, is_rec, rec

__all__ = ["nbytes", "pack", "unpack"]

_NUMBER = 8  # a plain number travels as a double


def nbytes(record: Rec) -> dict[str, int]:
    """{field: bytes} of a record, without packing it. A vector travels dense in its own type, a
    number as a double.

    >>> from fedloom.vector import rec
    >>> nbytes(rec(delta=torch.zeros(10), weight=3.0))
    {'delta': 40, 'weight': 8}
    """
    return {
        name: v.numel() * v.element_size() if isinstance(v, torch.Tensor) else _NUMBER
        for name, v in fields(record).items()
    }


def pack(record: Rec) -> dict[str, bytes]:
    """{field: its bytes}, little-endian."""
    out = {}
    for name, v in fields(record).items():
        if isinstance(v, torch.Tensor):
            out[name] = as_bytes(v).numpy().tobytes()
        else:
            out[name] = np.float64(v).tobytes()
    return out


def unpack(packet: dict[str, bytes], like: Rec) -> Rec:
    """The record again; `like` has the same fields and gives types and shapes. Raises ValueError
    for a wrong length.
    """
    return _unpack(packet, like, "")


def _unpack(packet: dict[str, bytes], like: Any, path: str) -> Any:
    if is_rec(like):
        return rec(
            **{
                name: _unpack(packet, value, f"{path}.{name}" if path else name)
                for name, value in zip(like._fields, like, strict=True)
            }
        )
    raw = packet[path]
    if not isinstance(like, torch.Tensor):
        return float(np.frombuffer(raw, np.float64, count=1)[0])
    if len(raw) != like.numel() * like.element_size():
        raise ValueError(
            f"field '{path}' has {len(raw)} bytes, "
            f"but {like.numel() * like.element_size()} are needed"
        )
    if not raw:
        return torch.empty_like(like)
    return torch.frombuffer(bytearray(raw), dtype=like.dtype).view(like.shape).to(like.device)
