"""What a measure is: a value that looks at a run between two rounds and changes nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from ..core.hyper import Part, PositiveInt, hyper
from ..core.rng import key, seed_torch
from ..engines.base import one_thread
from ..server.rounds import Run

Readings = dict[str, Any]  # fit for JSON


class Measure(Part, ABC):
    """every: how many rounds apart a run takes it, and after the last one."""

    every: PositiveInt = hyper(50, "rounds between two measurements of a run")

    def __call__(self, run: Run) -> dict[str, float]:
        """The columns of a round's row."""
        return self.columns(self.of(run))

    def of(self, run: Run) -> Readings:
        """Measure a run between two rounds. Raises ConfigError or CompositionError."""
        with one_thread():
            seed_torch(key(run.fed.seed, "measured", run.state.round), run.net.params[0])
            return {"round": run.state.round, **self._of(run)}

    @abstractmethod
    def _of(self, run: Run) -> Readings: ...

    @abstractmethod
    def columns(self, result: Mapping[str, Any]) -> dict[str, float]:
        """The numbers of a result that make a curve, {column: value}."""
