"""The state of a run: all that a round may change, beside the client states in their store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..core.vector import Rec, Vec, rec
from ..evaluation.settings import Curve
from ..evaluation.sizes import Explored
from .ledger import Ledger


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
