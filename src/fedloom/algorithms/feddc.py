"""FedDC: every client keeps its drift, and a control variate beside it."""

from __future__ import annotations

from ..algorithm import ACCUMULATED, CHANGE, Grad, Job, LocalSGD, Round, Trait
from ..core.hyper import NonNegative, Positive, hyper
from ..core.vector import Rec, Vec, rec, zeros


class FedDC(LocalSGD):
    """FedDC (Gao et al., CVPR 2022): pull towards x - h_i, step along g - g_i + mean g_i.

    server: x, h (sum p_i h_i), g (sum p_i g_i)
    client: h (h_i, the drift: sum of the client's moves), g (g_i)        up: delta, dg
    Differs from the paper: the server adds the mean drift of all clients, as the authors' code
    does, not that of the participants. Differs from the authors' code: g_i is the move over the
    rates that were used (theirs: over K times round 1's, eta0), weights are as the experiment says:
    it minimises sum p_i f_i, as FedDyn does. size_scaled, with weighting = uniform, is theirs for
    unequal clients: w_i = n_i / mean(n) turns alpha and the received g into alpha / w_i and g /
    w_i, w_i dg_i is sent; it minimises the mean over all examples, whatever weighting says.
    Reference: https://github.com/gaoliang13/FedDC
    """

    compressible_up = {"delta": ACCUMULATED, "dg": CHANGE}
    compressible_down = ("x", "g")
    traits = frozenset({Trait.READS_THE_MOVE})
    alpha: NonNegative = hyper(0.01, "strength of the drift penalty", "the code for CIFAR; FedACG")
    eta0: Positive | None = hyper(None, "divides g_i", "None: the rates used; the code: the first")
    size_scaled: bool = hyper(False, "alpha and g over n_i / mean(n)", "True: the authors' code")

    def server_init(self, x: Vec, up: Rec) -> Rec:
        return rec(x=x, h=zeros(x), g=zeros(x))

    def broadcast(self, srv: Rec) -> Rec:
        return rec(x=srv.x, g=srv.g)  # h stays at home

    def client_init(self, x: Vec) -> Rec:
        return rec(h=zeros(x), g=zeros(x))

    def direction(
        self, x: Vec, loc: Rec, msg: Rec, mem: Rec, grad: Grad, job: Job
    ) -> tuple[Vec, Rec]:
        alpha, g = self.alpha, msg.g
        if self.size_scaled:
            alpha, g = alpha / job.size, g / job.size
        return grad(x) + alpha * (mem.h + x - msg.x) + g - mem.g, loc

    def finish(self, x: Vec, loc: Rec, msg: Rec, mem: Rec, job: Job) -> tuple[Rec, Rec]:
        delta = x - msg.x
        rates = job.lr_sum if self.eta0 is None else job.steps * self.eta0
        change = -(msg.g / job.size if self.size_scaled else msg.g) - delta / rates
        dg = job.size * change if self.size_scaled else change
        up = rec(delta=delta, dg=dg, weight=job.weight)
        return up, rec(h=mem.h + delta, g=mem.g + change)

    def unweighted(self, up: Rec, job: Job) -> Rec:
        w = 1.0 if self.size_scaled else job.relative_weight
        return rec(h=w * up.delta, dg=w * up.dg)

    def server_step(self, srv: Rec, up: Rec, rnd: Round) -> Rec:
        h = srv.h + rnd.rate * up.h
        return rec(x=srv.x + up.delta + h, h=h, g=srv.g + rnd.rate * up.dg)
