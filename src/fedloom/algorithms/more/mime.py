"""Mime and MimeLite: local steps with the server's momentum, which no client changes."""

from __future__ import annotations

from ...algorithm import MEAN, FedAvg, Grad, Job, Round
from ...core.hyper import Decay, hyper
from ...core.vector import Rec, Vec, rec, zeros


class MimeLite(FedAvg):
    """MimeLite (Karimireddy et al., NeurIPS 2021, Algorithm 1): SGD with the server's momentum.

    server: x, m (momentum)        client: -        up: delta, g (the gradient over all its data)
    Paper symbols: s -> m; U is (1 - beta) g + beta m, V the same with the mean gradient.
    Differs from the paper: delta and g are weighted as the experiment says (the paper: uniformly).
    Reference: https://arxiv.org/abs/2008.03606
    """

    compressible_up = {"delta": MEAN, "g": MEAN}
    compressible_down = ("x", "m")
    beta: Decay = hyper(0.9, "decay of the momentum", "ours")

    def server_init(self, x: Vec, up: Rec) -> Rec:
        return rec(x=x, m=zeros(x))

    def direction(
        self, x: Vec, loc: Rec, msg: Rec, mem: Rec, grad: Grad, job: Job
    ) -> tuple[Vec, Rec]:
        return (1 - self.beta) * grad(x) + self.beta * msg.m, loc

    def finish(self, x: Vec, loc: Rec, msg: Rec, mem: Rec, job: Job) -> tuple[Rec, Rec]:
        return rec(delta=x - msg.x, g=job.full(msg.x), weight=job.weight), mem

    def unweighted(self, up: Rec, job: Job) -> Rec:
        return rec(g=job.relative_weight * up.g)

    def server_step(self, srv: Rec, up: Rec, rnd: Round) -> Rec:
        m = (1 - self.beta) * up.g / rnd.relative_weight + self.beta * srv.m
        return rec(x=srv.x + self.server_lr * up.delta, m=m)


class Mime(FedAvg):
    """Mime (Karimireddy et al., NeurIPS 2021, Algorithm 1): MimeLite with gradients corrected as
    in SVRG, g(y) - g(x) + c on one batch.

    server: x, m (momentum)        client: -        up: delta
    Paper symbols: s -> m; c, the mean gradient over all data, is asked for before the local steps.
    Differs from the paper: c and delta are weighted as the experiment says (the paper: uniformly).
    Reference: https://arxiv.org/abs/2008.03606
    """

    compressible_down = ("x", "m")
    beta: Decay = hyper(0.9, "decay of the momentum", "ours")

    def server_init(self, x: Vec, up: Rec) -> Rec:
        return rec(x=x, m=zeros(x))

    def ask(self, msg: Rec, mem: Rec, job: Job) -> tuple[Rec, Rec]:
        return rec(c=job.full(msg.x)), mem

    def direction(
        self, x: Vec, loc: Rec, msg: Rec, mem: Rec, grad: Grad, job: Job
    ) -> tuple[Vec, Rec]:
        g = grad(x) - grad(msg.x) + msg.c
        return (1 - self.beta) * g + self.beta * msg.m, loc

    def server_step(self, srv: Rec, up: Rec, rnd: Round) -> Rec:
        m = (1 - self.beta) * up.c + self.beta * srv.m
        return rec(x=srv.x + self.server_lr * up.delta, m=m)
