"""FedAMS: AMSGrad at the server, with max stabilisation."""

from __future__ import annotations

from typing import Literal

from ..algorithm import Algorithm, LocalSGD
from ..wrappers import ServerAMSGrad, ServerOpt


def FedAMS(
    server_lr: float = 0.03,
    beta1: float = 0.9,
    beta2: float = 0.99,
    eps: float = 1e-3,
    option: Literal[1, 2] = 1,
    start: float = 0.0,
    corrected: bool = False,
) -> Algorithm:
    """FedAMS (Wang, Lin & Chen, ICML 2022, Algorithm 1): the server divides by the root of the
    largest second moment so far; option 1 puts eps inside the maximum.

    server: x, own.m (momentum), own.v (second moment), own.vhat (its maximum), own.t (rounds)
    client: -        up: delta
    Differs from the authors' code: that one is option 2 with eps = 0, start = 0.001 and corrected.
    With compressed updates and error feedback it is FedCAMS: compress=topk, feedback residual.
    Reference: https://arxiv.org/abs/2205.02719
    """
    opt = ServerAMSGrad(
        lr=server_lr,
        beta1=beta1,
        beta2=beta2,
        eps=eps,
        option=option,
        start=start,
        corrected=corrected,
    )
    return ServerOpt(inner=LocalSGD(), opt=opt)


# the name in a file and on the command line
fedams = FedAMS
