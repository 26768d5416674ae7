"""FedNova: average the moves per step, then take a mean number of steps."""

from __future__ import annotations

from ..algorithm import FedAvg, Job, Round
from ..vector import Rec, Vec, rec

__all__ = ["FedNova"]


class FedNova(FedAvg):
    """FedNova (Wang et al., NeurIPS 2020) for local SGD: unequal K_i do not pull the fixed point.

    server: x        memory: -        up: delta (per step)
    Differs from the paper: only the case of local SGD without momentum or proximal term; tau_eff is
    the weighted mean of the K_i of those who answered.
    Reference: https://arxiv.org/abs/2007.07481
    """

    means = ("wk", "w")

    def finish(self, x: Vec, loc: Rec, msg: Rec, mem: Rec, job: Job) -> tuple[Rec, Rec]:
        return rec(delta=(x - msg.x) / job.steps, weight=job.weight), mem

    def uniform(self, up: Rec, job: Job) -> Rec:
        return rec(wk=up.weight * job.steps, w=up.weight)

    def server_step(self, srv: Rec, up: Rec, rnd: Round) -> Rec:
        return rec(x=srv.x + self.server_lr * (up.wk / up.w) * up.delta)  # tau_eff
