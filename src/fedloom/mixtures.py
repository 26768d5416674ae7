"""Methods that are an expression of two papers' parts."""

from __future__ import annotations

from typing import Annotated

from .algorithm import Algorithm
from .algorithms import FedCM, FedDyn
from .wrappers import Sam

__all__ = ["fedspeed", "mofedsam"]


def mofedsam(
    alpha: float = 0.1,
    rho: Annotated[float, "FedSMOO: 0.01, of {0.001, 0.01, 0.1}; its code: 0.1"] = 0.01,
    server_lr: float = 1.0,
) -> Algorithm:
    """MoFedSAM (Qu et al., ICML 2022): FedCM on gradients at x + rho g / ||g||.

    server: x, D (mean direction of the last round, 0 before round 1)        memory: -
    up: delta
    The perturbation is along the client's own gradient, without D, as in FL-Simulator. The authors'
    own code was not compared. As in FedCM, weight decay pulls as wd / alpha does in FedAvg.
    Reference: https://arxiv.org/abs/2206.02618
    """
    return Sam(inner=FedCM(alpha=alpha, server_lr=server_lr), rho=rho, mix=1.0)


def fedspeed(
    alpha: Annotated[float, "FL-Simulator: 0.1 (its lambda; 1 / lambda in the paper)"] = 0.1,
    rho: Annotated[float, "FL-Simulator: 0.1"] = 0.1,
    mix: float = 1.0,
) -> Algorithm:
    """FedSpeed (Sun et al., ICLR 2023) as its authors run it: FedDyn on gradients at x + rho g /
    ||g||.

    server: x, h (mean of all h_i)        memory: h (h_i, sum of the client's moves)
    up: delta
    Paper symbols: its alpha -> mix. Differs from the paper, as the authors' FL-Simulator does: the
    dual is averaged over all clients, not over the participants, and mix is 1, so that no plain
    gradient is mixed in.
    Reference: https://github.com/woodenchild95/FL-Simulator
    """
    return Sam(inner=FedDyn(alpha=alpha, size_scaled=False), rho=rho, mix=mix)
