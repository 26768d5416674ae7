"""What a round's clients were really sent, and how long it would have taken on their devices.

A round has up to three exchanges: with candidates, for their losses; with the cohort, for methods
with ask(); and the client updates. Each is a list of costs, and whatever a client was sent in an
earlier exchange of the round is among the bytes of a later one too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..aggregation.integer_ring import IntegerRing, mask_bytes
from ..compression import downlink
from ..core.vector import Rec
from ..engines.client_round import ClientCost
from ..federation.federation import Federation
from ..storage.client_state import ClientStates
from .client_selection import Participants

Exchanges = list[list[ClientCost]]


def billed(
    stats: list[ClientCost], at_down: Rec, missed: Mapping[int, int | None]
) -> list[ClientCost]:
    """The costs with the bytes that their clients were really sent."""
    if not at_down:
        return stats
    bill = lambda s: s._replace(bytes_down=downlink.bill(at_down, s.bytes_down, missed[s.client]))
    return list(map(bill, stats))


def all_billed(
    chosen: Participants, exchanges: Exchanges, at_down: Rec, memory: ClientStates, round: int
) -> tuple[Exchanges, list[ClientCost]]:
    """The costs of a server step's exchanges, and of its absent clients, with the bytes that were
    really sent.
    """
    absent = chosen.absent
    if sent := chosen.sent:
        paid = [[s._replace(bytes_down=sent[s.client]) for s in some] for some in exchanges]
        return paid, absent
    everybody = {s.client for some in (*exchanges, absent) for s in some}
    missed = downlink.away(memory.last(everybody), round)
    return [billed(some, at_down, missed) for some in exchanges], billed(absent, at_down, missed)


def with_masks(stats: list[ClientCost], rule: IntegerRing) -> list[ClientCost]:
    """The costs of a simulated round's clients with the keys and shares of a masked sum."""
    down, up = mask_bytes(len(stats), rule.needed(len(stats)).degree)
    out = []
    for s in stats:
        sent = {"masks": up} if s.answered else {}
        told = s.bytes_down | {"masks": down}
        out.append(s._replace(bytes_down=told, bytes_up=s.bytes_up | sent))
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


def wasted(columns: Mapping[str, Any], absent: list[ClientCost]) -> dict[str, Any]:
    """A row's columns about who did not answer. columns: the others of the choice of clients."""
    if "dropped" not in columns:
        return {**columns}
    return {**columns, "bytes_wasted": sum(sum(s.bytes_down.values()) for s in absent)}


def simulated_seconds(fed: Federation, chosen: Participants, exchanges: Exchanges) -> float | None:
    """Simulated seconds of a round, if the devices are described: each exchange ends when its
    slowest client has answered. A batch of a pass over all its data takes as long as a step.
    """
    if fed.devices is None or chosen.seconds is not None:
        return chosen.seconds
    total, told = chosen.waited, dict[int, int]()  # bytes that a client has already
    for exchange in exchanges:
        slowest = 0.0
        for s in exchange:
            down, work = sum(s.bytes_down.values()), s.steps + s.passes + s.value_passes
            new, up = down - told.get(s.client, 0), sum(s.bytes_up.values())
            slowest, told[s.client] = max(slowest, fed.duration(s.client, work, new, up)), down
        total += slowest
    return total
