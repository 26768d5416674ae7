"""Threads of a step of the vectorised engine, where they change no bit.

Operations on single entries have the same bits with any number of threads. A sum has not: torch and
MKL may cut it where a thread's part ends. Where they cut is a matter of shapes and of the number of
threads, not of values. So the first step of a shape is computed both ways, and if the bits of its
results are the same, they are taken to be the same for this shape. No operation was found that
breaks this (benchmarks/records/2026-11-24_exchange).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from ..core.vector import as_bytes

T = TypeVar("T")
FASTER = 0.95  # times as long as with one thread: several must gain that much

_log = logging.getLogger(__name__)


class Threads:
    """Steps with so many threads, if the results are those of one thread, and sooner there. clock:
    seconds.
    """

    def __init__(self, number: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.number, self._clock = number, clock
        self._threads: dict[Hashable, int] = {}  # threads of steps of a shape

    def step(
        self, shape: Hashable, do: Callable[..., T], arguments: Any, reset: Callable[[], None]
    ) -> T:
        """do(*arguments), which is computed three times if the shape is new: then reset() is called
        in between. shape: all that decides which operations `do` does, and on how large tensors.
        """
        if self.number < 2:
            return do(*arguments)
        if shape in self._threads:
            return self._timed(self._threads[shape], do, arguments)[0]
        # `do` may write into what it is given
        first, second = (tree_map_only(Tensor, Tensor.clone, arguments) for _ in range(2))
        self._timed(1, do, first)  # the first step has costs that no later one has
        reset()
        many, several = self._timed(self.number, do, second)
        reset()
        one, single = self._timed(1, do, arguments)
        gains = several <= FASTER * single
        why = (
            "they change bits"
            if not same_bytes(one, many)
            else ""
            if gains
            else "they gain nothing"
        )
        self._threads[shape] = threads = 1 if why else self.number
        _log.info(
            "engine vectorised: steps of shape %s take %d of %d threads%s",
            *(shape, threads, self.number, f": {why}" if why else ""),
        )
        return one

    def _timed(self, number: int, do: Callable[..., T], arguments: Any) -> tuple[T, float]:
        torch.set_num_threads(number)
        try:
            began = self._clock()
            return do(*arguments), self._clock() - began
        finally:
            torch.set_num_threads(1)


def same_bytes(one: Any, many: Any) -> bool:
    """True if all tensors have equal bytes."""
    pairs = zip(tree_leaves(one), tree_leaves(many), strict=True)
    return all(torch.equal(as_bytes(a), as_bytes(b)) for a, b in pairs)
