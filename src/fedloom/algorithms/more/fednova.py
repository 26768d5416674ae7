"""FedNova: average the moves per step, then take a mean number of steps."""

from __future__ import annotations

from ...algorithm import FedAvg, Job, Round, Trait
from ...core.vector import Rec, Vec, rec


class FedNova(FedAvg):
    """FedNova (Wang et al., NeurIPS 2020): unequal local work does not pull the fixed point.

    server: x        client: -        up: delta (over tau), tau (||a_i||_1, a number)
    Paper symbols: a_i, the weights of the client's gradients in its move, in units of the round's
    first rate: of plain steps tau is K_i, of a rate that falls the sum of the rates, of momentum
    what every gradient adds up to. tau_eff is the weighted mean of the tau of the client updates.
    Differs from the paper: no proximal term (refused, as are Adam and AdamW); server_lr.
    Reference: https://arxiv.org/abs/2007.07481
    """

    traits = frozenset({Trait.DIVIDES_BY_RATES})

    def start(self, msg: Rec, mem: Rec, job: Job) -> tuple[Vec, Rec]:
        return msg.x, rec(lr=job.lr)

    def finish(self, x: Vec, loc: Rec, msg: Rec, mem: Rec, job: Job) -> tuple[Rec, Rec]:
        tau = job.lr_sum / loc.lr
        return rec(delta=(x - msg.x) / tau, tau=tau, weight=job.weight), mem

    def unweighted(self, up: Rec, job: Job) -> Rec:
        return rec(tau=up.weight * up.tau, w=up.weight)

    def server_step(self, srv: Rec, up: Rec, rnd: Round) -> Rec:
        return rec(x=srv.x + self.server_lr * (up.tau / up.w) * up.delta)  # tau_eff
