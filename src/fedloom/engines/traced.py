"""One client's round once more, looked at between its steps, with the bits of the run's engine:
alone, or in the middle of the clients of its chunk.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from ..core.net import Net
from ..core.vector import Rec, Vec, tree
from ..errors import ClientError, FedloomError
from ..federation.federation import Federation
from ..plan import Plan
from ..stage import At, Download, LocalResult
from .client_results import RangeResult, Request, TrainTask
from .client_round import Client
from .local_steps import LocalRound
from .ranges import Clients
from .stages import steps_before
from .together import Together


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
    """A client's round. download: what its steps saw, vectors (m,); before: its state (d,); points:
    x (m,) before and after the step that was asked for. trained: after its steps; sent: as it left
    the client; result: as the server took it. Of a round that failed the later ones are None, and
    error says why.
    """

    client: int
    download: Download
    before: Rec
    steps: list[TracedStep] = field(default_factory=list)
    points: list[Vec] = field(default_factory=list)
    trained: LocalResult | None = None
    sent: LocalResult | None = None
    result: RangeResult | None = None
    error: str = ""


def traced(
    plan: Plan,
    fed: Federation,
    net: Net,
    task: TrainTask,
    i: int,
    chunk: int | None = None,
    step: int | None = None,
    by_row: bool = False,
) -> ClientTrace:
    """Client i's round. task: of the cohort, with the states of all; chunk: how many clients the
    engine computes at once, None: one after another. step: whose points are kept, from 0. by_row:
    see Together.
    """
    look, round = _Look(i, step), task.round
    client = Client(plan, fed, net)
    download = client.downloads(task._replace(cohort=[i]))[fed.capacity(i)]
    memory = task.memories.get(i) or client.first_memory(task.msg.x, i, download.view)
    trace = ClientTrace(i, client.received(download, memory), memory)
    try:
        with client.explained(i, round):
            result = None if chunk is None else _in_its_chunk(client, task, chunk, look, by_row)
            received = client.receive(download, memory)
            result = result or look.trained(client.local_round(received, memory, i, round))
            trace.trained = result._replace(up=tree(_copy, result.up), x=result.x.clone())
            at = At(fed.seed, round, i, task.scale)
            sent = client.send(result, download, at)
            trace.sent = sent._replace(up=tree(_copy, sent.up))  # the sums may write into it
            trace.result = RangeResult([], {}, [])
            client.take_in(trace.result, sent, download, 0, at)
    except FedloomError as error:
        trace.error = str(error)
    batches = fed.batches(i, round, steps_before(memory))
    rates = client.steps.rates(i, round)
    for values in zip(batches, rates, look.by_step(), look.norms, strict=False):
        trace.steps.append(TracedStep(*values))
    trace.points = look.points
    return trace


def _copy(v: Any) -> Any:
    return v.clone() if isinstance(v, Tensor) else v


def _in_its_chunk(
    client: Client, task: TrainTask, chunk: int, look: _Look, by_row: bool
) -> LocalResult | None:
    """The client out of the chunk in which the engine computes it; None if it computes it alone."""
    first = task.cohort.index(look.client) // chunk * chunk
    many = _Chunk(client.plan, client.fed, client.net, chunk, client, by_row=by_row)
    many.look = look
    try:
        many.map(Request.TRAIN, task.range(first, first + chunk))
    except ClientError:  # perhaps another client's, after the steps of all
        if many.result is None:
            raise
    return many.result


class _Chunk(Clients):
    """Keeps what comes of the client that is looked at."""

    look: _Look
    result: LocalResult | None = None

    def train(self, together: Together) -> None:
        if self.look.client in together.clients:
            self.result = self.look.trained(together)
        else:
            together.run()


class _Look:
    """The moves and losses of a client's steps. points: of the step that is asked for."""

    def __init__(self, client: int, step: int | None) -> None:
        self.client, self._step = client, step
        self.norms: list[float] = []
        self.points: list[Vec] = []
        self._round: LocalRound | None = None

    def trained(self, round: LocalRound) -> LocalResult:
        """What the client's steps gave, once they are done."""
        self.norms, self.points, self._round = [], [], round
        r, last = round.clients.index(self.client), None
        for k, x in enumerate(round.walk()):
            now: Vec = round.row(x, r).detach().clone()
            if last is not None:
                self.norms.append(float((now - last).norm()))
            if self._step is not None and k in (self._step, self._step + 1):
                self.points.append(now)
            last = now
        return round.result(r)

    def by_step(self) -> list[float | None]:
        """The loss of every step at its first gradient."""
        if self._round is None:
            return []
        row, r = self._round.row, self._round.clients.index(self.client)
        losses = {k: float(row(loss, r)) for k, loss in self._round.losses.items()}
        return [losses.get(k) for k in range(len(self.norms))]
