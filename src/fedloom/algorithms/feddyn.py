"""FedDyn: a dual variable per client makes the local problems agree."""

from __future__ import annotations

from ..algorithm import ACCUMULATED, Grad, Job, LocalSGD, Round
from ..core.hyper import Positive, hyper
from ..core.vector import Num, Rec, Vec, rec, zeros


class FedDyn(LocalSGD):
    """FedDyn (Acar et al., ICLR 2021, Algorithm 1); the dual is a sum of moves: g_i = -alpha h_i.

    server: x, h (sum p_i h_i)
    client: h (h_i, sum of the client's moves)        up: delta
    Paper symbols: theta -> x, the server's h -> -alpha h.
    Differs from the paper: K SGD steps stand for the exact minimiser of the local problem; delta
    and h are weighted as the experiment says (the paper: uniformly). It minimises sum p_i f_i,
    whoever takes part, unless clients are forgotten or a codec loses something. size_scaled is the
    authors' code for unequal clients, to be used with weighting = uniform: a plain h, alpha_i =
    alpha mean(n) / n_i. It minimises the mean over all examples, whatever weighting says. Their
    clip, as FL-Simulator's, leaves +alpha x out: local.clip_pull = false.
    Reference: https://arxiv.org/abs/2111.04263
    """

    compressible_up = {"delta": ACCUMULATED}
    alpha: Positive = hyper(0.1, "strength of the dual", "Acar: {0.1, 0.01, 0.001}; FedACG: 0.1")
    size_scaled: bool = hyper(False, "alpha over n_i / mean(n)", "True: Acar's code; FedACG: False")

    def server_init(self, x: Vec, up: Rec) -> Rec:
        return rec(x=x, h=zeros(x))

    def broadcast(self, srv: Rec) -> Rec:
        return rec(x=srv.x)  # h stays at home

    def client_init(self, x: Vec) -> Rec:
        return rec(h=zeros(x))

    def direction(
        self, x: Vec, loc: Rec, msg: Rec, mem: Rec, grad: Grad, job: Job
    ) -> tuple[Vec, Rec]:
        return grad(x) + self.pull_strength(job) * (mem.h + x - msg.x), loc

    def pull_strength(self, job: Job) -> Num:
        return self.alpha / job.size if self.size_scaled else self.alpha

    def finish(self, x: Vec, loc: Rec, msg: Rec, mem: Rec, job: Job) -> tuple[Rec, Rec]:
        delta = x - msg.x
        return rec(delta=delta, weight=job.weight), rec(h=mem.h + delta)

    def unweighted(self, up: Rec, job: Job) -> Rec:
        return rec(h=up.delta if self.size_scaled else job.relative_weight * up.delta)

    def server_step(self, srv: Rec, up: Rec, rnd: Round) -> Rec:
        h = srv.h + rnd.rate * up.h  # the mean over all N of the h_i, this round's included
        return rec(x=srv.x + up.delta + h, h=h)
