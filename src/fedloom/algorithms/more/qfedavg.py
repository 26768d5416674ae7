"""q-FedAvg: clients with a larger loss count for more."""

from __future__ import annotations

from ...algorithm import Job, LocalSGD, Round, Trait
from ...core.hyper import NonNegative, Positive, hyper
from ...core.vector import Rec, Vec, rec


class QFedAvg(LocalSGD):
    """Q-FedAvg (Li, Sanjabi, Beirami & Smith, ICLR 2020, Algorithm 2): weights loss^q.

    server: x        client: -        up: delta, loss (F_i at x, over all its data)
    Paper symbols: Delta w_i -> -L delta; L -> lipschitz.
    Differs from the paper: 1e-10 is added to the loss, as in the authors' code. It minimises
    sum f_i^(q + 1), whatever `weighting` says; the paper draws clients by examples.
    Reference: https://arxiv.org/abs/1905.10497
    """

    traits = frozenset(
        {Trait.WHOLE_MODEL, Trait.WEIGHS_ITSELF}
    )  # the norm of a part is not the whole's
    q: NonNegative = hyper(1.0, "power of the loss; 0: FedAvg", "ours; its code: 5 on Vehicle")
    lipschitz: Positive | None = hyper(None, "L; none: 1 over the local rate", "1 / eta in 3.3")

    def finish(self, x: Vec, loc: Rec, msg: Rec, mem: Rec, job: Job) -> tuple[Rec, Rec]:
        return rec(delta=x - msg.x, loss=job.full.loss(msg.x), weight=job.weight), mem

    def unweighted(self, up: Rec, job: Job) -> Rec:
        loss, lip = up.loss + 1e-10, 1 / job.lr if self.lipschitz is None else self.lipschitz
        d = lip * up.delta
        h = self.q * loss ** (self.q - 1) * (d * d).sum() + lip * loss**self.q
        return rec(step=loss**self.q * d, h=h)

    def server_step(self, srv: Rec, up: Rec, rnd: Round) -> Rec:
        return rec(x=srv.x + up.step / up.h)
