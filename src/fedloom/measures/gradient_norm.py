"""How near a model is to a stationary point: what theorems of convergence bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ..algorithms.fafed import FAFED
from ..core.hyper import NonNegativeInt, PositiveInt, hyper
from ..core.vector import Rec, Vec
from ..server.rounds import Run
from .base import Measure, Readings
from .mean_loss import MeanLoss


def fafed_measure(srv: Rec, method: FAFED, loss: MeanLoss) -> float:
    """M_t of the last step: (||x_(t+1) - x_t||^2 / eta_t^2 + ||grad f(x_t) - m_t||^2 / rho^2) / 4.

    srv: FAFED's server state after a round. Source: FAFED (Wu et al., AAAI 2023), Eq. 10.
    """
    move = srv.m / (srv.v.sqrt() + method.rho)  # x_t - x_(t+1) = eta_t move
    away = loss.slope_at(srv.x + srv.lr * move) - srv.m
    return float(move.double().square().sum() + away.double().square().sum() / method.rho**2) / 4


class GradientNorm(Measure):
    """||grad f(x)||^2 of the mean loss at the server's model, and FAFED's own measure M_t.

    Without decay, augmentation and training terms of objectives. A run's columns are
    gradient_square and, of FAFED, fafed_measure (not with a_lag, whose last step is the clients').
    Source: CFedAvg (Yang et al., 2021), Theorem 1; FAFED (Wu et al., AAAI 2023), Eq. 10.
    """

    on: Literal["train", "test"] = hyper("train", "whose examples")
    examples: PositiveInt = hyper(5000, "how many of them, drawn by the seed")
    seed: NonNegativeInt = hyper(0, "of the examples")

    def _of(self, run: Run) -> Readings:
        loss = MeanLoss.of(run, self.on, self.examples, self.seed)
        slope: Vec = loss.slope_at(loss.x)
        readings: Readings = {"on": self.on, "examples": len(loss.inputs)}
        readings["square"] = float(slope.double().square().sum())
        method = run.plan.algorithm
        if isinstance(method, FAFED) and not method.a_lag and run.state.round:
            readings["fafed"] = fafed_measure(run.state.srv, method, loss)
        return readings

    def columns(self, result: Mapping[str, Any]) -> dict[str, float]:
        names = {"gradient_square": "square", "fafed_measure": "fafed"}
        return {name: result[key] for name, key in names.items() if key in result}
