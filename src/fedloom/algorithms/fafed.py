"""FAFED: variance-reduced local steps with one adaptive matrix for all clients."""

from __future__ import annotations

from typing import Literal

from ..algorithm import MEAN, Grad, Job, LocalSGD, Round, Trait
from ..core.hyper import Decay, NonNegative, Positive, Share, hyper
from ..core.vector import Rec, Vec, rec, zeros
from .base import own_previous

Matrix = Literal["coordinate", "global", "norm"]


class FAFED(LocalSGD):
    """FAFED (Wu et al., AAAI 2023, Algorithm 2): STORM at every client, A = sqrt(v) + rho for all.

    server: x, m (momentum), v (second moment), lr (rate of the last step), first (1 before round 1)
    client: prev (own last but one point)        up: delta, m, v
    matrix: v is of each coordinate; of ||g||^2, a mean ("global") or a sum ("norm": AdaGrad-Norm).
    Paper symbols: A_t -> sqrt(msg.v) + rho, fixed within a round; alpha_(t+1) = c eta_t^2 with c.
    Differs from the paper: partial cohorts, and K_i steps of each client's own (own_previous). The
    last local move is the server's, so that it uses the new A (lines 10-12): a client sends its
    last but one point. delta, m and v are weighted as the experiment says; the paper has plain
    means. The authors' code: a_lag (that step's A is still the old one), ext 0.95.
    alpha: the paper tries 0.1 and 0.9; with its code's 0.1 Fashion-MNIST ends four points lower.
    Reference: https://arxiv.org/abs/2212.00974
    """

    compressible_up = {"delta": MEAN, "m": MEAN}  # not v: a codec might make it negative
    compressible_down = ("x", "m")
    # m and v are everybody's means: a part of the model will not do
    traits = frozenset(
        {
            Trait.WHOLE_MODEL,
            Trait.RECURSIVE,
            Trait.REPLAYS_THE_MOVE,
            Trait.SECOND_MOMENT,
            Trait.ONE_BROADCAST,
        }
    )
    alpha: Share = hyper(0.9, "weight of the newest gradient", "{0.1, 0.9}; the code: 0.1")
    beta: Decay = hyper(0.9, "decay of the second moment", "experiments: {0.1, 0.9}")
    rho: Positive = hyper(0.01, "added to the root of the second moment", "experiments: 0.01")
    c: NonNegative | None = hyper(None, "alpha = c eta^2 instead", "Theorem 2; None: constant")
    matrix: Matrix = hyper("coordinate", "what A is made of", "below Algorithm 2")
    ext: Share = hyper(1.0, "factor of the old gradient", "1: the paper; 0.95: its authors' code")
    precondition_first_step: bool = hyper(False, "divide line 3 by A too", "as printed: no")
    a_lag: bool = hyper(False, "the server steps by the old A", "line 10: False; the code: True")

    def probe(self, x: Vec, grad: Grad) -> Rec:
        g = grad(x)
        return rec(m=g, v=self._squares(g))

    def _squares(self, g: Vec, by: float = 1.0) -> Vec:
        """by g^2 (d,), or by ||g||^2 (0-d) where A is a number times I."""
        return by * g * g if self.matrix == "coordinate" else by * g.dot(g)

    def server_init(self, x: Vec, up: Rec) -> Rec:
        return rec(x=x, m=up.m, v=up.v, lr=x.new_zeros(()), first=x.new_ones(()))

    def client_init(self, x: Vec) -> Rec:
        return rec(prev=x)

    def start(self, msg: Rec, mem: Rec, job: Job) -> tuple[Vec, Rec]:
        step = msg.m / (msg.v.sqrt() + self.rho) if self.precondition_first_step else msg.m
        x = msg.x - msg.first * job.lr * step  # line 3
        lr = msg.lr + msg.first * job.lr  # eta_0 before round 1
        return x, rec(prev=own_previous(msg, mem, job), m=msg.m, v=msg.v, lr=lr)

    def direction(
        self, x: Vec, loc: Rec, msg: Rec, mem: Rec, grad: Grad, job: Job
    ) -> tuple[Vec, Rec]:
        alpha = self.alpha if self.c is None else (self.c * loc.lr * loc.lr).clamp_max(1.0)
        g, g_old = grad(x), grad(loc.prev)  # the same minibatch at two points
        m = g + (1 - alpha) * (loc.m - self.ext * g_old)  # line 7
        decay, new = (1.0, 1.0) if self.matrix == "norm" else (self.beta, 1 - self.beta)
        v = decay * loc.v + self._squares(g, new)  # line 8
        d = m / (msg.v.sqrt() + self.rho)  # lines 14, 15: A stays as it was received
        return d, rec(prev=x, m=m, v=v, lr=zeros(loc.lr) + job.lr)

    def finish(self, x: Vec, loc: Rec, msg: Rec, mem: Rec, job: Job) -> tuple[Rec, Rec]:
        up = rec(delta=loc.prev - msg.x, m=loc.m, v=loc.v, weight=job.weight)
        return up, rec(prev=loc.prev)

    def unweighted(self, up: Rec, job: Job) -> Rec:
        return rec(m=job.relative_weight * up.m, v=job.relative_weight * up.v)

    def server_step(self, srv: Rec, up: Rec, rnd: Round) -> Rec:
        m, v = up.m / rnd.relative_weight, zeros(srv.v) + up.v / rnd.relative_weight
        A = (srv.v if self.a_lag else v).sqrt() + self.rho  # lines 10-12: the new A
        x = srv.x + up.delta - rnd.lr * m / A
        return rec(x=x, m=m, v=v, lr=zeros(srv.lr) + rnd.lr, first=zeros(srv.first))
