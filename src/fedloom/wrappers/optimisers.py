"""Optimisers as pure functions of a direction: used at a client (LocalOpt) or at the server
(ServerOpt).
"""

from __future__ import annotations

from typing import ClassVar

import torch

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
    beta2 v + (1 - beta2) d^2; move by lr d / (sqrt(v) + eps).
    """

    lr: Positive = hyper(1.0, "factor of the move", "1: the local rate is job.lr")
    beta2: Decay = hyper(0.99, "decay of the second moment", "alpha of torch.optim.RMSprop")
    eps: Positive = hyper(1e-08, "added to the root of the second moment", "torch.optim.RMSprop")

    def init(self, x: Vec) -> Rec:
        return rec(v=zeros(x))

    def move(self, d: Vec, state: Rec) -> tuple[Vec, Rec]:
        v = self.beta2 * state.v + (1 - self.beta2) * d * d
        return self.lr * d / (v.sqrt() + self.eps), rec(v=v)


class Adagrad(Optimiser):
    """Adagrad (Duchi, Hazan & Singer, JMLR 2011), as torch.optim.Adagrad: v = v + d^2; move by
    lr d / (sqrt(v) + eps).
    """

    lr: Positive = hyper(1.0, "factor of the move", "1: the local rate is job.lr")
    eps: Positive = hyper(1e-10, "added to the root of the sum of squares", "torch.optim.Adagrad")

    def init(self, x: Vec) -> Rec:
        return rec(v=zeros(x))

    def move(self, d: Vec, state: Rec) -> tuple[Vec, Rec]:
        v = state.v + d * d
        return self.lr * d / (v.sqrt() + self.eps), rec(v=v)


class Adadelta(Optimiser):
    """Adadelta (Zeiler, 2012), as torch.optim.Adadelta: v = beta2 v + (1 - beta2) d^2; move by
    lr s with s = d sqrt(u + eps) / sqrt(v + eps), and u follows s^2 as v follows d^2.
    """

    lr: Positive = hyper(1.0, "factor of the move", "1: the local rate is job.lr")
    beta2: Decay = hyper(0.9, "decay of both second moments", "rho of torch.optim.Adadelta")
    eps: Positive = hyper(1e-06, "added to the second moments", "torch.optim.Adadelta")

    def init(self, x: Vec) -> Rec:
        return rec(u=zeros(x), v=zeros(x))

    def move(self, d: Vec, state: Rec) -> tuple[Vec, Rec]:
        v = self.beta2 * state.v + (1 - self.beta2) * d * d
        step = d * (state.u + self.eps).sqrt() / (v + self.eps).sqrt()
        u = self.beta2 * state.u + (1 - self.beta2) * step * step
        return self.lr * step, rec(u=u, v=v)


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


class Adamax(Adam):
    """Adamax (Kingma & Ba, ICLR 2015, section 7.1), as torch.optim.Adamax: Adam whose v is the
    largest entry so far, max(beta2 v, |d| + eps), instead of a second moment's root.
    """

    def move(self, d: Vec, state: Rec) -> tuple[Vec, Rec]:
        t = state.t + 1
        m = self.beta1 * state.m + (1 - self.beta1) * d
        v = torch.maximum(self.beta2 * state.v, d.abs() + self.eps)
        return self.lr * (m / (1 - self.beta1**t)) / v, rec(m=m, v=v, t=t)


class NAdam(Adam):
    """Adam with Nesterov's momentum (Dozat, 2016), as torch.optim.NAdam: the first moment's decay
    of step t is a_t = beta1 (1 - .96^(.004 t) / 2), and the move is made of d and of the next m.
    """

    def init(self, x: Vec) -> Rec:
        return rec(**super().init(x)._asdict(), product=x.new_ones(()))

    def move(self, d: Vec, state: Rec) -> tuple[Vec, Rec]:
        t = state.t + 1
        now, later = (self.beta1 * (1 - 0.5 * 0.96 ** (0.004 * k)) for k in (t, t + 1))
        m = self.beta1 * state.m + (1 - self.beta1) * d
        v = self.beta2 * state.v + (1 - self.beta2) * d * d
        product = state.product * now
        ahead = (1 - now) / (1 - product) * d + later / (1 - product * later) * m
        root = (v / (1 - self.beta2**t)).sqrt() + self.eps
        return self.lr * ahead / root, rec(m=m, v=v, t=t, product=product)


class RAdam(Adam):
    """Rectified Adam (Liu et al., ICLR 2020, Algorithm 2), as torch.optim.RAdam: the second moment
    counts from the step on at which its variance is finite (rho_t > 5); before, the move is m^.
    """

    def move(self, d: Vec, state: Rec) -> tuple[Vec, Rec]:
        t = state.t + 1
        m = self.beta1 * state.m + (1 - self.beta1) * d
        v = self.beta2 * state.v + (1 - self.beta2) * d * d
        mean, debias, last = m / (1 - self.beta1**t), 1 - self.beta2**t, 2 / (1 - self.beta2) - 1
        rho = last - 2 * t * self.beta2**t / debias
        length = rho.clamp(min=5)  # where it is less the factor is not used
        top, below = (length - 4) * (length - 2) * last, (last - 4) * (last - 2) * length
        rectified = mean * (top / below).sqrt() * debias.sqrt() / (v.sqrt() + self.eps)
        return self.lr * torch.where(rho > 5, rectified, mean), rec(m=m, v=v, t=t)
