"""The simulation of a federation in which some updates do not arrive."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping

from fedloom.engines import Serial
from fedloom.engines.base import TooFewError
from fedloom.engines.client_results import RangeResult, Request, TrainTask
from fedloom.engines.summation import push

Pairs = Collection[tuple[int, int]]


class Without(Serial):
    """Some updates, and answers before the local steps, do not arrive: {(round, client)}. redrawn:
    {round: how many draws of it were in vain}.
    """

    def __init__(
        self,
        missing: Pairs,
        unanswered: Pairs = frozenset(),
        redrawn: Mapping[int, int] | None = None,
    ) -> None:
        super().__init__()
        self.missing, self.unanswered, self._left = missing, unanswered, dict(redrawn or {})

    def map(self, what: Request, task: TrainTask) -> RangeResult:
        run = functools.partial(super().map, what)
        if what is Request.PROBE or what.evaluates:
            return run(task)
        if what is not Request.TRAIN:
            # a node that is asked to train without that asks itself
            out = _without(self.unanswered, run, task, keep=True)
            if not any(s.answered for s in out.stats):
                raise TooFewError("nobody", out.stats, {}, again=False)
            return out
        if self._left.get(task.round):
            self._left[task.round] -= 1
            raise TooFewError("another draw", [], {})
        return _without(self.missing, run, task)


def _without(
    missing: Pairs, do: Callable[[TrainTask], RangeResult], asked: TrainTask, keep: bool = False
) -> RangeResult:
    out = RangeResult([], {}, [])
    for place, i in enumerate(asked.cohort):
        one = do(asked.range(place, place + 1))
        if (asked.round, i) in missing:
            cost, kept = one.stats[0], one.memories if keep else {}
            gone = asked.first + place
            one = RangeResult([(0, gone, None)], kept, [cost._replace(answered=False)])
        for node in one.nodes:
            push(out.nodes, *node)
        out.memories.update(one.memories)
        out.stats.extend(one.stats)
    return out
