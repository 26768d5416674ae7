"""Four stages that src does not know, as a user would write them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fedloom.core.layout import Layout
from fedloom.core.rng import generator
from fedloom.core.vector import Rec, rec, tree
from fedloom.stage import At, Download, LocalResult, Stage
from fedloom.submodels.base import View


class Noise(Stage):
    """Every vector of an update clipped together, and noise added, at the client."""

    clip: float = 0.5
    noise: float = 0.01

    def send(
        self, done: LocalResult, own: Rec, received: Download, at: At
    ) -> tuple[LocalResult, Rec]:
        draw = generator(at.seed, "local noise", at.round, at.client)
        vectors = [v for v in done.up if isinstance(v, Tensor) and v.ndim]
        norm = math.sqrt(sum(float(v.double().square().sum()) for v in vectors))
        by = min(1.0, self.clip / max(norm, 1e-12))

        def noisy(v: Any) -> Any:
            if not isinstance(v, Tensor) or not v.ndim:
                return v
            return by * v + self.noise * torch.randn(v.shape, generator=draw).to(v)

        return done._replace(up=tree(noisy, done.up)), own


class Frozen(Stage):
    """Only the last `trained` tensors of the model are trained, and travel."""

    trained: int = 2

    def address(self, received: Download) -> Download:
        layout, k = received.view.layout, self.trained
        part = Layout(layout.names[-k:], layout.shapes[-k:])
        places = torch.arange(layout.d - part.d, layout.d)
        return received._replace(wire=View(places, None, None, part, layout.d))

    def along(self, d: Tensor, x: Tensor, job: Any) -> Tensor:
        return torch.where(job.layers("head.*") > 0, d, 0.0)


class Signs(Stage):
    """Signs that the client draws and the server takes off again; the client counts its rounds,
    and begins where its last round ended.
    """

    name = "signs"

    def client_init(self, x: Tensor, received: Download) -> Rec:
        return rec(count=0.0, x=torch.zeros_like(x))

    def receive(self, received: Download, own: Rec) -> Download:
        near = received.msg.x + 0.5 * own.count / (1 + own.count) * (own.x - received.msg.x)
        return received._replace(msg=received.msg._replace(x=near))

    def send(
        self, done: LocalResult, own: Rec, received: Download, at: At
    ) -> tuple[LocalResult, Rec]:
        up = done.up._replace(delta=self._turned(done.up.delta, at))
        return done._replace(up=up), rec(count=own.count + 1.0, x=done.x.clone())

    def read(self, up: Rec, received: Download, at: At) -> Rec:
        return up._replace(delta=self._turned(up.delta, at))

    def _turned(self, v: Tensor, at: At) -> Tensor:
        draw = generator(at.seed, "signs", at.round, at.client)
        return v * (2.0 * torch.randint(0, 2, v.shape, generator=draw) - 1.0).to(v)


class Slow(Stage):
    """The server adds half of what it added before, momentum of the means, and sends the model a
    tenth of the last move ahead.
    """

    name = "slow"

    def server_init(self, x: Tensor) -> Rec:
        return rec(delta=torch.zeros_like(x))

    def announce(self, msg: Rec, state: Rec, at: At) -> tuple[Rec, Rec]:
        return msg._replace(x=msg.x + 0.1 * state.delta), state

    def root(self, up: Rec, state: Rec, weight_share: float, rate: float) -> tuple[Rec, Rec]:
        delta = 0.5 * state.delta + up.delta
        return up._replace(delta=delta), rec(delta=delta)
