"""Krum and multi-Krum: the updates that lie closest to their neighbours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from ..core.hyper import PositiveInt, hyper
from ..core.vector import Rec, Vec, rec
from ..errors import ConfigError
from .base import Aggregated, Gives
from .rows import FromRows

AT_ONCE = 8  # rows whose differences from another one are in memory


class Krum(FromRows):
    """The update with the least sum of squared distances to its C - f - 2 nearest neighbours, with
    f = ceil(hostile C) of C updates; with several: the plain mean of that many with the least sums,
    multi-Krum (Blanchard et al., NeurIPS 2017, sections 4 and 5). delta decides, and all fields and
    buffers are of the same clients. Weights are not used, as in the paper. C must be at least
    2 f + 3.
    Reference: https://arxiv.org/abs/1703.02757
    """

    gives = Gives.CLIENTS
    hostile: Annotated[float, Ge(0), Lt(0.5)] = hyper(0.2, "share of updates that may be hostile")
    several: PositiveInt = hyper(1, "how many updates are averaged", "1: Krum; more: multi-Krum")

    def root(self, total: Rec, state: Rec, seed: int, round: int) -> Aggregated:
        rows = list(total.rows)
        keep = self.closest(torch.stack([r.delta for r in rows])).tolist()
        some = rec(**{f"r{k}": rows[i] for k, i in enumerate(keep)})
        result = super().root(total._replace(rows=some), state, seed, round)
        clients = torch.tensor([rows[i].client for i in keep], dtype=torch.float64)
        return result._replace(state=rec(chosen=clients))

    def closest(self, deltas: Tensor) -> Tensor:
        """The places of the chosen rows of (C, d), in order."""
        count = len(deltas)
        neighbours = max(1, count - self.of_hostile(count) - 2)
        scores = _squared_distances(deltas).sort(1).values[:, : min(neighbours, count - 1)].sum(1)
        return scores.argsort(stable=True)[: self.several].sort().values

    def fewest(self, clients: int, updates: int) -> int:
        """So many that each has neighbours to compare, and that `several` are there."""
        return max(self._compared(updates), self.several)

    def _compared(self, count: int) -> int:
        return 2 * self.of_hostile(count) + 3

    def check(self, count: int) -> None:
        if count < (least := self._compared(count)):
            raise ConfigError(
                f"aggregation.hostile = {self.hostile:g}: of {count} clients in a round "
                f"{self.of_hostile(count)} may be hostile, and krum then needs {least}; take a "
                "larger cohort, or a smaller aggregation.hostile"
            )
        if self.several > count:
            raise ConfigError(
                f"aggregation.several must be at most the {count} clients of a round, got "
                f"{self.several}"
            )

    def of_hostile(self, count: int) -> int:
        """f: how many of so many updates may be hostile."""
        return math.ceil(self.hostile * count - 1e-9)  # 0.28 * 25 is 7

    def of(self, rows: Tensor, weights: Tensor, before: Tensor | None) -> Vec:
        return rows.mean(0)

    def report(self, state: Rec, round: int) -> Mapping[str, Any]:
        return {"chosen": [int(i) for i in state.chosen.tolist()]} if state._fields else {}


def _squared_distances(rows: Tensor) -> Tensor:
    """Rows (C, d) -> (C, C), infinity on the diagonal. A few rows at once, in memory that is used
    again, for each pair once.
    """
    count = len(rows)
    squares, space = rows.new_full((count, count), torch.inf), torch.empty_like(rows[:AT_ONCE])
    for i in range(count - 1):
        for first in range(i + 1, count, AT_ONCE):
            end = min(first + AT_ONCE, count)
            # differences, not products: |a|^2 + |b|^2 - 2 a b of near updates is rounding
            differences = torch.sub(rows[first:end], rows[i], out=space[: end - first]).square_()
            squares[i, first:end] = squares[first:end, i] = differences.sum(1)
    return squares
