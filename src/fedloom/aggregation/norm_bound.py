"""Norm bounding: updates that are too long are shortened, and then averaged as always."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..core.hyper import Positive, hyper
from ..core.vector import Rec, leaves, rec, tree
from .base import Aggregated, Aggregation, Gives, weighted

BELOW = 1 - 1e-6  # rounding must not make an update longer than the bound


class NormBound(Aggregation):
    """Every update is shortened to a norm, delta and the vectors of unweighted() together, and then
    averaged by weight (Sun et al., "Can You Really Backdoor Federated Learning?", 2019, section 4).
    The only robust rule of which sums are enough: any engine, sub-models too.
    Reference: https://arxiv.org/abs/1911.07963
    """

    gives = Gives.BOUNDED
    norm: Positive = hyper(1.0, "largest norm of an update")

    def leaf(self, part: Rec, msg: Rec, seed: int, round: int, client: int) -> Rec:
        factor = factor_to(self.norm, length(part))
        part = scaled(part, factor)
        return rec(**weighted(part)._asdict(), shortened=float(factor < 1))

    def root(self, total: Rec, state: Rec, seed: int, round: int) -> Aggregated:
        result = super().root(total, state, seed, round)
        fraction = torch.tensor(total.shortened / total.n, dtype=torch.float64)
        return result._replace(state=rec(shortened=fraction))

    def report(self, state: Rec, round: int) -> Mapping[str, Any]:
        return {"shortened": float(state.shortened)} if state._fields else {}


def length(part: Rec, numbers: bool = False) -> float:
    """The norm of delta and unweighted()'s vectors (and numbers) as one vector, in double."""
    square = 0.0
    for v in leaves(part.delta, part.unweighted):
        if isinstance(v, Tensor):
            square += float(v.double().square().sum())
        elif numbers:
            square += float(v) ** 2
    return math.sqrt(square)


def factor_to(norm: float, length: float) -> float:
    """What a vector is multiplied by to be no longer than `norm`."""
    return 1.0 if length <= norm else norm / length


def scaled(part: Rec, factor: float, numbers: bool = False) -> Rec:
    """A part with delta and the vectors of unweighted() (and its numbers) times a factor."""
    if factor == 1.0:
        return part
    by = lambda v: v * factor if numbers or isinstance(v, Tensor) else v
    return part._replace(delta=part.delta * factor, unweighted=tree(by, part.unweighted))
