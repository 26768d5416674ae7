"""What a round's clients were sent, and how long it took on their devices, over its up to three
exchanges: losses of candidates, ask(), and updates. What an earlier one sent is in later ones too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from ..aggregation.integer_ring import IntegerRing, mask_bytes
from ..compression import downlink
from ..core.vector import Rec
from ..engines.base import Remote
from ..engines.client_results import ClientCost
from ..federation.federation import Federation
from .client_selection import Participants
from .exchanges import RoundOutcome
from .state import Ledger

if TYPE_CHECKING:
    from .rounds import Run
    from .state import State

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
