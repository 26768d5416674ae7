"""One client's round once more, looked at between its steps.

It is computed by the code of the run's engine, so its bits are those of the run: alone where the
engine takes one client after another, else in the middle of the clients of its chunk.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from ..core.net import Net
from ..core.vector import Rec, Vec
from ..errors import ClientError, FedloomError
from ..federation.federation import Federation
from ..plan import Plan
from ..stage import LocalResult, Share
from .client_results import Asked, RangeResult
from .client_round import Client
from .client_step import ClientStep
from .gradient import Gradient
from .threads import Threads
from .vmap_range import VmapRange
from .vmap_round import NeedsFullError, VmapResult

T = TypeVar("T")
Stop = Callable[[FrameType], object]


class TracedStep(NamedTuple):
    """A local step. examples: the indices of its batch (B,), in the data; loss: at its first
    gradient, None if it asked for none; norm: of the move of x.
    """

    examples: Tensor
    rate: float
    loss: float | None
    norm: float


@dataclass
class ClientTrace:
    """A client's round. asked: with what it was asked; share: what its steps saw, vectors (m,);
    before: its state (d,); points: x (m,) before and after the step that was asked for. done: after
    its steps; sent: as it left the client; result: as the server took it. Of a round that failed
    the later ones are None, and error says why.
    """

    client: int
    asked: Asked
    share: Share
    before: Rec
    steps: list[TracedStep] = field(default_factory=list)
    points: list[Vec] = field(default_factory=list)
    done: LocalResult | None = None
    sent: LocalResult | None = None
    result: RangeResult | None = None
    error: str = ""


def traced(
    plan: Plan,
    fed: Federation,
    net: Net,
    asked: Asked,
    i: int,
    chunk: int | None = None,
    step: int | None = None,
    stop: Stop | None = None,
) -> ClientTrace:
    """Client i's round. asked: the cohort, with the states of all; chunk: how many clients the
    engine computes at once, None: one after another. step: whose points are kept, from 0. stop:
    called with the frame of the loop of steps, before that step or the first one.
    """
    look = _Look(step)
    client = _Client(plan, fed, net, look, stop)
    client.scale, round = asked.scale, asked.round
    share = client.shares(asked._replace(cohort=[i]))[fed.capacity(i)]
    memory = asked.memories.get(i) or client.first_memory(asked.msg.x, i, share.view)
    found = ClientTrace(i, asked, client.received(share, memory), memory)
    try:
        with client.explained(i, round):
            done = None if chunk is None else _lane(plan, fed, net, asked, i, chunk, look)
            seen = client.receive(share, memory)
            found.done = done or client.train(seen, memory, i, round)
            found.sent = client.send(found.done, share, i, round)
            found.result = RangeResult([], {}, [])
            client.take_in(found.result, found.sent, share, 0, i, round)
    except FedloomError as error:
        found.error = str(error)
    batches, rates = fed.batches(i, round), client.steps.rates(i, round)
    losses = look.losses or [None] * len(look.norms)
    for batch, rate, loss, norm in zip(batches, rates, losses, look.norms, strict=False):
        found.steps.append(TracedStep(batch, rate, loss, norm))
    found.points = look.points
    return found


class _Look:
    """The points of a client's steps, of which those of one step are kept."""

    def __init__(self, step: int | None) -> None:
        self.norms: list[float] = []
        self.losses: list[float | None] = []
        self.points: list[Vec] = []
        self.step = step
        self._last: Vec | None = None

    def at(self, x: Vec) -> None:
        """See x before a step, or after the last one."""
        now, number = x.detach().clone(), len(self.norms)
        if self._last is not None:
            self.norms.append(float((now - self._last).norm()))
            number += 1
        if self.step is not None and number in (self.step, self.step + 1):
            self.points.append(now)
        self._last = now

    def forget(self) -> None:
        """Forget all: the steps begin anew."""
        self.norms, self.losses, self.points, self._last = [], [], [], None


# --------------------------------------------------------------------------------- one by one
class _Client(Client):
    """Looks at x in the loop of steps, which it leaves as it is."""

    def __init__(
        self, plan: Plan, fed: Federation, net: Net, look: _Look, stop: Stop | None
    ) -> None:
        super().__init__(plan, fed, net)
        self._look, self._stop = look, stop
        self.steps = _Steps(plan, fed, self.stages)
        self.steps.look = look

    def oracle(self, share: Share) -> Gradient:
        made = _Gradient(self.plan, share, self._gradients)
        made.look, made.stop, self._oracle = self._look, self._stop, made
        return made

    def train(self, share: Share, memory: Rec, i: int, round: int) -> LocalResult:
        try:
            done = super().train(share, memory, i, round)
            self._look.at(done.x)
            return done._replace(x=done.x.clone())
        finally:
            if hasattr(self, "_oracle"):  # else it failed before its first step
                self._look.losses = self._oracle.by_step()


class _Steps(ClientStep):
    """The steps that ask the method for a direction."""

    look: _Look

    def step(self, k: int, x: Vec, *given: Any) -> tuple[Vec, Rec, Rec]:
        self.look.at(x)
        return super().step(k, x, *given)


class _Gradient(Gradient):
    """Knows when a step begins, and looks at those that move x in place."""

    look: _Look
    stop: Stop | None

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._begun: list[int] = []  # losses before each step

    def at(self, batch: tuple[Any, ...], memory: Rec, seed: int) -> None:
        super().at(batch, memory, seed)
        self._begun.append(len(self.losses))
        if self.stop is not None and len(self._begun) == (self.look.step or 0) + 1:
            self.stop(sys._getframe(1))

    def descend(self, x: Vec, lr: float) -> None:
        self.look.at(x)
        super().descend(x, lr)

    def by_step(self) -> list[float | None]:
        """The loss of every step at its first gradient."""
        ends = [*self._begun[1:], len(self.losses)]
        pairs = zip(self._begun, ends, strict=True)
        return [float(self.losses[a]) if b > a else None for a, b in pairs]


# ------------------------------------------------------------------------------- many at once
def _lane(
    plan: Plan, fed: Federation, net: Net, asked: Asked, i: int, chunk: int, look: _Look
) -> LocalResult | None:
    """Client i out of the chunk in which the engine computes it; None if it computes it alone."""
    first = asked.cohort.index(i) // chunk * chunk
    together = _Range(plan, fed, net, chunk)
    together.wanted, together.threads = i, _Threads(look)
    try:
        together.run_range(asked.range(first, first + chunk))
    except ClientError:  # perhaps another client's, after the steps of all
        if together.lane is None:
            raise
    if together.lane is None:
        return None
    trained, r = together.lane
    steps = trained.work.steps[r]
    look.losses = [
        loss if trained.work.calls[k, -1] else None for k, loss in enumerate(look.losses[:steps])
    ]
    look.at(trained.x[r])
    look.norms = look.norms[:steps]  # the others of the chunk may have more
    return trained.done(r)


class _Range(VmapRange):
    """Keeps what comes of a client."""

    wanted: int
    threads: _Threads
    lane: tuple[VmapResult, int] | None = None

    def _together(
        self, share: Share, start: dict[int, Rec], group: list[int], round: int
    ) -> VmapResult | None:
        self.threads.lane = group.index(self.wanted) if self.wanted in group else None
        trained = super()._together(share, start, group, round)
        if trained is not None and self.threads.lane is not None:
            self.lane = trained, self.threads.lane
        return trained


class _Threads(Threads):
    """One thread, which looks at a client in every step of all."""

    lane: int | None = None

    def __init__(self, look: _Look) -> None:
        super().__init__(1)
        self._look = look

    def step(
        self, shape: Hashable, do: Callable[..., T], arguments: Any, again: Callable[[], None]
    ) -> T:
        try:
            found: Any = super().step(shape, do, arguments, again)
        except NeedsFullError:
            self._look.forget()
            raise
        if self.lane is not None:
            x = arguments[0]  # (d,) in a first step from the server's point
            self._look.at(x if x.ndim == 1 else x[self.lane])
            self._look.losses.append(float(found[3][self.lane]))
        return found  # type: ignore[no-any-return]
