"""Centred clipping: the mean of what is left of the updates near the last aggregate."""

from __future__ import annotations

from torch import Tensor

from ..core.hyper import Positive, PositiveInt, hyper
from ..core.vector import Rec, Vec, clip, rec, zeros
from .base import Aggregation
from .rows import FromRows


class CentredClipping(FromRows):
    """v + mean of the w_i - v, each shortened to the radius, a few times over; v begins at the
    aggregate of the last round, in round 1 at 0 (Karimireddy, He & Jaggi, ICML 2021, Algorithm 2).
    Weights are not used, as in the paper. Its clients send momentum: take local or server momentum.
    Reference: https://arxiv.org/abs/2012.10333
    """

    radius: Positive = hyper(1.0, "tau, largest distance to v", "{0.1, 10, ...} in the paper")
    steps: PositiveInt = hyper(1, "how often v moves in a round", "1 and 3 in the paper")

    @property
    def of_answers(self) -> Aggregation | None:
        return None  # it remembers updates

    def of(self, rows: Tensor, weights: Tensor, before: Tensor | None) -> Vec:
        v = zeros(rows[0]) if before is None else before.to(rows)
        for _ in range(self.steps):
            v = v + sum(clip(w - v, self.radius) for w in rows) / len(rows)
        return v

    def remembered(self, fields: dict[str, Vec]) -> Rec:
        like = fields["delta"]
        return rec(
            **{k: v if isinstance(v, Tensor) else like.new_tensor([v]) for k, v in fields.items()}
        )
