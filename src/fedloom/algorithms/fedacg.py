"""FedACG: clients start where the server's momentum will take the model."""

from __future__ import annotations

from ..algorithm import Grad, Job, LocalSGD, Round, Trait
from ..core.hyper import Decay, NonNegative, hyper
from ..core.vector import Rec, Vec, rec, zeros


class FedACG(LocalSGD):
    """FedACG (Kim, Kim & Han, CVPR 2024, Algorithm 1): broadcast x + lam m, pull local steps
    towards it.

    server: x, m (the server's last move: m_t = x_t - x_(t-1))        client: -        up: delta
    Paper symbols: theta -> x, theta + lambda m -> msg.x, lambda -> lam, Delta -> delta.
    Differs from the authors' code: beta/2 ||.||^2 as in the paper (the code's weight 1e-3 is beta =
    2e-3); the rate falls once per round; delta is weighted as the experiment says (the code:
    uniformly).
    Reference: https://github.com/geehokim/FedACG
    """

    traits = frozenset({Trait.STARTS_AHEAD})
    lam: Decay = hyper(0.85, "server momentum, look-ahead", "Table 5a: {0.75, 0.8, 0.85, 0.9}")
    beta: NonNegative = hyper(0.01, "pull to the received point", "Table 5b: {0.001, 0.01, 0.1, 1}")

    def server_init(self, x: Vec, up: Rec) -> Rec:
        return rec(x=x, m=zeros(x))

    def broadcast(self, srv: Rec) -> Rec:
        return rec(x=srv.x + self.lam * srv.m)  # the look-ahead

    def direction(
        self, x: Vec, loc: Rec, msg: Rec, mem: Rec, grad: Grad, job: Job
    ) -> tuple[Vec, Rec]:
        return grad(x) + self.beta * (x - msg.x), loc

    def server_step(self, srv: Rec, up: Rec, rnd: Round) -> Rec:
        m = self.lam * srv.m + up.delta
        return rec(x=srv.x + m, m=m)
