"""The naive adaptive FedAvg, which diverges: the counterexample of FAFED's paper."""

from __future__ import annotations

import torch

from ..algorithm import Grad, Job, LocalSGD
from ..core.hyper import Decay, NonNegative, hyper
from ..core.vector import Rec, Vec, rec, zeros


class NaiveAdaptive(LocalSGD):
    """Naive adaptive FedAvg (Wu et al., AAAI 2023, Algorithm 1): every client divides by its own
    sqrt(v), only x is averaged. It diverges; do not train with it.

    server: x        client: v (own second moment, 0 at first)        up: delta
    By the paper's Theorem 1 it can move away from the minimum whatever its rate and beta: clients
    with large gradients divide by large roots, so that all count alike. Differs from the paper:
    line 8 prints v_(t,i) for v_(t,j), taken literally the theorem would be false; 0 / 0 is 0; eps
    is ours.
    Reference: https://arxiv.org/abs/2212.00974
    """

    beta: Decay = hyper(0.9, "decay of the second moment", "Theorem 1: 0.5; section 6: {0.1, 0.9}")
    eps: NonNegative = hyper(0.0, "added to the root of the second moment", "0: the paper has none")

    def client_init(self, x: Vec) -> Rec:
        return rec(v=zeros(x))

    def start(self, msg: Rec, mem: Rec, job: Job) -> tuple[Vec, Rec]:
        return msg.x, rec(v=mem.v)

    def direction(
        self, x: Vec, loc: Rec, msg: Rec, mem: Rec, grad: Grad, job: Job
    ) -> tuple[Vec, Rec]:
        g = grad(x)
        v = self.beta * loc.v + (1 - self.beta) * g * g  # line 4
        return torch.where(v > 0, g / (v.sqrt() + self.eps), zeros(g)), rec(v=v)  # line 5

    def finish(self, x: Vec, loc: Rec, msg: Rec, mem: Rec, job: Job) -> tuple[Rec, Rec]:
        return rec(delta=x - msg.x, weight=job.weight), loc
