"""The exchanges of a round with its clients: each part of them trains from the model that it was
sent, and others are asked if too few answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ..algorithm import Algorithm
from ..core.vector import Rec
from ..engines.base import Engine, TooFewError
from ..engines.client_results import ClientCost, RangeResult, Request, TrainTask
from ..engines.extra_exchanges import NO_ANSWERS, answered
from ..engines.summation import push, root
from .arrivals import Arrivals
from .client_selection import Broadcast, Chooser, Participants

if TYPE_CHECKING:
    from .rounds import Loop
    from .server_step import ServerState, Step


class RoundTraining:
    """The training of a server step. It can be repeated with some of the clients: a client's round
    is a function of what it was sent and of its state. states: those of a part; asked: how many
    clients were, also those that do not answer.
    """

    def __init__(
        self,
        engine: Engine,
        algorithm: Algorithm,
        parts: list[TrainTask],
        states: Callable[[list[int]], dict[int, Rec]],
    ) -> None:
        self._engine, self._algorithm, self._states = engine, algorithm, states
        self.parts, self.answers = parts, NO_ANSWERS
        self.asked = len(self.cohort)

    @property
    def cohort(self) -> list[int]:
        """All clients, part by part."""
        return [i for part in self.parts for i in part.cohort]

    def ask(self) -> None:
        """The exchange before the local steps, for methods with ask(): its means join the message.
        Such methods have one part.
        """
        if not self._algorithm.asks:
            return
        (part,) = self.parts
        asked = part._replace(memories=self._states(part.cohort))
        asked, self.answers = answered(self._engine.map, self._algorithm, asked)
        self.parts = [part._replace(msg=asked.msg)]

    def run(self, cohort: list[int] | None = None) -> RangeResult:
        """Train all clients, or these of them. Each part has the sum of its own tree; the sums of
        several parts are added up in a tree of parts.
        """
        out = RangeResult([], {}, [])
        for place, part in enumerate(self.parts):
            members = part.cohort if cohort is None else [i for i in part.cohort if i in cohort]
            found = self._trained(part, members) if members else RangeResult([], {}, [])
            if len(self.parts) == 1:
                return found
            push(out.nodes, 0, place, root(found.nodes))
            out.memories.update(found.memories)
            out.stats.extend(found.stats)
        return out

    def _trained(self, part: TrainTask, members: list[int]) -> RangeResult:
        states = self._states(members)
        states |= {i: row for i, row in self.answers.memories.items() if i in members}
        return self._engine.map(Request.TRAIN, part._replace(memories=states, cohort=members))


class RoundOutcome(NamedTuple):
    """What came of a round. chosen: who took part, and who was asked in vain; answers: the costs of
    the answers before the local steps; results, learnt: see Step.checked(); needed: how many
    updates the aggregation needs, if fewer came.
    """

    chosen: Participants
    answers: list[ClientCost]
    results: RangeResult
    learnt: ServerState
    needed: int | None = None


def exchanged(
    chooser: Chooser | Arrivals,
    step: Step,
    told: Broadcast,
    run: Loop,
    states: Callable[[list[int]], dict[int, Rec]],
) -> RoundOutcome:
    """Ask, train, and make the server's step; for every TooFewError with another draw."""
    vain, kept, attempt = list[ClientCost](), dict[int, ClientCost](), 0
    now = run.state._replace(stages=told.stages)
    while True:
        chosen, needed = chooser.of(told, run, attempt), None
        work = RoundTraining(run.engine, step.plan.algorithm, chosen.parts, states)
        work.asked += len(chosen.absent)
        try:
            work.ask()
            results, learnt = step.checked(work, now, len(run.history))
        except TooFewError as few:
            if few.again:
                vain += [*chosen.candidates, *chosen.absent, *work.answers.stats, *few.lost]
                kept |= few.kept
                attempt += 1
                continue
            results, learnt, needed = RangeResult([], {}, few.lost), now, few.needed
        drawn = {s.client for s in results.stats}
        vain += [s for i, s in kept.items() if i not in drawn]  # the others are in the results
        chosen = chosen._replace(absent=[*chosen.absent, *vain])
        return RoundOutcome(chosen, work.answers.stats, results, learnt, needed)
