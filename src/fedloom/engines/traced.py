"""One client's round once more, looked at between its steps.

It is computed by the code of the run's engine, so its bits are those of the run: alone where the
engine takes one client after another, else in the middle of the clients of its chunk.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NamedTuple

from torch import Tensor

from ..core.net import Net
from ..core.vector import Rec, Vec, tree
from ..errors import ClientError, FedloomError
from ..federation.federation import Federation
from ..plan import Plan
from ..stage import Download, LocalResult
from .client_results import RangeResult, TrainTask
from .client_round import Client
from .local_steps import Trained
from .stages import steps_before
from .vmap_range import VmapRange

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
    """A client's round. share: what its steps saw, vectors (m,); before: its state (d,); points: x
    (m,) before and after the step that was asked for. done: after its steps; sent: as it left the
    client; result: as the server took it. Of a round that failed the later ones are None, and error
    says why.
    """

    client: int
    share: Download
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
    asked: TrainTask,
    i: int,
    chunk: int | None = None,
    step: int | None = None,
    stop: Stop | None = None,
) -> ClientTrace:
    """Client i's round. asked: the cohort, with the states of all; chunk: how many clients the
    engine computes at once, None: one after another. step: whose points are kept, from 0. stop:
    called with the frame of the loop of steps, before that step or the first one.
    """
    client, round = Client(plan, fed, net), asked.round
    client.look, client.scale = (look := _Look(i, step, stop)), asked.scale
    share = client.shares(asked._replace(cohort=[i]))[fed.capacity(i)]
    memory = asked.memories.get(i) or client.first_memory(asked.msg.x, i, share.view)
    found = ClientTrace(i, client.received(share, memory), memory)
    try:
        with client.explained(i, round):
            done = None if chunk is None else _together(plan, fed, net, asked, chunk, look)
            seen = client.receive(share, memory)
            done = done or client.train(seen, memory, i, round)
            found.done = done._replace(up=tree(_copy, done.up), x=done.x.clone())
            sent = client.send(done, share, i, round)
            found.sent = sent._replace(up=tree(_copy, sent.up))  # the sums may write into it
            found.result = RangeResult([], {}, [])
            client.take_in(found.result, sent, share, 0, i, round)
    except FedloomError as error:
        found.error = str(error)
    batches = fed.batches(i, round, steps_before(memory))
    rates = client.steps.rates(i, round)
    for made in zip(batches, rates, look.by_step(), look.norms, strict=False):
        found.steps.append(TracedStep(*made))
    found.points = look.points
    return found


def _copy(v: Any) -> Any:
    return v.clone() if isinstance(v, Tensor) else v


def _together(
    plan: Plan, fed: Federation, net: Net, asked: TrainTask, chunk: int, look: _Look
) -> LocalResult | None:
    """The client out of the chunk in which the engine computes it; None if it computes it alone."""
    first = asked.cohort.index(look.client) // chunk * chunk
    many = _Range(plan, fed, net, chunk)
    many.client.look = look
    try:
        many.run_range(asked.range(first, first + chunk))
    except ClientError:  # perhaps another client's, after the steps of all
        if many.found is None:
            raise
    return many.found


class _Range(VmapRange):
    """Keeps what comes of the client that is looked at."""

    found: LocalResult | None = None

    def _together(
        self, share: Download, start: dict[int, Rec], group: list[int], round: int
    ) -> Trained | None:
        trained, look = super()._together(share, start, group, round), self.client.look
        if trained is not None and look is not None and look.client in group:
            self.found = trained.result(group.index(look.client))
        return trained


class _Look:
    """The moves and losses of a client's steps. points: of the step that is asked for."""

    def __init__(self, client: int, step: int | None, stop: Stop | None) -> None:
        self.client, self._step, self._stop = client, step, stop
        self.norms: list[float] = []
        self.points: list[Vec] = []
        self._last: Vec | None = None
        self._losses: Sequence[Tensor] = ()
        self._before: list[int] = []  # how many losses there were before each step

    def __call__(self, k: int, x: Vec, losses: Sequence[Tensor]) -> None:
        now = x.detach().clone()
        if k == 0 or self._last is None:
            self.norms, self.points, self._before = [], [], []
        else:
            self.norms.append(float((now - self._last).norm()))
        self._last, self._losses = now, losses
        self._before.append(len(losses))
        if self._step is not None and k in (self._step, self._step + 1):
            self.points.append(now)
        if self._stop is not None and k == (self._step or 0):
            self._stop(sys._getframe(1))

    def by_step(self) -> list[float | None]:
        """The loss of every step at its first gradient."""
        ends = [*self._before[1:], len(self._losses)]
        pairs = zip(self._before, ends, strict=True)
        return [float(self._losses[a]) if b > a else None for a, b in pairs]
