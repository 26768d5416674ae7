"""Vectors that the engine computes in again and again, while no record of an author holds them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.net import Net
from ..core.vector import Vec, leaves
from ..submodels.base import View, behind_mask

NOTHING: set[int] = set()


class Buffers:
    """Vectors that the engine may overwrite: no record of the author holds them any more.

    New memory for every vector of every step costs page faults, which matter from 30,000 parameters
    on.
    """

    def __init__(self) -> None:
        self._owned: list[Tensor] = []
        self._out: set[int] = set()

    def take(self, like: Vec) -> Vec:
        """A vector like this one, which the engine owns until settle()."""
        for buffer in self._owned:
            if id(buffer) not in self._out and buffer.shape == like.shape:
                break
        else:
            buffer = torch.empty_like(like)
            self._owned.append(buffer)
        self._out.add(id(buffer))
        return buffer

    def settle(self, in_use: set[int]) -> None:
        """Everything outside these storages is free again."""
        if not in_use:
            self._out.clear()
        elif self._out:
            self._out = {id(b) for b in self._owned if id(b) in self._out and storage(b) in in_use}

    def next(self, x: Vec, in_use: set[int]) -> Vec:
        """A vector for the next x: x itself, if the engine owns it and no record holds it."""
        if any(x is b for b in self._owned) and (not in_use or storage(x) not in in_use):
            return x
        return self.take(x)

    def give_away(self, in_use: set[int]) -> None:
        """The engine no longer owns vectors in these storages; all others are free again."""
        self._owned = [b for b in self._owned if storage(b) not in in_use]
        self._out.clear()


def storage(v: Tensor) -> int:
    """Where a tensor's memory begins: equal for all views of the same memory."""
    return v.untyped_storage().data_ptr()


def storages(*records: Any) -> set[int]:
    """The storages of the tensors in these records."""
    addresses = set()
    for value in leaves(*records):
        if isinstance(value, Tensor):
            addresses.add(storage(value))
        elif value is not None and not isinstance(value, (int, float)):
            raise TypeError(
                f"a record holds a {type(value).__name__}; it may hold tensors, numbers and "
                "records: make nested ones with rec(...)"
            )
    return addresses


class Mask:
    """The coordinates held (m,) of a net that computes with zeros elsewhere, for all steps of a
    client: beside the weights' gradients no step makes a vector of the net's length.
    """

    def __init__(self, view: View, net: Net) -> None:
        assert view.held is not None
        self.held, self._view = view.held, view
        self._sizes = behind_mask(view.held, net.layout).layout.sizes
        firsts = itertools.accumulate(net.layout.sizes, initial=0)
        parts = torch.split(view.held, self._sizes)
        self._places = [(index - first).int() for index, first in zip(parts, firsts, strict=False)]
        self._whole: Vec | None = None

    def embedded(self, x: Vec) -> Vec:
        """x (m,) as the net computes with it, (d,); the next call overwrites it."""
        if self._whole is None:
            self._whole = self._view.seen(x)
        else:
            self._whole.index_copy_(0, self.held, x)
        return self._whole

    def gather(self, layers: Sequence[Tensor | None], out: Vec) -> None:
        """Write the held ones of every layer's values, zeros for None, into out (m,)."""
        parts = torch.split(out, self._sizes)
        for v, index, part in zip(layers, self._places, parts, strict=True):
            if v is None:
                part.zero_()
            else:
                torch.index_select(v.reshape(-1), 0, index, out=part)
