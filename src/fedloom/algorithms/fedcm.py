"""FedCM: the last round's mean direction in every local step."""

from __future__ import annotations

from ..algorithm import FedAvg, Grad, Job, Round, Trait
from ..core.hyper import PositiveShare, hyper
from ..core.vector import Rec, Vec, rec, zeros


class FedCM(FedAvg):
    """FedCM (Xu et al., 2021, Algorithm 1): step along alpha g + (1 - alpha) D, with D the last
    round's mean direction.

    server: x, D (0 before round 1)        client: -        up: delta
    Paper symbols: Delta_t -> D. Differs from FL-Simulator: D is the mean, weighted as delta, of
    every client's own move over the sum of its own rates, not of the first client's number of
    steps. The authors' own code was not compared.
    Weight decay, which is added to the whole direction (as in FL-Simulator), pulls as wd / alpha
    does in FedAvg: at rest D is 0, and alpha g alone holds against it.
    Reference: https://arxiv.org/abs/2106.10874
    """

    compressible_down = ("x", "D")
    # D would fade where few clients hold a coordinate
    traits = frozenset({Trait.WHOLE_MODEL, Trait.READS_THE_MOVE})
    alpha: PositiveShare = hyper(0.1, "weight of the gradient", "FedSMOO: .1; FedACG: {.1, .3, .5}")

    def server_init(self, x: Vec, up: Rec) -> Rec:
        return rec(x=x, D=zeros(x))

    def direction(
        self, x: Vec, loc: Rec, msg: Rec, mem: Rec, grad: Grad, job: Job
    ) -> tuple[Vec, Rec]:
        return self.alpha * grad(x) + (1 - self.alpha) * msg.D, loc

    def unweighted(self, up: Rec, job: Job) -> Rec:
        return rec(D=-job.relative_weight * up.delta / job.lr_sum)

    def server_step(self, srv: Rec, up: Rec, rnd: Round) -> Rec:
        return rec(x=srv.x + self.server_lr * up.delta, D=up.D / rnd.relative_weight)
