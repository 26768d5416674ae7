"""A method of a user's own."""

from __future__ import annotations

from helper import pull

from fedloom import FedAvg
from fedloom.core.hyper import NonNegative, hyper


class AdaptiveProx(FedAvg):
    """FedProx, written again."""

    mu: NonNegative = hyper(0.01, "pull", source="ours")

    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x) + pull(self.mu, x, msg.x), loc


class Needs(FedAvg):
    """A method with an option without a default."""

    share: NonNegative = hyper(meaning="needed")


_hidden = AdaptiveProx
made = AdaptiveProx()
