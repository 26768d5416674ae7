"""Wrappers that change how the server uses the inner algorithm's move, and adaptive optimisers for
the server as the federated papers write them: no bias correction, and the second moment is that of
the mean move itself.

An inner server steps at the origin: its new x is then exactly its move, because a server's move
never depends on x.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch

from ..algorithm import Round, Trait
from ..core.hyper import Decay, NonNegative, Positive, hyper
from ..core.vector import Rec, Vec, rec, zeros
from ..errors import ConfigError
from .base import Wrapper
from .optimisers import Optimiser


class ServerWrapper(Wrapper):
    """srv: x, inner (the inner server's state without x), own (this wrapper's state)."""

    def first_state(self, x: Vec) -> Rec:
        """-> this wrapper's state before round 1."""
        return rec()

    def move(self, d: Vec, state: Rec) -> tuple[Vec, Rec]:
        """The inner server's move -> this server's move, and its state."""
        return d, state

    def server_init(self, x: Vec, up: Rec) -> Rec:
        return rec(x=x, inner=_without_x(self.inner.server_init(x, up)), own=self.first_state(x))

    def broadcast(self, srv: Rec) -> Rec:
        return self.inner.broadcast(_with_x(srv.inner, srv.x))

    def model(self, srv: Rec) -> Vec:
        return self.inner.model(_with_x(srv.inner, srv.x))

    def report(self, srv: Rec) -> Rec:
        return self.inner.report(_with_x(srv.inner, srv.x))

    def server_step(self, srv: Rec, up: Rec, rnd: Round) -> Rec:
        inner = self.inner.server_step(_with_x(srv.inner, zeros(srv.x)), up, rnd)
        move, state = self.move(inner.x, srv.own)
        return rec(x=srv.x + move, inner=_without_x(inner), own=state)


class ServerOpt(ServerWrapper):
    """Run the inner server's move through an optimiser. FedAvgM is ServerOpt(LocalSGD,
    Momentum).
    """

    opt: Optimiser = dataclasses.field()

    def first_state(self, x: Vec) -> Rec:
        return self.opt.init(x)

    def move(self, d: Vec, state: Rec) -> tuple[Vec, Rec]:
        return self.opt.move(d, state)


class Lookahead(ServerWrapper):
    """Clients start from x + lam m, where m = lam m + move (Kim, Kim & Han, CVPR 2024, Algorithm
    1).

    FedACG is Lookahead(Prox(LocalSGD)), bit for bit.
    """

    lam: Decay = hyper(
        0.85,
        "momentum of the server, by which clients start ahead",
        "FedACG, Table 5: {0.75, 0.8, 0.85, 0.9}",
    )

    traits = frozenset({Trait.STARTS_AHEAD})

    def first_state(self, x: Vec) -> Rec:
        return rec(m=zeros(x))

    def broadcast(self, srv: Rec) -> Rec:
        return self.inner.broadcast(_with_x(srv.inner, srv.x + self.lam * srv.own.m))

    def move(self, d: Vec, state: Rec) -> tuple[Vec, Rec]:
        m = self.lam * state.m + d
        return m, rec(m=m)


def _without_x(srv: Rec) -> Rec:
    return rec(**{k: v for k, v in srv._asdict().items() if k != "x"})


def _with_x(inner: Rec, x: Vec) -> Rec:
    return rec(x=x, **inner._asdict())


class ServerAdagrad(Optimiser):
    """AdaGrad at the server (Reddi et al., ICLR 2021, Algorithm 2): v = v + d^2, move by
    lr m / (sqrt(v) + tau).

    v0: second moment before round 1; None is tau^2, the smallest that the paper allows.
    """

    lr: Positive = hyper(0.03, "server learning rate", "FAFED, section 6: 10^{-1.5, -2, -2.5}")
    beta1: Decay = hyper(0.0, "decay of the first moment", "0 in Reddi et al.")
    tau: Positive = hyper(
        0.001, "added to the root of the second moment", "FedACG: 0.001; FAFED, section 6: 0.01"
    )
    v0: NonNegative | None = hyper(
        None, "second moment before round 1", "None: tau^2 (Reddi et al.); 0: FedSMOO's code"
    )

    def init(self, x: Vec) -> Rec:
        return rec(m=zeros(x), v=zeros(x) + (self.tau**2 if self.v0 is None else self.v0))

    def second(self, v: Vec, square: Vec) -> Vec:
        """The second moment (d,) after a move with this square (d,)."""
        return v + square

    def move(self, d: Vec, state: Rec) -> tuple[Vec, Rec]:
        m = self.beta1 * state.m + (1 - self.beta1) * d
        v = self.second(state.v, d * d)
        return self.lr * m / (v.sqrt() + self.tau), rec(m=m, v=v)


class ServerAdam(ServerAdagrad):
    """Adam at the server (Reddi et al., ICLR 2021, Algorithm 2): v = beta2 v + (1 - beta2) d^2."""

    lr: Positive = hyper(
        0.01, "server learning rate", "FedACG: 0.01; FedSMOO: 0.1; FAFED: 10^{-1.5, -2, -2.5}"
    )
    beta1: Decay = hyper(0.9, "decay of the first moment", "0.9; FAFED: {0.1, 0.9}")
    beta2: Decay = hyper(0.99, "decay of the second moment", "0.99; FAFED: {0.1, 0.9}")

    def second(self, v: Vec, square: Vec) -> Vec:
        return self.beta2 * v + (1 - self.beta2) * square


class ServerYogi(ServerAdam):
    """Yogi at the server (Reddi et al., ICLR 2021, Algorithm 2): v moves by (1 - beta2) d^2 towards
    d^2, however far that is.
    """

    def second(self, v: Vec, square: Vec) -> Vec:
        return v - (1 - self.beta2) * square * (v - square).sign()


class ServerAMSGrad(Optimiser):
    """AMSGrad at the server (Wang, Lin & Chen, ICML 2022, Algorithm 1): the largest second moment
    so far divides.

    option 1, max stabilisation: vhat = max(vhat, v, eps), move by lr m / sqrt(vhat). option 2:
    vhat = max(vhat, v), move by lr m / (sqrt(vhat) + eps). The authors' code is option 2 with
    eps 0, start 0.001 and corrected. Raises ConfigError if nothing keeps vhat above 0.
    """

    lr: Positive = hyper(0.03, "server learning rate", "FAFED, section 6: 10^{-1.5, -2, -2.5}")
    beta1: Decay = hyper(0.9, "decay of the first moment", "0.9; FAFED: {0.1, 0.9}")
    beta2: Decay = hyper(0.99, "decay of the second moment", "0.99; FAFED: {0.1, 0.9}")
    eps: NonNegative = hyper(
        0.001, "floor of the second moment", "0.001; the authors' code: 0 and start = 0.001"
    )
    option: Literal[1, 2] = hyper(
        1, "where eps enters", "1 = eps inside the maximum, 2 = eps added"
    )
    start: NonNegative = hyper(
        0.0, "running maximum before round 1", "vhat before round 1; 0.001 in the authors' code"
    )
    corrected: bool = hyper(
        False,
        "correct the moments for their start at zero",
        "bias correction: not in the paper, in the code",
    )

    def __post_init__(self) -> None:
        if not self.eps and not self.start:
            raise ConfigError(
                f"{type(self).__name__}: eps = {self.eps:g} and start = {self.start:g}, so that "
                "coordinates that never move give 0 / 0; give one of them above 0"
            )

    def init(self, x: Vec) -> Rec:
        return rec(m=zeros(x), v=zeros(x), vhat=zeros(x) + self.start, t=x.new_zeros(()))

    def move(self, d: Vec, state: Rec) -> tuple[Vec, Rec]:
        t = state.t + 1
        m = self.beta1 * state.m + (1 - self.beta1) * d
        v = self.beta2 * state.v + (1 - self.beta2) * d * d
        vhat = torch.maximum(state.vhat, v)
        if self.option == 1:
            vhat = vhat.clamp_min(self.eps)
        top, bottom = m, vhat
        if self.corrected:
            top, bottom = m / (1 - self.beta1**t), vhat / (1 - self.beta2**t)
        root = bottom.sqrt() + (self.eps if self.option == 2 else 0.0)
        return self.lr * top / root, rec(m=m, v=v, vhat=vhat, t=t)
