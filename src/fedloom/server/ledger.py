"""The costs of a run: bytes by message field, steps, gradients, seconds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..engines.client_round import ClientCost

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
        """The totals after one more round; these stay as they are. others: of candidates that did
        not take part.
        """
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

    def means(self, history: list[Row], name: str) -> Iterator[tuple[int, float, int, float]]:
        """Of every row with a moving average of this name: round, average, bytes and seconds until
        then.
        """
        ways = "bytes_down", "bytes_up"  # these and seconds are in no row where they are secret
        sums = [(sum(row.get(way, 0) for way in ways), row.get("seconds", 0.0)) for row in history]
        # the costs before round 1 are in no row
        sent = self.traffic - sum(n for n, _ in sums)
        seconds = self.seconds - math.fsum(s for _, s in sums)
        for row, (more, longer) in zip(history, sums, strict=True):
            sent, seconds = sent + more, seconds + longer
            if name in row:
                yield row["round"], row[name], sent, seconds

    def as_dict(self) -> dict[str, Any]:
        """JSON."""
        return asdict(self)
