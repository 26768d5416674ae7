"""Three methods of strangers, for `fedloom referee` (docs/which-method.md): one is ahead of FedAvg
on unequal data, one is worse, and one is FedAvg in disguise, by a mistake that no run shows.
"""

from typing import Any

from fedloom.algorithm import FedAvg
from fedloom.core.hyper import Positive, ShareBelow1, hyper
from fedloom.core.vector import rec


class Calm(FedAvg):
    """The model that is used is a moving average of the server's, which jumps with every cohort.

    server: x, mean (moving average)        client: -        up: delta
    """

    keep: ShareBelow1 = hyper(0.8, "of the average, each round", "ours")

    def server_init(self, x: Any, up: Any) -> Any:
        return rec(x=x, mean=x)

    def broadcast(self, srv: Any) -> Any:
        return rec(x=srv.x)

    def server_step(self, srv: Any, up: Any, rnd: Any) -> Any:
        x = srv.x + up.delta
        return srv._replace(x=x, mean=self.keep * srv.mean + (1 - self.keep) * x)

    def model(self, srv: Any) -> Any:
        return srv.mean


class Shy(FedAvg):
    """The server's model shrinks in every round, so that it cannot grow too large.

    server: x        client: -        up: delta
    """

    def server_step(self, srv: Any, up: Any, rnd: Any) -> Any:
        return srv._replace(x=0.8 * srv.x + up.delta)


class Anchored(FedAvg):
    """Each step pulls towards an anchor; but the anchor is moved to x before it pulls.

    server: x        client: -        up: delta
    """

    mu: Positive = hyper(0.1, "strength of the pull", "ours")

    def direction(self, x: Any, loc: Any, msg: Any, mem: Any, grad: Any, job: Any) -> Any:
        anchor = x  # should be msg.x
        return grad(x) + self.mu * (x - anchor), loc
