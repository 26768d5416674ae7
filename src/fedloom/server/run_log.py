"""The rows of a run: one for every round, what they cost, and who hears of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .divergence import Watch
from .ledger import Ledger

Row = dict[str, Any]


class RunLog:
    """round: of how many the run is done; history: their rows; logged: how many of these are
    evaluated and written. watch: what it is warned of. on_round, on_evaluation: of the user, called
    with a row; watching: may hear it a round later.
    """

    def __init__(
        self,
        watch: Watch,
        on_round: Sequence[Callable[[Row], object]] = (),
        on_evaluation: Sequence[Callable[..., object]] = (),
    ) -> None:
        self.round, self.logged = 0, 0
        self.history: list[Row] = []
        self.ledger, self.watch = Ledger(), watch
        self.on_round, self.on_evaluation = [*on_round], [*on_evaluation]
        self.watching: list[Callable[[Row], None]] = []

    @property
    def pending(self) -> list[Row]:
        """The rows that are neither evaluated nor written: one at most."""
        return self.history[self.logged :]
