"""FedAvgM: momentum at the server."""

from __future__ import annotations

from ..algorithm import Algorithm, LocalSGD
from ..wrappers import Momentum, ServerOpt


def FedAvgM(beta: float = 0.9, server_lr: float = 1.0) -> Algorithm:
    """FedAvgM (Hsu, Qi & Brown, 2019): the server moves by m = beta m + delta.

    server: x, own.m (momentum)        client: -        up: delta
    Differs from FedACG's code: none; its beta is 0.4, of {0.4, 0.6, 0.8}.
    Reference: https://arxiv.org/abs/1909.06335
    """
    return ServerOpt(inner=LocalSGD(), opt=Momentum(lr=server_lr, beta=beta))


# the name in a file and on the command line
fedavgm = FedAvgM
