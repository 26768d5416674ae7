"""Records of flat vectors, and the vector functions that the papers' formulas need."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import torch
from torch import Tensor

Vec = Tensor  # one-dimensional, of the length of the model (or of the part that a client holds)
Num = Any  # a float, or a 0-d tensor in a vectorised engine
Rec = Any  # a named tuple made by rec()


@functools.cache
def _rec_type(names: tuple[str, ...]) -> type:
    make: Any = collections.namedtuple  # the fields are known at run time only
    kind: Any = make("rec", names)
    kind.__reduce__ = lambda self: (_rec_again, (self._fields, tuple(self)))
    return cast(type, kind)


def _rec_again(names: tuple[str, ...], values: tuple[Any, ...]) -> Rec:
    return _rec_type(names)(*values)


def rec(**values: Any) -> Rec:
    """Make a small named record: a named tuple, hence immutable, picklable and a pytree.

    >>> msg = rec(x=torch.ones(2), c=torch.zeros(2))
    >>> msg._fields
    ('x', 'c')
    >>> msg._replace(c=msg.x).c
    tensor([1., 1.])
    """
    return tuple.__new__(_rec_type(tuple(values)), values.values())


def is_rec(value: Any) -> bool:
    """True if a value is a record (any named tuple)."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def tree(f: Callable[..., Any], first: Any, *others: Any) -> Any:
    """Apply f to the leaves of equally shaped records; a value that is no record is a leaf.

    Written here because torch's pytree costs more than a whole step may (see
    benchmarks/overhead.py).
    """
    if not is_rec(first):
        return f(first, *others)
    if others:
        parts = [tree(f, *values) for values in zip(first, *others, strict=True)]
    else:  # most leaves are no tuples: this saves a call
        parts = [tree(f, v) if isinstance(v, tuple) else f(v) for v in first]
    return tuple.__new__(type(first), parts)


def leaves(*records: Any) -> Iterator[Any]:
    """Iterate over the leaves of records, depth first."""
    out: list[Any] = []
    _collect(records, out)
    return iter(out)


def _collect(values: Iterable[Any], out: list[Any]) -> None:
    for value in values:
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            _collect(value, out)
        else:
            out.append(value)


def fields(record: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten a record to {dotted path: leaf}; storage and ledgers use these names.

    >>> fields(rec(x=1, own=rec(m=2)))
    {'x': 1, 'own.m': 2}
    """
    if not is_rec(record):
        return {prefix: record}
    out: dict[str, Any] = {}
    for name, value in zip(record._fields, record, strict=True):
        path = f"{prefix}.{name}" if prefix else name
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            out |= fields(value, path)
        else:  # most fields are no records: this saves a call
            out[path] = value
    return out


zeros = torch.zeros_like


def as_bytes(t: Tensor) -> Tensor:
    """The bytes of a tensor on the CPU, (bytes,) uint8; without a copy if it is contiguous.

    >>> as_bytes(torch.tensor([1, 256], dtype=torch.int16)).tolist()
    [1, 0, 0, 1]
    """
    flat = t.detach().cpu().contiguous().view(-1)
    if flat.stride(0) != 1:  # torch calls any single number contiguous, whatever its stride
        flat = torch.empty_like(flat, memory_format=torch.contiguous_format).copy_(flat)
    return flat.view(torch.uint8)


def aligned(t: Tensor) -> Tensor:
    """t, copied unless it begins at a multiple of 64 bytes, as torch's own memory does.

    Kernels split their sums by an operand's address: the same vector elsewhere, mapped from a file
    or unpickled, would give a gradient with other bits.

    >>> bool((aligned(torch.arange(3.0)[1:]) == torch.tensor([1.0, 2.0])).all())
    True
    """
    return t.clone() if t.data_ptr() % 64 else t


def unit(v: Vec) -> Vec:
    """v over its norm; 1e-7 keeps the zero vector zero, as in the SAM family's released code."""
    return cast(Vec, v / (v.norm() + 1e-7))


def clip(v: Vec, norm: float) -> Vec:
    """v, shortened to `norm` if it is longer: torch's clip_grad_norm_ on one vector."""
    return cast(Vec, v * (norm / (v.norm() + 1e-6)).clamp_max(1.0))
