"""Records as named arrays of bytes, and their sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from ..errors import WireError
from .vector import Rec, as_bytes, fields, is_rec, rec

_NUMBER = 8  # a plain number is sent as a double


def nbytes(record: Rec) -> dict[str, int]:
    """{field: bytes} of a record, without packing it. A vector is sent dense in its own type, a
    number as a double.

    >>> from fedloom.core.vector import rec
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


def unpack(packet: Mapping[str, bytes], like: Rec) -> Rec:
    """The record; `like` has the same fields and gives types and shapes. Raises WireError for other
    fields, objects that are not bytes, a wrong length, and a truth value that is neither 0 nor 1.
    """
    sizes = nbytes(like)
    same_fields(packet, sizes)
    for name, size in sizes.items():
        if not isinstance(packet[name], (bytes, bytearray)):
            kind = type(packet[name]).__name__
            raise WireError(f"field '{name}' must be bytes, got {kind}")
        if len(packet[name]) != size:
            raise WireError(f"field '{name}' has {len(packet[name])} bytes, but {size} are needed")
    return _unpack(packet, like, "")


def same_fields(packet: Mapping[str, bytes], expected: Iterable[str]) -> None:
    """Raise WireError unless a packet has these fields and no others."""
    if not isinstance(packet, Mapping):
        raise WireError(f"a packet must be fields with their bytes, got {type(packet).__name__}")
    if odd := set(packet) ^ (names := set(expected)):
        raise WireError(
            f"a packet has the fields {sorted(map(str, packet))}; an update has {sorted(names)}, "
            f"so {sorted(map(str, odd))} cannot be"
        )


def _unpack(packet: Mapping[str, bytes], like: Any, path: str) -> Any:
    if is_rec(like):
        return rec(
            **{
                name: _unpack(packet, value, f"{path}.{name}" if path else name)
                for name, value in zip(like._fields, like, strict=True)
            }
        )
    raw = packet[path]
    if not isinstance(like, torch.Tensor):
        return float(np.frombuffer(raw, np.float64)[0])
    if like.dtype == torch.bool and raw and max(raw) > 1:
        raise WireError(f"field '{path}' has the truth value {max(raw)}; it is 0 or 1")
    if not raw:
        return torch.empty_like(like)
    return torch.frombuffer(bytearray(raw), dtype=like.dtype).view(like.shape).to(like.device)
