"""FIARSE: every client trains the largest weights, as many as it can hold."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..federation import Federation
from ..networks import Array


def fiarse(fed: Federation, biased: bool = True) -> Iterator[Array]:
    """FIARSE: Wu et al., NeurIPS 2024 (arXiv 2406.12752), Algorithm 1, Eq. 2 and 3, one threshold.

    theta_i is the floor(gamma_i d)-th largest |x|, 0 for gamma = 1, fixed for a round. A step: M =
    1[|y| >= theta]; y <- y - eta grad(y M) M (1 + 2 |y| theta / (|y| + theta)^2). A coordinate
    moves by the mean of the clients that hold it at the round's start (Appendix C.1). biased False:
    without the last factor, which is what the authors' code does.
    """
    x = fed.start
    for cohort in fed.cohorts:
        moves, holders = [], []
        for i in cohort:
            gamma = fed.problem.capacities[i]
            theta = 0.0 if gamma == 1 else np.sort(np.abs(x))[-int(gamma * len(x))]
            y = x
            for _ in range(fed.steps(i)):
                size = np.abs(y)
                mask = size >= theta
                factor = 1 + 2 * size * theta / (size + theta) ** 2 if theta and biased else 1.0
                y = y - fed.lr * fed.grad(i, y * mask) * mask * factor
            moves.append(y - x)
            holders.append(np.abs(x) >= theta)
        x = x + np.sum(moves, 0) / np.maximum(1, np.sum(holders, 0))
        yield x
