"""Records, lists and dictionaries compared: to the bit, within rounding, before and after."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..core.vector import as_bytes


def imprint(value: Any) -> dict[str, Any]:
    """Everything in a value as {path: what later changes cannot reach}. Callables are left out.

    >>> imprint((torch.ones(1), 2.0))
    {'0': ('torch.float32', (1,), b'\\x00\\x00\\x80?'), '1': '2.0'}
    """
    out: dict[str, Any] = {}
    for path, leaf in _leaves(value, ""):
        if isinstance(leaf, Tensor):
            out[path] = str(leaf.dtype), tuple(leaf.shape), as_bytes(leaf).numpy().tobytes()
        elif not callable(leaf):
            out[path] = repr(leaf) if isinstance(leaf, float) else leaf  # NaN is NaN, and 1.0 no 1
    return out


def _leaves(value: Any, path: str) -> list[tuple[str, Any]]:
    pairs: Iterable[tuple[Any, Any]]
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, (tuple, list)):
        pairs = zip(getattr(value, "_fields", range(len(value))), value, strict=True)
    else:
        return [(path, value)]
    join = f"{path}." if path else ""
    return [leaf for name, v in pairs for leaf in _leaves(v, f"{join}{name}")]


def differing_path(before: dict[str, Any], after: dict[str, Any]) -> str:
    """The first path at which two imprints differ; "" where none does."""
    for path in [*before, *after]:
        if path not in before or path not in after or before[path] != after[path]:
            return path or "value"
    return ""


def unequal(one: Any, other: Any) -> str:
    """Where two records differ in a bit; "" where they do not.

    >>> from fedloom.core.vector import rec
    >>> unequal(rec(x=torch.ones(2)), rec(x=torch.zeros(2)))
    'x'
    """
    return differing_path(imprint(one), imprint(other))


def unlike(one: Any, other: Any, tolerance: float) -> str:
    """Where two records differ by more than rounding, and by how much; "" where they do not.

    A difference counts relative to the largest magnitude of its tensor, or to 1 if that is more.
    """
    a, b = dict(_leaves(one, "")), dict(_leaves(other, ""))
    if a.keys() != b.keys():
        return f"the fields {', '.join(sorted(set(a) ^ set(b)))} are only in one of them"
    for path in a:
        p, q = (torch.as_tensor(v, dtype=torch.float64) for v in (a[path], b[path]))
        if p.shape != q.shape:
            return f"'{path}' has the shapes {list(p.shape)} and {list(q.shape)}"
        if not p.numel():
            continue
        gap, scale = float((p - q).abs().max()), max(1.0, float(q.abs().max()))
        if not gap <= tolerance * scale:
            return f"'{path}' differs by {gap:.3g}, where {tolerance * scale:.0e} is rounding"
    return ""
