"""FedSpeed: the dual of FedDyn at perturbed points."""

from __future__ import annotations

from typing import Annotated

from ..algorithm import Algorithm
from ..core.hyper import Hyper
from ..wrappers import Sam
from .feddyn import FedDyn


def FedSpeed(
    alpha: Annotated[float, Hyper(source="FL-Simulator: 0.1, its lambda; paper: 1 / lambda")] = 0.1,
    rho: Annotated[float, Hyper(source="FL-Simulator: 0.1")] = 0.1,
    mix: float = 1.0,
) -> Algorithm:
    """FedSpeed (Sun et al., ICLR 2023) as its authors run it: FedDyn on gradients at x + rho g /
    ||g||.

    server: x, h (sum p_i h_i)        client: h (h_i, sum of the client's moves)
    up: delta
    Paper symbols: its alpha -> mix. Differs from the paper, as the authors' FL-Simulator does: the
    dual is averaged over all clients, not over the participants, and mix is 1, so that no plain
    gradient is mixed in. Differs from FL-Simulator: its clip leaves +alpha x out (local.clip_pull =
    false). Of unequal clients it minimises what FedDyn does, as rho goes to 0.
    Reference: https://github.com/woodenchild95/FL-Simulator
    """
    return Sam(inner=FedDyn(alpha=alpha, size_scaled=False), rho=rho, mix=mix)


# the name in a file and on the command line
fedspeed = FedSpeed
