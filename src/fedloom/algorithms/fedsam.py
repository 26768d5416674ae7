"""FedSAM: clients minimise sharpness-aware losses."""

from __future__ import annotations

from typing import Annotated

from ..algorithm import Algorithm, FedAvg
from ..wrappers import Sam


def FedSAM(
    rho: Annotated[float, "FedSMOO: 0.01, of {0.001, 0.01, 0.1}; its code: 0.1"] = 0.01,
    server_lr: float = 1.0,
) -> Algorithm:
    """FedSAM (Qu et al., ICML 2022): FedAvg on gradients at x + rho g / ||g||.

    server: x        client: -        up: delta
    As in FL-Simulator: one batch for both gradients, the norm over all parameters, neither clipping
    nor weight decay in the perturbation. The authors' own code was not compared.
    Reference: https://arxiv.org/abs/2206.02618
    """
    return Sam(inner=FedAvg(server_lr=server_lr), rho=rho, mix=1.0)


# the name in a file and on the command line
fedsam = FedSAM
