"""The loss around a model: the Hessian's largest eigenvalue and its trace, the loss along two
random directions, and on the plane through three local models.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..core.hyper import NonNegative, NonNegativeInt, Positive, PositiveInt, hyper
from ..core.rng import generator
from ..core.vector import Vec
from ..errors import ConfigError
from ..server.rounds import Run
from .base import MeanLoss, Measure, Readings
from .local_models import local_models

Product = Callable[[Vec], Vec]


class Spectrum(NamedTuple):
    """What `hessian` finds. top: the largest eigenvalue; top_error: at most so far from an
    eigenvalue; bottom: the smallest that was seen. trace, and the standard error of its estimate (0
    if it is exact).
    """

    top: float
    top_error: float
    bottom: float
    trace: float
    trace_error: float


def hessian(
    loss: MeanLoss, steps: int = 50, probes: int = 100, tolerance: float = 1e-3, seed: int = 0
) -> Spectrum:
    """The top eigenvalue and the trace of a loss' Hessian at the parameters as they are.

    The eigenvalue is by Lanczos with full reorthogonalisation: at most `steps` products with the
    Hessian, fewer if its error is within `tolerance` of it; it keeps as many vectors of the model's
    length. The trace is Hutchinson's mean of v' H v over `probes` random signs v, and exact for a
    model with no more parameters than probes.

    Source: Lanczos 1950; Hutchinson 1990.
    """
    start = torch.randn(loss.d, generator=generator(seed, "lanczos"), dtype=torch.float64)
    top, error, bottom = lanczos(loss.product, start.to(loss.x), steps, tolerance)
    return Spectrum(top, error, bottom, *trace(loss, probes, seed))


def lanczos(
    product: Product, start: Vec, steps: int, tolerance: float
) -> tuple[float, float, float]:
    """The largest eigenvalue of a symmetric operator on (d,), a bound of its error, the smallest.

    >>> scale = torch.tensor([5.0, 2.0, -1.0], dtype=torch.float64)
    >>> values = lanczos(lambda v: scale * v, torch.ones(3, dtype=torch.float64), 9, 1e-9)
    >>> [round(v, 6) for v in values]
    [5.0, 0.0, -1.0]
    """
    basis = [start / start.norm()]
    diagonal: list[float] = []
    off_diagonal: list[float] = []
    top = error = bottom = 0.0
    for step in range(min(steps, start.numel())):
        w = product(basis[-1])
        diagonal.append(float(basis[-1] @ w))
        for _ in range(2):  # the second time takes away what rounding left
            for q in basis:
                w = w - (q @ w) * q
        off_diagonal.append(float(w.norm()))
        small = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
        off = torch.tensor(off_diagonal[:-1], dtype=torch.float64)
        small += torch.diag(off, 1) + torch.diag(off, -1) if step else 0.0
        values, vectors = torch.linalg.eigh(small)
        top, bottom = float(values[-1]), float(values[0])
        error = off_diagonal[-1] * abs(float(vectors[-1, -1]))
        if error <= tolerance * abs(top) or not math.isfinite(error):
            break
        basis.append(w / off_diagonal[-1])
    return top, error, bottom


def trace(loss: MeanLoss, probes: int, seed: int = 0) -> tuple[float, float]:
    """The trace of a loss' Hessian, and the standard error of the estimate: see `hessian`."""
    x, d = loss.x, loss.d
    if d <= probes:
        unit = torch.eye(d, dtype=x.dtype, device=x.device)
        return math.fsum(float(loss.product(e) @ e) for e in unit), 0.0
    draw, samples = generator(seed, "hutchinson"), []
    for _ in range(probes):
        signs: Tensor = torch.randint(0, 2, (d,), generator=draw) * 2 - 1
        v = signs.to(x)
        samples.append(float(loss.product(v) @ v))
    middle = math.fsum(samples) / probes
    spread = math.fsum((f - middle) ** 2 for f in samples)
    return middle, math.sqrt(spread / (probes * max(probes - 1, 1)))


class Hessian(Measure):
    """The largest eigenvalue and the trace of the Hessian of the mean loss, at the server's model.

    Without decay, augmentation and training terms of objectives. A run's columns are hessian_top
    and hessian_trace. Source: FedSMOO (Sun et al., ICML 2023), Table 2.
    """

    on: Literal["train", "test"] = hyper("train", "whose examples")
    examples: PositiveInt = hyper(5000, "how many of them, drawn by the seed", "FedSMOO: not said")
    steps: PositiveInt = hyper(50, "most products for the eigenvalue, and vectors that are kept")
    probes: PositiveInt = hyper(100, "random signs for the trace")
    tolerance: Positive = hyper(1e-3, "error of the eigenvalue, as a share of it")
    seed: NonNegativeInt = hyper(0, "of examples, start and probes")

    def _of(self, run: Run) -> Readings:
        loss = MeanLoss.of(run, self.on, self.examples, self.seed)
        spectrum = hessian(loss, self.steps, self.probes, self.tolerance, self.seed)
        count = {"on": self.on, "examples": len(loss.inputs), "parameters": loss.d}
        return count | spectrum._asdict()

    def columns(self, result: Mapping[str, Any]) -> dict[str, float]:
        return {"hessian_top": result["top"], "hessian_trace": result["trace"]}


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
