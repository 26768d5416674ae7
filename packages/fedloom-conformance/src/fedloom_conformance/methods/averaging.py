"""Methods that average what the clients reached: FedAvg, FedProx, FedNova."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..federation import Federation
from ..networks import Array


def fedavg(fed: Federation, server_lr: float = 1.0) -> Iterator[Array]:
    """FedAvg: McMahan et al., AISTATS 2017 (arXiv 1602.05629), Algorithm 1.

    ServerExecutes, last line: w <- sum n_k / n w_k over the round's clients. server_lr is the
    global step size of Reddi et al. (arXiv 2003.00295), Algorithm 1: x <- x + eta Delta.
    """
    x = fed.start
    for cohort in fed.cohorts:
        mean = fed.mean(cohort, [fed.local(i, x) for i in cohort])
        x = np.where(fed.trained, x + server_lr * (mean - x), mean)
        yield x


def fedprox(fed: Federation, mu: float, half: bool = True) -> Iterator[Array]:
    """FedProx: Li et al., MLSys 2020 (arXiv 1812.06127), Algorithm 2, line 4 and Eq. 2.

    The local loss is F_k(w) + mu / 2 ||w - w^t||^2; K_i steps of SGD stand for its inexact
    minimiser. half False: mu ||w - w^t||^2, as in the code of FedACG.
    """
    x, strength = fed.start, mu if half else 2 * mu
    for cohort in fed.cohorts:
        pulled = lambda y, g, x=x: g + strength * (y - x)
        x = fed.mean(cohort, [fed.local(i, x, pulled) for i in cohort])
        yield x


def fednova(fed: Federation) -> Iterator[Array]:
    """FedNova: Wang et al., NeurIPS 2020 (arXiv 2007.07481), Algorithm 1 and Eq. 6, plain SGD.

    d_i = (x - y_i) / tau_i, and x <- x - tau_eff sum p_i d_i with tau_eff = sum p_i tau_i.
    """
    x = fed.start
    for cohort in fed.cohorts:
        tau = np.array([fed.steps(i) for i in cohort], float)
        moves = [(fed.local(i, x) - x) / t for i, t in zip(cohort, tau, strict=True)]
        x = x + (fed.shares(cohort) @ tau) * fed.mean(cohort, moves)
        yield x
