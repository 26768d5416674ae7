"""The coordinate-wise trimmed mean."""

from __future__ import annotations

import math
from typing import Annotated

from annotated_types import Ge, Lt
from torch import Tensor

from ..core.hyper import hyper
from ..core.vector import Vec
from .rows import FromRows, of_sorted


class TrimmedMean(FromRows):
    """The mean of every coordinate without its floor(trim C) smallest and as many largest values of
    C (Yin et al., ICML 2018, Definition 2). Weights are not used, as in the paper. Right while the
    hostile share is at most trim.
    Reference: https://arxiv.org/abs/1803.01498
    """

    trim: Annotated[float, Ge(0), Lt(0.5)] = hyper(
        0.1,
        "share of the values left out at each end",
        "at least the hostile share",
    )

    def of(self, rows: Tensor, weights: Tensor, before: Tensor | None) -> Vec:
        out = self.left_out(len(rows))
        return of_sorted(rows, lambda ordered: ordered[out : len(rows) - out].mean(0))

    def left_out(self, count: int) -> int:
        """How many of so many values are left out at each end."""
        return int(self.trim * count + 1e-9)  # 0.3 * 10 is 3

    def idle(self, count: int) -> str:
        """A warning if of so many updates none is left out, though trim is not 0; else empty."""
        if not self.trim or self.left_out(count):
            return ""
        larger, least = math.ceil((1 - 1e-9) / self.trim), math.ceil(1000 / count) / 1000
        share = f"aggregation.trim = {least:g}, or " if least < 0.5 else ""
        return (
            f"aggregation.trim = {self.trim:g} leaves out none of the {count} updates of a round: "
            f"trimmed_mean is then the plain mean, and one hostile client moves it anywhere; take "
            f"{share}a cohort of at least {larger} clients"
        )
