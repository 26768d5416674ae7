"""A function of one client, for many: one row after another, where vmap computes all at once."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only


class ByRow:
    """What torch.vmap(function, in_dims) gives, without vmap: so of any function, and rows that a
    GPU computes side by side (see step_graph.py).

    in_dims: for each argument 0, or None if all rows share it. counts: what the function counts;
    it counts for one row, as under vmap.

    >>> ByRow(lambda x, y: x * y, (None, 0))(torch.ones(2), torch.eye(2))
    tensor([[1., 0.],
            [0., 1.]])
    """

    def __init__(
        self,
        function: Callable[..., Any],
        in_dims: int | Sequence[int | None] = 0,
        counts: Sequence[Counter[Any]] = (),
    ) -> None:
        self._function, self._dims, self._counts = function, in_dims, counts

    def __call__(self, *arguments: Any) -> Any:
        return self.joined([row() for row in self.rows(*arguments)])

    def rows(self, *arguments: Any) -> list[Callable[[], Any]]:
        """What computes each row."""
        dims = self._dims
        each = [dims] * len(arguments) if isinstance(dims, int) else dims
        pairs = [*zip(arguments, each, strict=True)]
        (first, *_) = (v for value, dim in pairs if dim == 0 for v in tree_leaves(value))
        before = [counter.copy() for counter in self._counts]
        return [functools.partial(self._row, r, pairs, before) for r in range(len(first))]

    def _row(
        self, r: int, pairs: Sequence[tuple[Any, int | None]], before: Sequence[Counter[Any]]
    ) -> Any:
        for counter, old in zip(self._counts, before, strict=True):
            counter.clear()
            counter.update(old)
        at = lambda v: v[r]
        return self._function(
            *(v if dim is None else tree_map_only(Tensor, at, v) for v, dim in pairs)
        )

    def joined(self, rows: Sequence[Any]) -> Any:
        """The results of all rows, with a leading axis."""
        return tree_map(lambda *values: torch.stack(values), *rows)
