"""FedProx: a pull towards the received model."""

from __future__ import annotations

from ..algorithm import Algorithm, FedAvg
from ..wrappers import Prox


def FedProx(mu: float = 0.001, server_lr: float = 1.0) -> Algorithm:
    """FedProx (Li et al., MLSys 2020, Algorithm 2): FedAvg with mu/2 ||x - msg.x||^2 in the local
    loss.

    server: x        client: -        up: delta
    Differs from the paper: K SGD steps stand for its gamma-inexact solution.
    Differs from FedACG's code: that one's weight is mu/2, 0.001 (mu = 0.002); its text says 0.001.
    Differs from FL-Simulator: its clip leaves +mu x out (local.clip_pull = false).
    Reference: https://arxiv.org/abs/1812.06127
    """
    return Prox(inner=FedAvg(server_lr=server_lr), mu=mu)


# the name in a file and on the command line
fedprox = FedProx
