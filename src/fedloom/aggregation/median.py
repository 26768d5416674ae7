"""The coordinate-wise median."""

from __future__ import annotations

from torch import Tensor

from ..core.vector import Vec
from .rows import FromRows, of_sorted


class Median(FromRows):
    """The median of every coordinate (Yin et al., ICML 2018, Definition 1); of an even number the
    mean of the two in the middle. Weights are not used, as in the paper. Right while fewer than
    half of the updates are hostile.
    Reference: https://arxiv.org/abs/1803.01498
    """

    def of(self, rows: Tensor, weights: Tensor, before: Tensor | None) -> Vec:
        def middle(ordered: Tensor) -> Tensor:
            low, high = ordered[(len(rows) - 1) // 2], ordered[len(rows) // 2]
            return low + (high - low) / 2

        return of_sorted(rows, middle)
