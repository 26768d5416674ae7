"""Ditto: a personal model at every client, pulled to the common one."""

from __future__ import annotations

from ...algorithm import FedAvg, Grad, Job, Trait
from ...core.hyper import NonNegative, hyper
from ...core.vector import Rec, Vec, rec


class Ditto(FedAvg):
    """Ditto (Li, Hu, Beirami & Smith, ICML 2021, Algorithm 1): FedAvg, and v_i pulled to x.

    server: x        client: v (v_i, its personal model)        up: delta
    Paper symbols: w -> x, lambda -> lam; v_i steps along grad f_i(v_i) + lam (v_i - msg.x).
    Differs from the paper: v_i takes K_i steps beside those of x, on the same batches and with the
    same rate, clip, decay and momentum. It begins with the model of the client's first round.
    Reference: https://arxiv.org/abs/2012.04221
    """

    traits = frozenset({Trait.WHOLE_MODEL})  # a personal model is a whole one
    lam: NonNegative = hyper(1.0, "strength of the pull to x", "1 in its code")

    def client_init(self, x: Vec) -> Rec:
        return rec(v=x)

    def start(self, msg: Rec, mem: Rec, job: Job) -> tuple[Vec, Rec]:
        return msg.x, rec(y=job.begin(mem.v))

    def direction(
        self, x: Vec, loc: Rec, msg: Rec, mem: Rec, grad: Grad, job: Job
    ) -> tuple[Vec, Rec]:
        v = loc.y.x
        return grad(x), rec(y=job.move(loc.y, grad(v) + self.lam * (v - msg.x)))

    def finish(self, x: Vec, loc: Rec, msg: Rec, mem: Rec, job: Job) -> tuple[Rec, Rec]:
        return rec(delta=x - msg.x, weight=job.weight), rec(v=loc.y.x)

    def personal(self, msg: Rec, mem: Rec) -> Vec:
        return mem.v  # type: ignore[no-any-return]  # a record's fields are known at run time only
