"""The exchanges of a round with its clients, again with other clients if too few of them answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ..core.vector import Rec
from ..engines.base import TooFewError
from ..engines.client_round import RangeResult, Stats
from .arrivals import Arrivals
from .client_selection import Broadcast, Chooser, Participants
from .server_step import ServerState, Step
from .training import RoundTraining

if TYPE_CHECKING:
    from .rounds import Loop


class RoundOutcome(NamedTuple):
    """What came of a round. chosen: who took part, and who was asked in vain; answers: the costs of
    the answers before the local steps; results, learnt: see Step.checked().
    """

    chosen: Participants
    answers: list[Stats]
    results: RangeResult
    learnt: ServerState


def exchanged(
    chooser: Chooser | Arrivals,
    step: Step,
    told: Broadcast,
    run: Loop,
    states: Callable[[list[int]], dict[int, Rec]],
) -> RoundOutcome:
    """Ask, train, and make the server's step; for every TooFewError with another draw."""
    vain, kept, attempt = list[Stats](), dict[int, Stats](), 0
    now = run.state._replace(stages=told.stages)
    while True:
        chosen = chooser.of(told, run, attempt)
        work = RoundTraining(run.engine, step.plan.algorithm, chosen.parts, states)
        try:
            work.ask()
            results, learnt = step.checked(work, now, len(run.history))
        except TooFewError as few:
            if few.again:
                vain += [*chosen.candidates, *chosen.absent, *work.answers.stats, *few.lost]
                kept |= few.kept
                attempt += 1
                continue
            results, learnt = RangeResult([], {}, few.lost), now
        drawn = {s.client for s in results.stats}
        vain += [s for i, s in kept.items() if i not in drawn]  # the others are in the results
        chosen = chosen._replace(absent=[*chosen.absent, *vain])
        return RoundOutcome(chosen, work.answers.stats, results, learnt)
