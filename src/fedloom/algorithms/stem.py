"""STEM: variance-reduced local steps, averaged with their momentum."""

from __future__ import annotations

from ..algorithm import MEAN, Grad, Job, LocalSGD, Round, Trait
from ..core.hyper import NonNegative, Share, hyper
from ..core.vector import Rec, Vec, rec, zeros
from .base import own_previous


class STEM(LocalSGD):
    """STEM (Khanduri et al., NeurIPS 2021, Algorithm 1): STORM at every client, m and x averaged.

    server: x, m (momentum), lr (rate of the last step), first (1 before round 1)
    client: prev (own last but one point)        up: delta, m
    Paper symbols: d -> m, a_(t+1) = c eta_t^2 with c. It is FAFED with A = 1. Differs from the
    paper: partial cohorts and K_i steps of each client's own, as in FAFED. The last local move is
    the server's, from means: a client sends its last but one point. delta and m are weighted as
    the experiment says; the paper has plain means.
    Reference: https://arxiv.org/abs/2106.10435
    """

    compressible_up = {"delta": MEAN, "m": MEAN}
    compressible_down = ("x", "m")
    # m is everybody's mean: a part of the model will not do
    traits = frozenset(
        {Trait.WHOLE_MODEL, Trait.RECURSIVE, Trait.REPLAYS_THE_MOVE, Trait.ONE_BROADCAST}
    )
    alpha: Share = hyper(0.1, "weight of the newest gradient", "FAFED: {0.1, 0.9}; 0.9 is steadier")
    c: NonNegative | None = hyper(None, "alpha = c eta^2 instead", "Theorem 3.1; None: constant")

    def probe(self, x: Vec, grad: Grad) -> Rec:
        return rec(m=grad(x))

    def server_init(self, x: Vec, up: Rec) -> Rec:
        return rec(x=x, m=up.m, lr=x.new_zeros(()), first=x.new_ones(()))

    def client_init(self, x: Vec) -> Rec:
        return rec(prev=x)

    def start(self, msg: Rec, mem: Rec, job: Job) -> tuple[Vec, Rec]:
        x = msg.x - msg.first * job.lr * msg.m
        lr = msg.lr + msg.first * job.lr  # eta_0 before round 1
        return x, rec(prev=own_previous(msg, mem, job), m=msg.m, lr=lr)

    def direction(
        self, x: Vec, loc: Rec, msg: Rec, mem: Rec, grad: Grad, job: Job
    ) -> tuple[Vec, Rec]:
        alpha = self.alpha if self.c is None else (self.c * loc.lr * loc.lr).clamp_max(1.0)
        g, g_old = grad(x), grad(loc.prev)  # the same minibatch at two points
        m = g + (1 - alpha) * (loc.m - g_old)
        return m, rec(prev=x, m=m, lr=zeros(loc.lr) + job.lr)

    def finish(self, x: Vec, loc: Rec, msg: Rec, mem: Rec, job: Job) -> tuple[Rec, Rec]:
        up = rec(delta=loc.prev - msg.x, m=loc.m, weight=job.weight)
        return up, rec(prev=loc.prev)

    def unweighted(self, up: Rec, job: Job) -> Rec:
        return rec(m=job.relative_weight * up.m)

    def server_step(self, srv: Rec, up: Rec, rnd: Round) -> Rec:
        m = up.m / rnd.relative_weight
        x = srv.x + up.delta - rnd.lr * m
        return rec(x=x, m=m, lr=zeros(srv.lr) + rnd.lr, first=zeros(srv.first))
