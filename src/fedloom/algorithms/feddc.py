"""FedDC: every client keeps its drift, and a control variate beside it."""

from __future__ import annotations

from ..algorithm import Grad, Job, LocalSGD, Round, hyper
from ..vector import Rec, Vec, rec, zeros

__all__ = ["FedDC"]


class FedDC(LocalSGD):
    """FedDC (Gao et al., CVPR 2022): pull towards x - h_i, step along g - g_i + mean g_i.

    server: x, h (mean of all h_i), g (mean of all g_i)
    memory: h (h_i, the drift: sum of the client's moves), g (g_i)        up: delta, dg
    Differs from the paper: the server adds the mean drift of all clients, as the authors' code
    does, not that of the participants. Differs from the authors' code: g_i is the move over the
    rates that were used; the code divides by K and the rate of round 1, which is eta0.
    Reference: https://github.com/gaoliang13/FedDC
    """

    approximate = ("x", "g")
    linear = ("delta", "dg")
    means = ("h", "dg")
    sums = True
    alpha: float = hyper(0.01, low=0, source="0.01: the authors' code for CIFAR; FedACG")
    eta0: float | None = hyper(
        None,
        low=0,
        open_low=True,
        optional=True,
        source="None: the rates used; the first rate: the authors' code",
    )

    def server_init(self, x: Vec, up: Rec) -> Rec:
        return rec(x=x, h=zeros(x), g=zeros(x))

    def broadcast(self, srv: Rec) -> Rec:
        return rec(x=srv.x, g=srv.g)  # h stays at home

    def client_init(self, x: Vec) -> Rec:
        return rec(h=zeros(x), g=zeros(x))

    def direction(
        self, x: Vec, loc: Rec, msg: Rec, mem: Rec, grad: Grad, job: Job
    ) -> tuple[Vec, Rec]:
        return grad(x) + self.alpha * (mem.h + x - msg.x) + msg.g - mem.g, loc

    def finish(self, x: Vec, loc: Rec, msg: Rec, mem: Rec, job: Job) -> tuple[Rec, Rec]:
        delta = x - msg.x
        rates = job.lr_sum if self.eta0 is None else job.steps * self.eta0
        dg = -msg.g - delta / rates
        up = rec(delta=delta, dg=dg, weight=job.weight)
        return up, rec(h=mem.h + delta, g=mem.g + dg)

    def uniform(self, up: Rec, job: Job) -> Rec:
        return rec(h=up.delta, dg=up.dg)

    def server_step(self, srv: Rec, up: Rec, rnd: Round) -> Rec:
        h = srv.h + rnd.rate * up.h
        return rec(x=srv.x + up.delta + h, h=h, g=srv.g + rnd.rate * up.dg)
