"""AFL: the mixture of clients that is worst for the model."""

from __future__ import annotations

import torch

from ...algorithm import Job, LocalSGD, Round, Trait
from ...core.hyper import Positive, hyper
from ...core.vector import Rec, Vec, rec, zeros


class AFL(LocalSGD):
    """AFL (Mohri, Sivek & Suresh, ICML 2019, Algorithm 1): ascend in the mixture weights.

    server: x, shift (log of the mean of exp(log))        client: log (of lambda_i)        up: delta
    Paper symbols: lambda_i -> weight = exp(log - shift), gamma_lambda -> rate.
    Differs from the paper: lambda ascends in its logarithm (mirror ascent), where the paper
    projects onto the simplex: a client then needs its own lambda alone. lambda begins at the
    clients' weights; it minimises the largest client loss, whatever they are. K_i local steps; the
    paper's losses are of a batch, here over all of a client's data.
    Reference: https://arxiv.org/abs/1902.00146
    """

    traits = (
        frozenset(  # one mixture for all coordinates, whose log mean is counted from the last one
            {Trait.WHOLE_MODEL, Trait.WEIGHS_ITSELF, Trait.ONE_BROADCAST}
        )
    )
    rate: Positive = hyper(0.1, "of the ascent in lambda", "gamma_lambda; q-FedAvg's code: 0.1")

    def server_init(self, x: Vec, up: Rec) -> Rec:
        return rec(x=x, shift=x.new_zeros(()))

    def client_init(self, x: Vec) -> Rec:
        return rec(log=x.new_zeros(()))

    def finish(self, x: Vec, loc: Rec, msg: Rec, mem: Rec, job: Job) -> tuple[Rec, Rec]:
        weight = job.weight * torch.exp(mem.log - msg.shift)
        log = mem.log + self.rate * job.full.loss(msg.x)
        return rec(delta=x - msg.x, weight=weight), rec(log=log)

    def unweighted(self, up: Rec, job: Job) -> Rec:
        return rec(mixture=up.weight / job.weight)

    def server_step(self, srv: Rec, up: Rec, rnd: Round) -> Rec:
        mean = zeros(srv.shift) + up.mixture
        return rec(x=srv.x + up.delta, shift=srv.shift + torch.log(mean))
