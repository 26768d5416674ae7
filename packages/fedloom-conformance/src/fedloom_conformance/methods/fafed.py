"""FAFED: variance-reduced local steps with one adaptive matrix for all clients."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..federation import Federation
from ..networks import Array


def fafed(
    fed: Federation,
    alpha: float,
    beta: float,
    rho: float,
    divided_first: bool = False,
    old_matrix: bool = False,
) -> Iterator[Array]:
    """FAFED: Wu et al., AAAI 2023 (arXiv 2212.00974), Algorithm 2; all clients, K steps each.

    Line 3: x_1 = x_0 - eta m_0, without A_0 as printed. Lines 7, 8: m <- g + (1 - alpha)(m - g of
    the own last point), v <- beta v + (1 - beta) g^2. Lines 10 to 12, at the end of a round: means
    of m and v, A = sqrt(v) + rho, and the step by the new A. Lines 14, 15, else: the step by the A
    of the last round. A client keeps its own point as the last one. divided_first: line 3 with A_0.
    old_matrix: their code, which steps by the old A at the end of a round too.
    """
    clients = range(fed.number)
    grads = np.stack([fed.grad(i, fed.start) for i in clients])
    m, v = np.repeat(grads.mean(0, keepdims=True), fed.number, 0), np.mean(grads**2, 0)
    matrix = np.sqrt(v) + rho
    old = np.repeat(fed.start[None], fed.number, 0)
    x = old - fed.lr * m / (matrix if divided_first else 1.0)
    v = np.repeat(v[None], fed.number, 0)
    for _ in fed.cohorts:
        for k in range(fed.steps(0)):
            g = np.stack([fed.grad(i, x[i]) for i in clients])
            before = np.stack([fed.grad(i, old[i]) for i in clients])
            m = g + (1 - alpha) * (m - before)
            v = beta * v + (1 - beta) * g**2
            old = x
            if k == fed.steps(0) - 1:
                m, v, x = (np.repeat(z.mean(0, keepdims=True), fed.number, 0) for z in (m, v, x))
                step = matrix if old_matrix else np.sqrt(v[0]) + rho
                matrix, x = np.sqrt(v[0]) + rho, x - fed.lr * m / step
            else:
                x = x - fed.lr * m / matrix
        yield x[0]
