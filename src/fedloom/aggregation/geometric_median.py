"""The geometric median: the point with the least sum of distances to all updates."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.hyper import Positive, PositiveInt, hyper
from ..core.vector import Vec
from .rows import FromRows, weighted_mean


class GeometricMedian(FromRows):
    """RFA (Pillutla, Kakade & Harchaoui, IEEE TSP 2022, Algorithm 2): the smoothed Weiszfeld
    algorithm, v = sum b_i w_i / sum b_i with b_i = a_i / max(nu, ||v - w_i||), from the weighted
    mean on. a_i are the clients' weights, as in the paper; fields of unweighted() have equal ones.
    Reference: https://arxiv.org/abs/1912.13445
    """

    steps: PositiveInt = hyper(3, "of the Weiszfeld algorithm", "3 in the paper's experiments")
    nu: Positive = hyper(1e-6, "least distance that is divided by", "1e-6 in the paper")

    def of(self, rows: Tensor, weights: Tensor, before: Tensor | None) -> Vec:
        v = weighted_mean(rows, weights)
        for _ in range(self.steps):
            distances = torch.stack([(v - w).norm() for w in rows]).to(weights)
            v = weighted_mean(rows, weights / distances.clamp_min(self.nu))
        return v
