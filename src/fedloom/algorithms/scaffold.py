"""SCAFFOLD: control variates take the clients' drift out of their steps."""

from __future__ import annotations

from typing import Literal

from ..algorithm import CHANGE, MEAN, FedAvg, Grad, Job, Round, Trait
from ..core.hyper import hyper
from ..core.vector import Rec, Vec, rec, zeros


class Scaffold(FedAvg):
    """SCAFFOLD (Karimireddy et al., ICML 2020, Algorithm 1): step along g - c_i + c.

    server: x, c (sum p_i c_i)        client: c (c_i)        up: delta, dc
    Paper symbols: y_i -> x, eta_l -> job.lr, eta_g -> server_lr.
    Differs from the paper: 1 / (K eta) is 1 over the sum of the rates that were used; delta and c
    are weighted as the experiment says, p_i = w_i / sum of all w (the paper: uniformly). It
    minimises sum p_i f_i, whoever takes part. Churn that forgets, a codec without feedback
    and a robust aggregation make c another sum; late updates do not.
    Reference: https://arxiv.org/abs/1910.06378
    """

    compressible_up = {"delta": MEAN, "dc": CHANGE}
    compressible_down = ("x", "c")
    traits = frozenset({Trait.READS_THE_MOVE})
    option: Literal[1, 2] = hyper(2, "renewal of c_i", "line 12: 1 gradient at x, 2 mean direction")

    def __post_init__(self) -> None:
        if self.option == 1:  # c_i is a gradient, whatever the move was
            object.__setattr__(self, "traits", self.traits - {Trait.READS_THE_MOVE})

    def server_init(self, x: Vec, up: Rec) -> Rec:
        return rec(x=x, c=zeros(x))

    def client_init(self, x: Vec) -> Rec:
        return rec(c=zeros(x))

    def direction(
        self, x: Vec, loc: Rec, msg: Rec, mem: Rec, grad: Grad, job: Job
    ) -> tuple[Vec, Rec]:
        return grad(x) - mem.c + msg.c, loc  # line 10

    def finish(self, x: Vec, loc: Rec, msg: Rec, mem: Rec, job: Job) -> tuple[Rec, Rec]:
        delta = x - msg.x
        # line 12
        c = job.full(msg.x) if self.option == 1 else mem.c - msg.c - delta / job.lr_sum
        return rec(delta=delta, dc=c - mem.c, weight=job.weight), rec(c=c)

    def unweighted(self, up: Rec, job: Job) -> Rec:
        return rec(dc=job.relative_weight * up.dc)

    def server_step(self, srv: Rec, up: Rec, rnd: Round) -> Rec:
        return rec(
            x=srv.x + self.server_lr * up.delta,  # line 17; line 16 is the mean
            c=srv.c + rnd.rate * up.dc,  # line 17: (|S| / N) * mean over S, weighted
        )


# as the paper writes it
SCAFFOLD = Scaffold
