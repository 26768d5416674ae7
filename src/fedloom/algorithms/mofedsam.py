"""MoFedSAM: the directions of FedCM at perturbed points."""

from __future__ import annotations

from typing import Annotated

from ..algorithm import Algorithm
from ..core.hyper import Hyper
from ..wrappers import Sam
from .fedcm import FedCM


def MoFedSAM(
    alpha: float = 0.1,
    rho: Annotated[float, Hyper(source="FedSMOO: {0.001, 0.01, 0.1}; its code: 0.1")] = 0.01,
    server_lr: float = 1.0,
) -> Algorithm:
    """MoFedSAM (Qu et al., ICML 2022): FedCM on gradients at x + rho g / ||g||.

    server: x, D (mean direction of the last round, 0 before round 1)        client: -
    up: delta
    The perturbation is along the client's own gradient, without D, as in FL-Simulator. The authors'
    own code was not compared. As in FedCM, weight decay pulls as wd / alpha does in FedAvg.
    Reference: https://arxiv.org/abs/2206.02618
    """
    return Sam(inner=FedCM(alpha=alpha, server_lr=server_lr), rho=rho, mix=1.0)


# the name in a file and on the command line
mofedsam = MoFedSAM
