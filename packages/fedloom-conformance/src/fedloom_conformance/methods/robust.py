"""Aggregations that a few hostile clients cannot move far: median, trimmed mean, Krum."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ..federation import Federation
from ..networks import Array


def _aggregated(fed: Federation, rule: Callable[[Array], Array]) -> Iterator[Array]:
    """Rounds in which the server moves by rule(rows (clients, d))."""
    x = fed.start
    for cohort in fed.cohorts:
        x = x + rule(np.stack([fed.local(i, x) - x for i in cohort]))
        yield x


def median(fed: Federation) -> Iterator[Array]:
    """The coordinate-wise median: Yin et al., ICML 2018 (arXiv 1803.01498), Definition 1."""
    return _aggregated(fed, lambda rows: np.median(rows, 0))


def trimmed_mean(fed: Federation, trim: float) -> Iterator[Array]:
    """The coordinate-wise trimmed mean: Yin et al. (arXiv 1803.01498), Definition 2: without the
    beta fraction of the largest and of the smallest values of every coordinate.
    """

    def kept(rows: Array) -> Array:
        out = int(trim * len(rows) + 1e-9)  # 0.3 * 10 is 3
        return np.asarray(np.sort(rows, 0)[out : len(rows) - out].mean(0))

    return _aggregated(fed, kept)


def krum(fed: Federation, hostile: int) -> Iterator[Array]:
    """Krum: Blanchard et al., NeurIPS 2017 (arXiv 1703.02757), section 4: the move with the least
    sum of squared distances to its n - f - 2 nearest neighbours.
    """

    def chosen(rows: Array) -> Array:
        squares = ((rows[:, None] - rows[None]) ** 2).sum(2)
        near = np.sort(squares, 1)[:, 1 : len(rows) - hostile - 1]  # not the 0 to itself
        return np.asarray(rows[near.sum(1).argmin()])

    return _aggregated(fed, chosen)
