"""The loss on a plane through a model, along two random directions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from ..core.hyper import NonNegativeInt, Positive, PositiveInt, hyper
from ..core.rng import generator
from ..core.vector import Vec
from ..server.rounds import Run
from .base import Measure, Readings
from .mean_loss import MeanLoss


def directions(params: Sequence[Tensor], seed: int = 0) -> tuple[Vec, Vec]:
    """Two random directions (d,), scaled filter by filter: every slice along the first axis of a
    weight has the length of the model's own slice. Biases and norms, which have one axis, stay.

    Source: Li et al., Visualizing the Loss Landscape of Neural Nets, NeurIPS 2018, section 4.
    """
    draw, vectors = generator(seed, "surface"), []
    for _ in range(2):
        parts = []
        for p in params:
            noise = torch.randn(p.shape, generator=draw, dtype=torch.float64).to(p)
            if p.ndim < 2:
                parts.append(torch.zeros_like(noise).reshape(-1))
                continue
            rows, weights = noise.flatten(1), p.detach().flatten(1)
            parts.append((rows * (weights.norm(dim=1) / rows.norm(dim=1))[:, None]).reshape(-1))
        vectors.append(torch.cat(parts))
    return vectors[0], vectors[1]


def surface(
    loss: MeanLoss, span: float = 1.0, points: int = 31, seed: int = 0
) -> tuple[list[float], list[list[float | None]]]:
    """The places along each direction, and f(x + a u + b v) for each a and b: rows are a's.

    None stands for a loss that is not finite. The model is as before afterwards.
    """
    return loss.on_square(loss.x, *directions(loss.params, seed), span, points)


class Surface(Measure):
    """The loss on a square around the server's model, along two filter-normalised directions.

    As the Hessian it is the mean loss of evaluation. A run's column is surface_rise: the mean loss
    over the square less the loss at its middle. Source: FedSMOO (Sun et al., ICML 2023), Figure 3;
    Li et al., NeurIPS 2018.
    """

    on: Literal["train", "test"] = hyper("train", "whose examples")
    examples: PositiveInt = hyper(1000, "how many of them, drawn by the seed")
    span: Positive = hyper(1.0, "how far the square reaches, in lengths of the filters")
    points: PositiveInt = hyper(31, "along each direction; the time grows with its square")
    seed: NonNegativeInt = hyper(0, "of examples and directions")

    def _of(self, run: Run) -> Readings:
        loss = MeanLoss.of(run, self.on, self.examples, self.seed)
        middle = loss.value()
        places, rows = surface(loss, self.span, self.points, self.seed)
        count = {"on": self.on, "examples": len(loss.inputs)}
        return count | {"middle": middle, "places": places, "loss": rows}

    def columns(self, result: Mapping[str, Any]) -> dict[str, float]:
        values = [v for row in result["loss"] for v in row]
        finite = [v for v in values if v is not None]
        if len(finite) < len(values):
            return {}
        return {"surface_rise": math.fsum(finite) / len(finite) - result["middle"]}
