"""The curvature of the loss: the Hessian's largest eigenvalue and its trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..core.hyper import NonNegativeInt, Positive, PositiveInt, hyper
from ..core.rng import generator
from ..core.vector import Vec
from ..server.rounds import Run
from .base import MeanLoss, Measure, Readings

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
