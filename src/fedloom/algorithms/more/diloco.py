"""DiLoCo: many steps of AdamW at the clients, Nesterov momentum at the server."""

from __future__ import annotations

from ...algorithm import Algorithm, LocalSGD, Trait
from ...wrappers import Nesterov, ServerOpt


def DiLoCo(server_lr: float = 0.7, beta: float = 0.9) -> Algorithm:
    """DiLoCo (Douillard et al., 2023, Algorithm 1): the server moves by delta + beta m.

    server: x, own.m (momentum)
    client: - (with local.optimiser = adamw: opt.m, opt.v, the moments, and opt.t, its steps so far)
    up: delta
    The inner optimiser is local.optimiser = adamw, with local.steps = 500. A client keeps its state
    from round to round (the paper: every worker its own), and as it was over rounds that it missed.
    Reference: https://arxiv.org/abs/2311.08105
    """
    return ServerOpt(inner=DiLoCoSteps(), opt=Nesterov(lr=server_lr, beta=beta))


class DiLoCoSteps(LocalSGD):
    """The inner steps of DiLoCo (Douillard et al., 2023): see DiLoCo().

    server: x        client: -        up: delta
    """

    traits = frozenset({Trait.KEEPS_OPTIMISER})


# the name in a file and on the command line
diloco = DiLoCo
