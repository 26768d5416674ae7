"""The exchanges of a round with its clients, for losses of candidates, ask() and updates; and their
bill: what a client was sent in an earlier one is among the bytes of a later one too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ..aggregation.integer_ring import IntegerRing, mask_bytes
from ..compression import downlink
from ..core.vector import Rec
from ..engines.base import Engine, Remote, TooFewError
from ..engines.client_results import ClientCost, RangeResult, Request, TrainTask
from ..engines.extra_exchanges import NO_ANSWERS, Answers, ask_cohort
from ..engines.summation import push, root
from ..federation.federation import Federation
from ..plan import Plan
from .client_selection import Broadcast, Participants
from .state import Ledger, State

if TYPE_CHECKING:
    from .rounds import Run

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


Exchanges = list[list[ClientCost]]


def billed(
    stats: list[ClientCost], at_down: Rec, missed: Mapping[int, int | None]
) -> list[ClientCost]:
    """The costs with the bytes that their clients were really sent on a compressed downlink."""
    bill = lambda s: s._replace(bytes_down=downlink.bill(at_down, s.bytes_down, missed[s.client]))
    return list(map(bill, stats))


class Bill(NamedTuple):
    """What a round cost: of the cohort over all exchanges, of candidates outside of it, and of
    those that gave no update. seconds: of this process; simulated: of described devices.
    """

    cohort: list[ClientCost]
    others: list[ClientCost]
    absent: list[ClientCost]
    seconds: float = 0.0
    simulated: float | None = None

    def paid(self, ledger: Ledger, disclosed: bool) -> Ledger:
        """The ledger after the round; not disclosed: unchanged, for it would tell who was there."""
        stats, others = (self.cohort, [*self.others, *self.absent]) if disclosed else ([], [])
        return ledger.after(stats, self.seconds, self.simulated, others)


def bill_of(run: Run, before: State, outcome: RoundOutcome, seconds: float) -> Bill:
    """What a round cost, with the bytes that were really sent. before: the state before it."""
    participants, updates = outcome.participants, outcome.results.stats
    aggregation, remote = run.plan.aggregation, isinstance(run.engine, Remote)
    if isinstance(aggregation, IntegerRing) and aggregation.masked and not remote:
        updates = with_masks(updates, aggregation)
    exchanges, absent = [participants.candidates, outcome.answers, updates], participants.absent
    if sent := participants.sent:
        exchanges = [[s._replace(bytes_down=sent[s.client]) for s in some] for some in exchanges]
    elif at_down := outcome.stages.down:
        everybody = {s.client for some in (*exchanges, absent) for s in some}
        missed = downlink.away(run.memory.last(everybody), before.round)
        exchanges = [billed(some, at_down, missed) for some in exchanges]
        absent = billed(absent, at_down, missed)
    cohort, others = together(exchanges)
    if aggregation.unkeyed:  # who was slow was there
        return Bill(cohort, others, absent)
    simulated = simulated_seconds(run.fed, participants, exchanges)
    return Bill(cohort, others, absent, seconds, simulated)


def with_masks(stats: list[ClientCost], aggregation: IntegerRing) -> list[ClientCost]:
    """The costs of a simulated round's clients with the keys and shares of a masked sum."""
    down, up = mask_bytes(len(stats), aggregation.needed(len(stats)).degree)
    out = []
    for s in stats:
        sent = {"masks": up} if s.answered else {}
        bytes_down = s.bytes_down | {"masks": down}
        out.append(s._replace(bytes_down=bytes_down, bytes_up=s.bytes_up | sent))
    return out


def together(exchanges: Exchanges) -> tuple[list[ClientCost], list[ClientCost]]:
    """-> the costs of the cohort over all exchanges, and those of candidates outside of it."""
    *before, last = exchanges
    if not any(before):
        return last, []
    cohort = {s.client: s for s in last}
    others = [s for some in before for s in some if s.client not in cohort]
    for s in (s for some in before for s in some if s.client in cohort):
        cohort[s.client] = _plus(cohort[s.client], s)
    return list(cohort.values()), others


def _plus(s: ClientCost, a: ClientCost) -> ClientCost:
    """The cost of an update with that of an answer before it."""
    names = [*s.bytes_up, *(k for k in a.bytes_up if k not in s.bytes_up)]
    return s._replace(
        gradients=s.gradients + a.gradients,
        bytes_up={k: s.bytes_up.get(k, 0) + a.bytes_up.get(k, 0) for k in names},
        passes=s.passes + a.passes,
        values=s.values + a.values,
        value_passes=s.value_passes + a.value_passes,
    )


def simulated_seconds(fed: Federation, clients: Participants, exchanges: Exchanges) -> float | None:
    """Simulated seconds of a round, if the devices are described: each exchange ends when its
    slowest client has answered. A batch of a pass over all its data takes as long as a step.
    """
    if fed.devices is None or clients.seconds is not None:
        return clients.seconds
    total, received = clients.waited, dict[int, int]()  # bytes that a client has already
    for exchange in exchanges:
        slowest = 0.0
        for s in exchange:
            down, work = sum(s.bytes_down.values()), s.steps + s.passes + s.value_passes
            new, up = down - received.get(s.client, 0), sum(s.bytes_up.values())
            slowest, received[s.client] = max(slowest, fed.duration(s.client, work, new, up)), down
        total += slowest
    return total
