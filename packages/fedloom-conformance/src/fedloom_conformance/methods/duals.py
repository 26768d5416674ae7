"""Methods in which every client keeps a vector that makes the local problems agree."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..federation import Direction, Federation
from ..networks import Array


def _along(more: Array, pull: float = 0.0, to: Array | float = 0.0) -> Direction:
    """The direction gradient + more + pull (y - to)."""
    return lambda y, g: g + more + pull * (y - to)


def _unit(q: Array) -> Array:
    """q over its norm."""
    return np.asarray(q / (np.linalg.norm(q) + 1e-7))


def scaffold(fed: Federation, server_lr: float, option: int) -> Iterator[Array]:
    """SCAFFOLD: Karimireddy et al., ICML 2020 (arXiv 1910.06378), Algorithm 1.

    Line 10: y <- y - eta (g - c_i + c). Line 12: c_i+ is the gradient at x (option I), or c_i - c +
    (x - y) / (K eta) (option II). Lines 16, 17: x <- x + eta_g mean(y - x), and c <- c + |S| / N
    mean(c_i+ - c_i).
    """
    x, c = fed.start, np.zeros_like(fed.start)
    own = np.zeros((fed.number, len(x)))
    for cohort in fed.cohorts:
        moves, changes = [], []
        for i in cohort:
            y = fed.local(i, x, _along(c - own[i]))
            new = own[i] - c + (x - y) / (fed.steps(i) * fed.lr)
            if option == 1:
                new = fed.grad(i, x)
            moves.append(y - x)
            changes.append(new - own[i])
            own[i] = new
        x = x + server_lr * fed.mean(cohort, moves)
        c = c + len(cohort) / fed.number * np.mean(changes, 0)
        yield x


def feddyn(fed: Federation, alpha: float, scaled: bool = False) -> Iterator[Array]:
    """FedDyn: Acar et al., ICLR 2021 (arXiv 2111.04263), Algorithm 1.

    The local loss is L_k(y) - <g_k, y> + alpha / 2 ||y - x||^2; g_k <- g_k - alpha (y - x), h <- h
    - alpha / m sum over the round's (y - x), x <- mean of the y - h / alpha. K_i steps of SGD stand
    for the minimiser. scaled: their code, where alpha is divided by n_i over the mean size.
    """
    x, h = fed.start, np.zeros_like(fed.start)
    duals = np.zeros((fed.number, len(x)))
    sizes = np.array(fed.problem.sizes, float)
    strength = alpha / (sizes / sizes.mean()) if scaled else np.full(fed.number, alpha)
    for cohort in fed.cohorts:
        ends = []
        for i in cohort:
            y = fed.local(i, x, _along(-duals[i], strength[i], x))
            duals[i] = duals[i] - strength[i] * (y - x)
            ends.append(y)
        h = h - alpha / fed.number * np.sum([y - x for y in ends], 0)
        x = np.mean(ends, 0) - h / alpha
        yield x


def fedsmoo(fed: Federation, rho: float, beta: float, last: bool = True) -> Iterator[Array]:
    """FedSMOO: Sun et al., ICML 2023 (arXiv 2305.11584), Algorithm 1.

    Line 8: s_i = rho q / ||q|| with q = g - mu_i - s. Line 9: mu_i <- mu_i + s_i - s. Lines 10, 11:
    a step along the gradient at y + s_i, less lambda_i, plus (y - x) / beta. Lines 13, 17: s = rho
    v / ||v|| of v = mean(mu_i - s_i). Lines 18, 19: as FedDyn. last False: their code, in which v
    is the mean of the mu_i alone.
    """
    x, s, h = fed.start, np.zeros_like(fed.start), np.zeros_like(fed.start)
    mu, moved = np.zeros((2, fed.number, len(x)))
    for cohort in fed.cohorts:
        ends, sent = [], []
        for i in cohort:
            y = x
            for _ in range(fed.steps(i)):
                own = rho * _unit(fed.grad(i, y) - mu[i] - s)
                mu[i] = mu[i] + own - s
                y = y - fed.lr * (fed.grad(i, y + own) + (moved[i] + y - x) / beta)
            moved[i] = moved[i] + y - x
            ends.append(y)
            sent.append(mu[i] - own if last else mu[i].copy())
        s = rho * _unit(np.mean(sent, 0))
        h = h + np.sum([y - x for y in ends], 0) / fed.number
        x = np.mean(ends, 0) + h
        yield x
