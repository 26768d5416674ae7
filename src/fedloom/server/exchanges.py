"""The exchanges of a round with its clients, again with other clients if too few of them answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from ..core.vector import Rec
from ..engines.base import TooFewError
from ..engines.client_round import RangeResult, Stats
from .arrivals import Arrivals
from .choosing import Chooser, Chosen, Going, Told
from .server_step import Learnt, Step
from .training import Work


class Exchanged(NamedTuple):
    """What came of a round. chosen: who took part, and who was asked in vain; answers: the costs of
    the answers before the local steps; results, learnt: see Step.checked().
    """

    chosen: Chosen
    answers: list[Stats]
    results: RangeResult
    learnt: Learnt


class Learning(Going, Protocol):
    """What the exchanges ask of a run."""

    @property
    def learnt(self) -> Learnt: ...


def exchanged(
    chooser: Chooser | Arrivals,
    step: Step,
    told: Told,
    run: Learning,
    states: Callable[[list[int]], dict[int, Rec]],
) -> Exchanged:
    """Ask, train, and make the server's step; for every TooFewError with another draw."""
    vain, kept, attempt = list[Stats](), dict[int, Stats](), 0
    while True:
        chosen = chooser.of(told, run, attempt)
        work = Work(run.engine, step.plan.algorithm, chosen.parts, states)
        try:
            work.ask()
            results, learnt = step.checked(work, run.learnt, len(run.history))
        except TooFewError as few:
            if few.again:
                vain += [*chosen.candidates, *chosen.absent, *work.answers.stats, *few.lost]
                kept |= few.kept
                attempt += 1
                continue
            results, learnt = RangeResult([], {}, few.lost), run.learnt
        drawn = {s.client for s in results.stats}
        vain += [s for i, s in kept.items() if i not in drawn]  # the others are in the results
        chosen = chosen._replace(absent=[*chosen.absent, *vain])
        return Exchanged(chosen, work.answers.stats, results, learnt)
