"""FedSMOO: dynamic regularisation of the model and of the SAM perturbation."""

from __future__ import annotations

from ..algorithm import ACCUMULATED, MEAN, Grad, Job, LocalSGD, Round, Trait
from ..core.hyper import NonNegative, Positive, hyper
from ..core.vector import Num, Rec, Vec, rec, unit, zeros


class FedSMOO(LocalSGD):
    """FedSMOO (Sun et al., ICML 2023, Algorithm 1): clients agree on model and perturbation.

    server: x, h (sum p_i h_i), s (global perturbation)
    client: h (drift: -beta lambda_i), mu (dual of s_i = s)
    up: delta, s (mu less the last s_i)
    Paper symbols: w -> x, lambda_i -> -h_i / beta, s_hat -> the local s; its second penalty is 1.
    Differs from the authors' code: the server's mean keeps the last perturbation (lines 13, 17);
    its clip leaves +x / beta out (local.clip_pull = false); offsets are right (commit 502bec6).
    delta, s and h are weighted as the experiment says (the paper: uniformly): as rho goes to 0 it
    minimises sum p_i f_i, as FedDyn does.
    Reference: https://github.com/woodenchild95/FL-Simulator
    """

    compressible_up = {"delta": ACCUMULATED, "s": MEAN}
    compressible_down = ("x", "s")
    traits = frozenset({Trait.PERTURBS})
    rho: NonNegative = hyper(0.1, "radius of the perturbation", "Table 5: {0.01, 0.1, 1}; 0: none")
    beta: Positive = hyper(10.0, "inverse strength of the dual", "Table 5: 10; CIFAR-100: 100")
    dynamic: bool = hyper(True, "use the dynamic regularisation", "Table 8: dynamic regularisation")
    correction: bool = hyper(True, "correct the perturbation", "Table 8: SAM correction")

    def server_init(self, x: Vec, up: Rec) -> Rec:
        return rec(x=x, h=zeros(x), s=zeros(x))

    def broadcast(self, srv: Rec) -> Rec:
        return rec(x=srv.x, s=srv.s)  # h stays at home

    def client_init(self, x: Vec) -> Rec:
        return rec(h=zeros(x), mu=zeros(x))

    def start(self, msg: Rec, mem: Rec, job: Job) -> tuple[Vec, Rec]:
        return msg.x, rec(mu=mem.mu, s=msg.s)

    def direction(
        self, x: Vec, loc: Rec, msg: Rec, mem: Rec, grad: Grad, job: Job
    ) -> tuple[Vec, Rec]:
        g = grad(x)
        if self.correction:
            s = self.rho * unit(g - loc.mu - msg.s)  # line 8
            loc = rec(mu=loc.mu + s - msg.s, s=s)  # line 9
        else:
            s = self.rho * unit(g)  # plain SAM
        if self.rho:
            g = grad(x + s)  # line 10
        if self.dynamic:
            g = g + (mem.h + x - msg.x) / self.beta  # line 11
        return g, loc

    def pull_strength(self, job: Job) -> Num:
        return 1 / self.beta if self.dynamic else None

    def finish(self, x: Vec, loc: Rec, msg: Rec, mem: Rec, job: Job) -> tuple[Rec, Rec]:
        delta = x - msg.x
        up = rec(delta=delta, s=loc.mu - loc.s, weight=job.weight)  # line 13
        return up, rec(h=mem.h + delta, mu=loc.mu)  # line 14

    def unweighted(self, up: Rec, job: Job) -> Rec:
        return rec(h=job.relative_weight * up.delta, s=job.relative_weight * up.s)

    def server_step(self, srv: Rec, up: Rec, rnd: Round) -> Rec:
        s = self.rho * unit(up.s / rnd.relative_weight) if self.correction else srv.s  # line 17
        if not self.dynamic:
            return rec(x=srv.x + up.delta, h=srv.h, s=s)
        h = srv.h + rnd.rate * up.h  # line 18
        return rec(x=srv.x + up.delta + h, h=h, s=s)  # line 19
