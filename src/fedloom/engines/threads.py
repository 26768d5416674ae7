"""Threads of a step of the vectorised engine, where they change no bit.

Operations on single entries have the same bits with any number of threads. A sum has not: torch and
MKL may cut it where a thread's part ends. Where they cut is a matter of shapes and of the number of
threads, not of values. So a step of a new shape is computed both ways, and if the bits of its
results are the same several times, on other data each time, they are taken to be the same for this
shape. No operation was found that breaks this (benchmarks/records/2026-11-24_exchange).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from ..core.vector import as_bytes

T = TypeVar("T")
ENOUGH = 3  # steps of a shape with equal bits, or, later, slow ones
FASTER = 0.95  # times as long as with one thread: several must gain that much

_log = logging.getLogger(__name__)


def repeatable(module: nn.Module) -> bool:
    """True if a step of a network may be computed twice: its layers are torch's and fedloom's, and
    none counts its calls. A layer of a user's own may keep anything from one call to the next.

    >>> repeatable(nn.Linear(2, 1)), repeatable(nn.BatchNorm1d(2))
    (True, False)
    """
    known = all(type(m).__module__.startswith(("torch.nn.", "fedloom.")) for m in module.modules())
    return known and all(b.is_floating_point() for b in module.buffers())


@dataclass
class _Shape:
    """What is known of steps of one shape: how many had equal bits, the least seconds with one
    thread and with several, and how many more of the later ones took longer than with one than not.
    """

    equal: int = 0
    one: float = math.inf
    many: float = math.inf
    slow: int = 0
    alone: bool = False  # one thread from now on


class Threads:
    """Steps with so many threads, if the results are those of one thread, and sooner there.

    Threads wait for each other, and on a busy machine they wait long. So the same steps are timed,
    and a shape whose steps with several threads get slow goes back to one. clock: seconds.
    """

    def __init__(self, number: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.number, self._clock = number, clock
        self._known: dict[Hashable, _Shape] = {}

    def step(
        self, shape: Hashable, do: Callable[..., T], arguments: Any, again: Callable[[], None]
    ) -> T:
        """do(*arguments), which may be computed twice: then again() is called in between. shape:
        all that decides which operations `do` does, and on how large tensors.
        """
        known = self._known.setdefault(shape, _Shape())
        if self.number < 2 or known.alone:
            return do(*arguments)
        if known.equal < ENOUGH:
            return self._both(shape, known, do, arguments, again)
        found, seconds = self._timed(self.number, do, arguments)
        known.slow = max(0, known.slow + (1 if seconds > known.one else -1))
        if known.slow >= ENOUGH:
            self._alone(shape, known, "they take longer than one")
        return found

    def _both(
        self,
        shape: Hashable,
        known: _Shape,
        do: Callable[..., T],
        arguments: Any,
        again: Callable[[], None],
    ) -> T:
        copies = tree_map_only(Tensor, Tensor.clone, arguments)  # `do` may write into them
        many, seconds = self._timed(self.number, do, copies)
        again()
        one, alone = self._timed(1, do, arguments)
        known.equal += 1
        known.one, known.many = min(known.one, alone), min(known.many, seconds)
        if not _same(one, many):
            self._alone(shape, known, "they change bits")
        elif known.equal == ENOUGH and known.many > FASTER * known.one:
            self._alone(shape, known, "they gain nothing")
        elif known.equal == ENOUGH:
            ratio = known.many / known.one
            said = "engine vectorised: steps of shape %s take %d threads, %.2f of the time of one"
            _log.info(said, shape, self.number, ratio)
        return one

    def _timed(self, number: int, do: Callable[..., T], arguments: Any) -> tuple[T, float]:
        torch.set_num_threads(number)
        try:
            began = self._clock()
            return do(*arguments), self._clock() - began
        finally:
            torch.set_num_threads(1)

    def _alone(self, shape: Hashable, known: _Shape, why: str) -> None:
        known.alone = True
        said = "engine vectorised: steps of shape %s take one thread; of %d threads, %s"
        _log.info(said, shape, self.number, why)


def _same(one: Any, many: Any) -> bool:
    """True if all tensors have equal bytes."""
    pairs = zip(tree_leaves(one), tree_leaves(many), strict=True)
    return all(torch.equal(as_bytes(a), as_bytes(b)) for a, b in pairs)
