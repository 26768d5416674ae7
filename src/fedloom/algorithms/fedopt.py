"""FedAdam, FedAdagrad and FedYogi: adaptive optimisers at the server."""

from __future__ import annotations

from ..algorithm import Algorithm, LocalSGD
from ..wrappers import ServerAdagrad, ServerAdam, ServerOpt, ServerYogi


def FedAdagrad(
    server_lr: float = 0.03, beta1: float = 0.0, tau: float = 1e-3, v0: float | None = None
) -> Algorithm:
    """FedAdagrad (Reddi et al., ICLR 2021, Algorithm 2): the server divides by the root of the sum
    of all squared moves.

    server: x, own.m (momentum), own.v (second moment)        client: -        up: delta
    Paper symbols: eta -> server_lr, eta_l -> local.lr. v begins at tau^2, without bias correction;
    its first printing (arXiv version 1) squared the momentum, this squares the mean move.
    Reference: https://arxiv.org/abs/2003.00295
    """
    opt = ServerAdagrad(lr=server_lr, beta1=beta1, tau=tau, v0=v0)
    return ServerOpt(inner=LocalSGD(), opt=opt)


def FedAdam(
    server_lr: float = 0.01,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
    v0: float | None = None,
) -> Algorithm:
    """FedAdam (Reddi et al., ICLR 2021, Algorithm 2): the server moves by m / (sqrt(v) + tau).

    server: x, own.m (momentum), own.v (second moment)        client: -        up: delta
    Paper symbols: eta -> server_lr, eta_l -> local.lr. v begins at tau^2, without bias correction.
    FedSMOO's code is v0 = 0, tau = 0.01, server_lr = 0.1; FedACG's is the default.
    Reference: https://arxiv.org/abs/2003.00295
    """
    opt = ServerAdam(lr=server_lr, beta1=beta1, beta2=beta2, tau=tau, v0=v0)
    return ServerOpt(inner=LocalSGD(), opt=opt)


def FedYogi(
    server_lr: float = 0.01,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
    v0: float | None = None,
) -> Algorithm:
    """FedYogi (Reddi et al., ICLR 2021, Algorithm 2): FedAdam whose second moment moves by (1 -
    beta2) delta^2 up or down.

    server: x, own.m (momentum), own.v (second moment)        client: -        up: delta
    Paper symbols: eta -> server_lr, eta_l -> local.lr. v begins at tau^2, without bias correction.
    Reference: https://arxiv.org/abs/2003.00295
    """
    opt = ServerYogi(lr=server_lr, beta1=beta1, beta2=beta2, tau=tau, v0=v0)
    return ServerOpt(inner=LocalSGD(), opt=opt)


# the names in a file and on the command line
fedadagrad = FedAdagrad
fedadam = FedAdam
fedyogi = FedYogi
