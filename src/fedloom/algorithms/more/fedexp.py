"""FedExP: the server moves further where the clients' moves differ."""

from __future__ import annotations

from ...algorithm import Job, LocalSGD, Round, Trait
from ...core.hyper import Positive, hyper
from ...core.vector import Rec, Vec, rec, zeros


class FedExP(LocalSGD):
    """FedExP (Jhunjhunwala, Wang & Joshi, ICLR 2023, Algorithm 1): the server extrapolates.

    server: x, lr (its last rate, in rows as server_lr)        client: -        up: delta
    Paper symbols: eta_g -> lr = max(1, sum ||delta_i||^2 / (2 M (||mean delta||^2 + eps))).
    Differs from the paper: delta and the squares are weighted as the experiment says (the paper:
    uniformly; its code as here). The newest model is evaluated, not the mean of the last two.
    Differs from the authors' code: there eps is times the cohort, and falls with the square of the
    rate's decay.
    Reference: https://arxiv.org/abs/2301.09604
    """

    traits = frozenset({Trait.WHOLE_MODEL})  # the norm of a part is not the whole's
    eps: Positive = hyper(0.001, "added to ||mean delta||^2", "its code: 0.001, EMNIST 0.1")

    def server_init(self, x: Vec, up: Rec) -> Rec:
        return rec(x=x, lr=x.new_ones(()))

    def broadcast(self, srv: Rec) -> Rec:
        return rec(x=srv.x)

    def unweighted(self, up: Rec, job: Job) -> Rec:
        return rec(square=job.relative_weight * (up.delta * up.delta).sum())

    def server_step(self, srv: Rec, up: Rec, rnd: Round) -> Rec:
        square = (up.delta * up.delta).sum()
        mean = up.square / rnd.relative_weight
        lr = zeros(srv.lr) + mean / (2 * (square + self.eps))
        lr = lr.clamp_min(1.0)
        return rec(x=srv.x + lr * up.delta, lr=lr)

    def report(self, srv: Rec) -> Rec:
        return rec(server_lr=srv.lr)
