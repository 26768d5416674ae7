"""The exchanges of a round with its clients: each part of them trains from the model that it was
sent, and others are asked if too few answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ..core.vector import Rec
from ..engines.base import Engine, TooFewError
from ..engines.client_results import ClientCost, RangeResult, Request, TrainTask
from ..engines.extra_exchanges import NO_ANSWERS, Answers, ask_cohort
from ..engines.summation import push, root
from ..plan import Plan
from .client_selection import Broadcast, Participants

if TYPE_CHECKING:
    from .rounds import Run
    from .state import State


States = Callable[[list[int]], dict[int, Rec]]


class Training(NamedTuple):
    """The training of a server step: what each part of its clients is sent, with their states;
    what they answered before it; and how many clients were asked, also those that give no update.
    """

    parts: list[TrainTask]
    answers: Answers
    contacted: int

    def run(self, engine: Engine) -> RangeResult:
        """Train the clients of all parts; the sums of several are added in a tree of parts."""
        out = RangeResult([], {}, [])
        for place, part in enumerate(self.parts):
            result = engine.map(Request.TRAIN, part) if part.cohort else RangeResult([], {}, [])
            if len(self.parts) == 1:
                return result
            push(out.nodes, 0, place, root(result.nodes))
            out.memories.update(result.memories)
            out.stats.extend(result.stats)
        return out


def prepared(
    engine: Engine, plan: Plan, seed: int, participants: Participants, states: States
) -> Training:
    """The training of these clients, after the exchange before the local steps for methods with
    ask(): its means join the message. Such methods have one part.
    """
    parts = [part._replace(memories=states(part.cohort)) for part in participants.parts]
    contacted = sum(len(part.cohort) for part in parts) + len(participants.absent)
    answers = NO_ANSWERS
    if plan.algorithm.asks:
        (part,) = parts
        part, answers = ask_cohort(engine.map, plan, seed, part)
        parts = [part]
    return Training(parts, answers, contacted)


class RoundOutcome(NamedTuple):
    """What came of a round. participants: who took part, and who was asked and did not answer;
    answers: the costs of the answers before the local steps; results, learnt: see Step.checked();
    stages: their states when the model was sent; fewest: how many updates the aggregation needs, if
    fewer came.
    """

    participants: Participants
    answers: list[ClientCost]
    results: RangeResult
    learnt: State
    stages: Rec
    fewest: int | None = None


def exchanged(run: Run, state: State, broadcast: Broadcast) -> RoundOutcome:
    """Ask, train, and make the server's step; for every TooFewError with another draw."""
    unanswered, received, attempt = list[ClientCost](), dict[int, ClientCost](), 0
    now, plan, seed = state._replace(stages=broadcast.stages), run.plan, run.fed.seed
    while True:
        participants, fewest = run.chooser.of(broadcast, state, run, attempt), None
        answers = NO_ANSWERS
        try:
            training = prepared(run.engine, plan, seed, participants, run.client_states)
            answers = training.answers
            results, learnt = run.step.checked(run.engine, training, now)
        except TooFewError as few:
            if few.again:
                unanswered += [*participants.candidates, *participants.absent]
                unanswered += [*answers.stats, *few.lost]
                received |= few.received
                attempt += 1
                continue
            results, learnt, fewest = RangeResult([], {}, few.lost), now, few.fewest
        clients = {s.client for s in results.stats}
        unanswered += [
            s for i, s in received.items() if i not in clients
        ]  # the others are in the results
        participants = participants._replace(absent=[*participants.absent, *unanswered])
        return RoundOutcome(participants, answers.stats, results, learnt, broadcast.stages, fewest)
