"""Optimisers as pure functions of a direction: used at a client (LocalOpt) or at the server
(ServerOpt).
"""

from __future__ import annotations

from typing import ClassVar

from ..core.hyper import Decay, Part, Positive, hyper
from ..core.vector import Rec, Vec, rec, zeros


class Optimiser(Part):
    """init(x) -> state; move(d, state) -> (a new direction or move, state). Local ones have no rate
    of their own.
    """

    # linear: moves by a sum of the directions so far, each with a weight that depends on none
    linear: ClassVar[bool] = False

    def init(self, x: Vec) -> Rec:
        """The state before the first move; x (d,) gives length, type and device."""
        raise NotImplementedError

    def move(self, d: Vec, state: Rec) -> tuple[Vec, Rec]:
        """A direction, or a server's move, -> the one to use instead."""
        raise NotImplementedError


class Average(Optimiser):
    """Plain averaging with a learning rate: move by lr d. It has no state."""

    linear = True
    lr: Positive = hyper(1.0, "factor of the move", "1 in FedAvg, SCAFFOLD and FAFED")

    def init(self, x: Vec) -> Rec:
        return rec()

    def move(self, d: Vec, state: Rec) -> tuple[Vec, Rec]:
        return self.lr * d, state


class Momentum(Optimiser):
    """Heavy ball: m = beta m + d, move by lr m. No (1 - beta), as torch.optim.SGD with dampening
    0.
    """

    linear = True
    lr: Positive = hyper(1.0, "factor of the move", "1: torch.optim.SGD; FedAvgM")
    beta: Decay = hyper(0.9, "momentum", "Hsu et al.: 0.9; FedACG: {0.4, 0.6, 0.8}")

    def init(self, x: Vec) -> Rec:
        return rec(m=zeros(x))

    def move(self, d: Vec, state: Rec) -> tuple[Vec, Rec]:
        m = self.beta * state.m + d
        return self.lr * m, rec(m=m)


class Nesterov(Optimiser):
    """Nesterov's momentum: m = beta m + d, move by lr (d + beta m), as torch.optim.SGD has it."""

    linear = True
    lr: Positive = hyper(0.7, "factor of the move", "DiLoCo: 0.7; torch.optim.SGD: 1")
    beta: Decay = hyper(0.9, "momentum", "DiLoCo: 0.9")

    def init(self, x: Vec) -> Rec:
        return rec(m=zeros(x))

    def move(self, d: Vec, state: Rec) -> tuple[Vec, Rec]:
        m = self.beta * state.m + d
        return self.lr * (d + self.beta * m), rec(m=m)


class RMSprop(Optimiser):
    """RMSprop (Tieleman & Hinton, 2012, lecture 6.5), as torch.optim.RMSprop without momentum: v =
    alpha v + (1 - alpha) d^2; move by lr d / (sqrt(v) + eps).
    """

    lr: Positive = hyper(1.0, "factor of the move", "1: the local rate is job.lr")
    alpha: Decay = hyper(0.99, "decay of the second moment", "torch.optim.RMSprop")
    eps: Positive = hyper(1e-08, "added to the root of the second moment", "torch.optim.RMSprop")

    def init(self, x: Vec) -> Rec:
        return rec(v=zeros(x))

    def move(self, d: Vec, state: Rec) -> tuple[Vec, Rec]:
        v = self.alpha * state.v + (1 - self.alpha) * d * d
        return self.lr * d / (v.sqrt() + self.eps), rec(v=v)


class Adam(Optimiser):
    """Adam with bias correction (Kingma & Ba, ICLR 2015), as torch.optim.Adam.

    m = beta1 m + (1 - beta1) d and v alike with d^2; move by m^ / (sqrt(v^) + eps).
    """

    lr: Positive = hyper(1.0, "factor of the move", "1: the local rate is job.lr")
    beta1: Decay = hyper(0.9, "decay of the first moment", "torch.optim.Adam")
    beta2: Decay = hyper(0.999, "decay of the second moment", "torch.optim.Adam")
    eps: Positive = hyper(1e-08, "added to the root of the second moment", "torch.optim.Adam")

    def init(self, x: Vec) -> Rec:
        return rec(m=zeros(x), v=zeros(x), t=x.new_zeros(()))

    def move(self, d: Vec, state: Rec) -> tuple[Vec, Rec]:
        t = state.t + 1
        m = self.beta1 * state.m + (1 - self.beta1) * d
        v = self.beta2 * state.v + (1 - self.beta2) * d * d
        root = (v / (1 - self.beta2**t)).sqrt() + self.eps
        return self.lr * (m / (1 - self.beta1**t)) / root, rec(m=m, v=v, t=t)
