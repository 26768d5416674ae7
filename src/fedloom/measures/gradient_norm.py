"""How near a model is to a stationary point: what theorems of convergence bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ..core.hyper import NonNegativeInt, PositiveInt, hyper
from ..server.rounds import Run
from .base import Measure, Readings
from .mean_loss import MeanLoss


class GradientNorm(Measure):
    """||grad f(x)||^2 of the mean loss at the server's model.

    Without decay, augmentation and training terms of objectives. A run's column is gradient_square.
    Source: CFedAvg (Yang et al., 2021), Theorem 1.
    """

    on: Literal["train", "test"] = hyper("train", "whose examples")
    examples: PositiveInt = hyper(5000, "how many of them, drawn by the seed")
    seed: NonNegativeInt = hyper(0, "of the examples")

    def _of(self, run: Run) -> Readings:
        loss = MeanLoss.of(run, self.on, self.examples, self.seed)
        square = float(loss.slope_at(loss.x).double().square().sum())
        return {"on": self.on, "examples": len(loss.inputs), "square": square}

    def columns(self, result: Mapping[str, Any]) -> dict[str, float]:
        return {"gradient_square": result["square"]}
