"""The loss on a plane: around a model along two random directions, or through three models."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from ..core.hyper import NonNegative, NonNegativeInt, Positive, PositiveInt, hyper
from ..core.rng import generator
from ..core.vector import Vec
from ..errors import ConfigError
from ..server.rounds import Run
from .base import MeanLoss, Measure, Readings
from .local_models import local_models


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
        around = loss.x, *directions(loss.params, self.seed)
        places, rows = loss.on_square(*around, self.span, self.points)
        count = {"on": self.on, "examples": len(loss.inputs)}
        return count | {"middle": middle, "places": places, "loss": rows}

    def columns(self, result: Mapping[str, Any]) -> dict[str, float]:
        values = [v for row in result["loss"] for v in row]
        finite = [v for v in values if v is not None]
        if len(finite) < len(values):
            return {}
        return {"surface_rise": math.fsum(finite) / len(finite) - result["middle"]}


Point = tuple[float, float]


def axes(models: Sequence[Vec]) -> tuple[Vec, Vec, Vec, list[Point]]:
    """Three models (d,) -> their middle, two directions of length 1 at right angles, and the place
    of each model along them from the middle. Where the models lie on a line the second direction
    is 0, and where they are equal both are.
    """
    middle = torch.stack(list(models)).mean(0)
    first = _unit(models[1] - models[0])
    rest = models[2] - models[0]
    second = _unit(rest - (rest @ first) * first)
    away = [m - middle for m in models]
    return middle, first, second, [(float(a @ first), float(a @ second)) for a in away]


def _unit(v: Vec) -> Vec:
    length = v.norm()
    return v / length if float(length) > 0 else v


class Plane(Measure):
    """The loss on the plane through the local models of the next cohort's first three clients.

    The square around their middle reaches `margin` times further than the farthest of them. As the
    surface it is the mean loss of evaluation. A run's columns are plane_loss, the mean loss of the
    three, plane_middle, the loss of their mean, and plane_distance, the mean of the distances
    between them. It costs a round. Source: Kim et al., FedACG, CVPR 2024, Figure 2a.
    """

    on: Literal["train", "test"] = hyper("train", "whose examples")
    examples: PositiveInt = hyper(1000, "how many of them, drawn by the seed")
    margin: NonNegative = hyper(0.5, "of the square, in distances of the farthest model")
    points: PositiveInt = hyper(25, "along each direction; the time grows with its square")
    seed: NonNegativeInt = hyper(0, "of the examples")

    def _of(self, run: Run) -> Readings:
        local = local_models(run)
        clients = sorted(local.models)[:3]
        if len(clients) < 3:
            raise ConfigError(
                f"a plane needs the local models of three clients, and round "
                f"{run.state.round + 1} has {len(clients)}; give a cohort of 3 or more"
            )
        loss = MeanLoss.of(run, self.on, self.examples, self.seed)
        models = [local.models[i] for i in clients]
        middle, first, second, at = axes(models)
        span = (1 + self.margin) * max(math.hypot(*place) for place in at)
        places, rows = loss.on_square(middle, first, second, span, self.points)
        return {
            "on": self.on,
            "examples": len(loss.inputs),
            "clients": clients,
            "at": [list(place) for place in at],
            "losses": [loss.at(x) for x in models],
            "middle": loss.at(middle),
            "distances": [math.dist(a, b) for a, b in itertools.combinations(at, 2)],
            "places": places,
            "loss": rows,
        }

    def columns(self, result: Mapping[str, Any]) -> dict[str, float]:
        out = {"plane_distance": math.fsum(result["distances"]) / 3}
        if None not in result["losses"]:
            out["plane_loss"] = math.fsum(result["losses"]) / 3
        return out if result["middle"] is None else out | {"plane_middle": result["middle"]}
