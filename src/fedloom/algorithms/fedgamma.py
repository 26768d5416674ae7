"""FedGamma: SCAFFOLD's control variates at perturbed points."""

from __future__ import annotations

from typing import Annotated

from ..algorithm import Algorithm
from ..core.hyper import Hyper
from ..wrappers import Sam
from .scaffold import Scaffold


def FedGAMMA(
    rho: Annotated[float, Hyper(source="FL-Simulator: 0.01")] = 0.01, server_lr: float = 1.0
) -> Algorithm:
    """FedGAMMA (Dai et al., TNNLS 2023) as FL-Simulator runs it: SCAFFOLD on gradients at x + rho
    g / ||g||.

    server: x, c (sum p_i c_i)        client: c (c_i)        up: delta, dc
    The perturbation is along the client's own gradient, without c - c_i. The paper itself was not
    compared. FL-Simulator divides by E n_0 / batch steps of the first client, here by the client's
    own rates.
    Reference: https://github.com/woodenchild95/FL-Simulator
    """
    return Sam(inner=Scaffold(server_lr=server_lr), rho=rho, mix=1.0)


# the name in a file and on the command line
fedgamma = FedGAMMA
