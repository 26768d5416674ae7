"""FedLin: local gradients corrected by the mean gradient of the same round."""

from __future__ import annotations

from ...algorithm import FedAvg, Grad, Job
from ...core.vector import Rec, Vec, rec, zeros


class FedLin(FedAvg):
    """FedLin (Mitra et al., NeurIPS 2021, Algorithm 1): step along g - g_i + mean of the g_i.

    server: x        client: g (g_i, its gradient at x over all its data)        up: delta
    Paper symbols: g_t, the mean of the g_i, is asked for before the local steps (lines 4 and 5).
    Differs from the paper: the rate is every client's (the paper: eta / K_i); nothing is made
    sparse; the means are weighted as the experiment says (the paper: uniformly).
    Reference: https://arxiv.org/abs/2102.07053
    """

    def client_init(self, x: Vec) -> Rec:
        return rec(g=zeros(x))

    def ask(self, msg: Rec, mem: Rec, job: Job) -> tuple[Rec, Rec]:
        g = job.full(msg.x)
        return rec(g=g), rec(g=g)

    def direction(
        self, x: Vec, loc: Rec, msg: Rec, mem: Rec, grad: Grad, job: Job
    ) -> tuple[Vec, Rec]:
        return grad(x) - mem.g + msg.g, loc
