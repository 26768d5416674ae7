"""Wrappers that change how the server uses the inner algorithm's move.

An inner server steps at the origin: its new x is then exactly its move, because a server's move
never depends on x.
"""

from __future__ import annotations

import dataclasses

from ..algorithm import Round, Trait
from ..core.hyper import Decay, hyper
from ..core.vector import Rec, Vec, rec, zeros
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
