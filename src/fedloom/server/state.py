"""The state of a run: all that a round may change beside the client states, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from ..core.vector import Rec, Vec, rec
from ..engines.client_round import ClientCost
from ..evaluation.settings import Curve
from ..evaluation.sizes import Explored

Row = dict[str, Any]


@dataclass
class Ledger:
    """Totals since round 1; bytes are those of the messages' own encoding (fedloom.core.wire)."""

    down: dict[str, int] = field(default_factory=dict)
    up: dict[str, int] = field(default_factory=dict)
    client_rounds: int = 0
    answers: int = 0
    steps: int = 0
    gradients: int = 0
    loss_values: int = 0  # losses without a gradient
    seconds: float = 0.0
    simulated: float = 0.0  # simulated seconds, 0 without a device profile

    def after(
        self,
        stats: Iterable[ClientCost],
        seconds: float,
        simulated: float | None = None,
        others: Iterable[ClientCost] = (),
    ) -> Ledger:
        """The totals after one more round. others: costs of those that did not take part."""
        new = replace(self, down=dict(self.down), up=dict(self.up))
        for cost in stats:
            new._pay(cost)
            new.client_rounds += 1
            new.answers += cost.answered
            new.steps += cost.steps
        for cost in others:
            new._pay(cost)
        new.seconds += seconds
        new.simulated += simulated or 0.0
        return new

    def _pay(self, cost: ClientCost) -> None:
        for name, count in cost.bytes_down.items():
            self.down[name] = self.down.get(name, 0) + count
        for name, count in cost.bytes_up.items():
            self.up[name] = self.up.get(name, 0) + count
        self.gradients += cost.gradients
        self.loss_values += cost.values

    @property
    def bytes_down(self) -> int:
        """All bytes from the server to clients."""
        return sum(self.down.values())

    @property
    def bytes_up(self) -> int:
        """All bytes from clients to the server."""
        return sum(self.up.values())

    @property
    def traffic(self) -> int:
        """All bytes of both directions."""
        return self.bytes_down + self.bytes_up

    def until(self, round: int, history: Iterable[Row]) -> tuple[int, float]:
        """Bytes and seconds until after a round, with those before round 1, which are in no row."""
        later = [row for row in history if row["round"] > round]
        sent = sum(row.get(way, 0) for row in later for way in ("bytes_down", "bytes_up"))
        return self.traffic - sent, self.seconds - math.fsum(r.get("seconds", 0.0) for r in later)

    def as_dict(self) -> dict[str, Any]:
        """JSON."""
        return asdict(self)


class InFlight(NamedTuple):
    """A client under way: the round whose model it was sent, the simulated second when it arrives,
    whether it answers, and the bytes that it was sent.
    """

    round: int
    arrives: float
    answers: bool
    down: dict[str, int]


class AsyncState(NamedTuple):
    """What an asynchronous clock keeps between server steps. now: simulated seconds; in_flight: the
    clients under way; models: message and buffers by round, for these.
    """

    now: float
    in_flight: Mapping[int, InFlight]
    models: Mapping[int, tuple[Rec, Vec]]


class State(NamedTuple):
    """A run between two rounds; nobody changes one, a round gives the next one.

    round: rounds that are done; srv: the method's record; stages: the states of stages by name, of
    the link `link` and `down`; aggregation: its state; buffers: of the module; ledger: what it
    cost; curve: of the headline metric; under_way: of an asynchronous clock; trained: with
    local.dp, the rounds that each client has trained; explored: by each size of sub-models; ends:
    the last round, if a function of the user's has ended the run.
    """

    round: int
    srv: Rec
    stages: Rec
    aggregation: Rec
    buffers: Vec
    ledger: Ledger
    curve: Curve
    under_way: AsyncState | None = None
    trained: Mapping[int, int] = {}
    explored: Explored | None = None
    ends: int | None = None

    @property
    def server(self) -> Rec:
        """What the server's step gives."""
        others = {"stages": self.stages, "buffers": self.buffers, "aggregation": self.aggregation}
        return rec(srv=self.srv, **others)
