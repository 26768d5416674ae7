"""What a run has cost: bytes by message field, steps, gradients, seconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from .engines.client import Stats

__all__ = ["Ledger"]


@dataclass
class Ledger:
    """Totals since round 1; bytes are those of the messages' own encoding (fedloom.wire)."""

    down: dict[str, int] = field(default_factory=dict)
    up: dict[str, int] = field(default_factory=dict)
    client_rounds: int = 0
    answers: int = 0
    steps: int = 0
    gradients: int = 0
    seconds: float = 0.0
    simulated: float = 0.0  # seconds of the clients' devices, 0 if these are not described

    def add(self, stats: Iterable[Stats], seconds: float, simulated: float = 0.0) -> None:
        """One more round."""
        for cost in stats:
            for name, count in cost.bytes_down.items():
                self.down[name] = self.down.get(name, 0) + count
            for name, count in cost.bytes_up.items():
                self.up[name] = self.up.get(name, 0) + count
            self.client_rounds += 1
            self.answers += cost.answered
            self.steps += cost.steps
            self.gradients += cost.gradients
        self.seconds += seconds
        self.simulated += simulated

    @property
    def bytes_down(self) -> int:
        """All bytes from the server to clients."""
        return sum(self.down.values())

    @property
    def bytes_up(self) -> int:
        """All bytes from clients to the server."""
        return sum(self.up.values())

    def as_dict(self) -> dict[str, Any]:
        """JSON."""
        return asdict(self)
