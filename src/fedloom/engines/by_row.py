"""A function of one client, for many: one row after another, where vmap computes all at once. On
CUDA rows that were written down are computed side by side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

STREAMS = 16  # of CUDA at most


class ByRow:
    """What torch.vmap(function, in_dims) gives, without vmap: so of any function.

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
        return joined([compute() for compute in self.computing(self.rows(*arguments))])

    def dims(self, *arguments: Any) -> Sequence[int | None]:
        """in_dims of each argument."""
        return [self._dims] * len(arguments) if isinstance(self._dims, int) else self._dims

    def rows(self, *arguments: Any) -> list[tuple[Any, ...]]:
        """The arguments of each row."""
        pairs = [*zip(arguments, self.dims(*arguments), strict=True)]
        (first, *_) = (v for value, dim in pairs if dim == 0 for v in tree_leaves(value))
        return [
            tuple(value if dim is None else at(r, value) for value, dim in pairs)
            for r in range(len(first))
        ]

    def computing(self, rows: Sequence[tuple[Any, ...]]) -> list[Callable[[], Any]]:
        """What computes each of these rows."""
        before = [counter.copy() for counter in self._counts]

        def compute(row: tuple[Any, ...]) -> Any:
            for counter, old in zip(self._counts, before, strict=True):
                counter.clear()
                counter.update(old)
            return self._function(*row)

        return [lambda row=row: compute(row) for row in rows]  # type: ignore[misc]


def at(r: int, value: Any) -> Any:
    """A row of all tensors in a value."""
    return tree_map_only(Tensor, lambda v: v[r], value)


def joined(rows: Sequence[Any]) -> Any:
    """The results of all rows, with a leading axis."""
    return tree_map(lambda *values: torch.stack(values), *rows)


class SideBySide:
    """A function of one row's tensors and of those that all rows share, for so many rows of inputs:
    on CUDA each in a stream of its own. Not seen on a GPU yet. stacked: for each input whether it
    has a leading axis of rows; device: of CUDA, or None.
    """

    def __init__(
        self,
        function: Callable[..., Sequence[Tensor]],
        stacked: Sequence[bool],
        rows: int,
        device: torch.device | None,
    ) -> None:
        self._function, self._stacked, self._rows = function, stacked, rows
        count = 0 if device is None else min(rows, STREAMS)
        self._streams = [torch.cuda.Stream(device) for _ in range(count)]  # type: ignore[no-untyped-call]

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        pairs = [*zip(inputs, self._stacked, strict=True)]
        rows = [[v[r] if apart else v for v, apart in pairs] for r in range(self._rows)]
        if not self._streams:
            return _stacked([self._function(*row) for row in rows])
        outputs, main = [], torch.cuda.current_stream()
        for stream in self._streams:
            stream.wait_stream(main)
        for r, row in enumerate(rows):
            with torch.cuda.stream(self._streams[r % len(self._streams)]):
                outputs.append(self._function(*row))
        for stream in self._streams:
            main.wait_stream(stream)
        return _stacked(outputs)


def _stacked(rows: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    return [torch.stack(values) for values in zip(*rows, strict=True)]
