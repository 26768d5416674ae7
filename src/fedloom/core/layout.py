"""The place of each layer inside the flat vector. No other file may cut x by hand."""

from __future__ import annotations

import fnmatch
import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import DataError
from .vector import Vec


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the pieces of a vector x of length d, in order.

    >>> layout = Layout(("w", "b"), ((2, 3), (2,)))
    >>> layout.d
    8
    >>> views = layout.views(torch.arange(8.0))
    >>> views["b"]
    tensor([6., 7.])
    >>> bool((layout.flatten(views) == torch.arange(8.0)).all())
    True
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, tensors: Iterable[tuple[str, Tensor]]) -> Layout:
        """The layout of named tensors, in their order."""
        pairs = [(name, tuple(t.shape)) for name, t in tensors]
        return cls(tuple(n for n, _ in pairs), tuple(s for _, s in pairs))

    @functools.cached_property
    def sizes(self) -> list[int]:
        """Number of coordinates of every piece."""
        return [math.prod(shape) for shape in self.shapes]

    @functools.cached_property
    def d(self) -> int:
        """Length of x."""
        return sum(self.sizes)

    def pieces(self, x: Vec) -> list[Tensor]:
        """x (d,) -> its pieces in their shapes, sharing memory.

        One split, not a slice per layer: differentiating through slices costs a d-vector for each
        of them.
        """
        parts = torch.split(x, self.sizes) if self.names else ()
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def views(self, x: Vec) -> dict[str, Tensor]:
        """x (d,) -> {name: piece}, sharing memory."""
        return dict(zip(self.names, self.pieces(x), strict=True))

    def flatten(self, tensors: dict[str, Tensor]) -> Vec:
        """{name: tensor} -> a new x (d,). Raises DataError for a missing or misshapen piece."""
        if not self.names:
            return torch.empty(0)
        for name, shape in zip(self.names, self.shapes, strict=True):
            if name not in tensors:
                raise DataError(
                    f"weights lack '{name}'; the model needs it with shape {list(shape)}"
                )
            if tuple(tensors[name].shape) != shape:
                raise DataError(
                    f"'{name}' has shape {list(tensors[name].shape)}, "
                    f"but the model needs {list(shape)}"
                )
        return torch.cat([tensors[name].detach().reshape(-1) for name in self.names])

    def where(self, *patterns: str) -> Vec:
        """A 0/1 vector (d,): 1 in the pieces whose name fits a pattern such as '*.bias'."""
        marks = [float(any(fnmatch.fnmatch(n, p) for p in patterns)) for n in self.names]
        return torch.tensor(marks).repeat_interleave(torch.tensor(self.sizes))
