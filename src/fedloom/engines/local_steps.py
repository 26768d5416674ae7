"""The local steps of clients, written once; alone.py has one client, together.py many at once. A
step is a function of its arguments alone, Inputs and Step, whose fields have a leading axis of
clients where many run at once.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from ..algorithm import Job, Oracle
from ..core.arithmetic import average, total
from ..core.dropout import seeded
from ..core.rng import FINISH, Draws, key, seed_torch
from ..core.vector import Rec, Vec, rec
from ..errors import AuthorError
from ..federation.federation import Federation
from ..federation.private_examples import ExamplePrivacy
from ..objectives import Objective
from ..plan import Plan
from ..stage import Download, LocalResult, Stage, overriding
from ..submodels.base import Masked, View
from ..wrappers.base import trajectory_parts
from .author_rules import with_note
from .client_results import Work
from .guard import Guard, counters
from .heartbeat import beat
from .private_gradient import clipped_sum, example_loss, undisclosed

# a step (OUTSIDE: none), and a batch of a pass over all data (OWN_BATCH: the step's own)
Place = tuple[int, int]
OUTSIDE = OWN_BATCH = -1


class Inputs(NamedTuple):
    """What a client's steps of a round are computed from. mem, obj: what it remembers of method and
    objective, as long as the vectors of its steps; obj changes from step to step. msg: what it
    received. job: at the first step. draws: the seed of its random numbers, see Draws. everything:
    all its data in batches, where the method asks for job.full.
    """

    mem: Rec
    obj: Rec
    msg: Rec
    job: Any
    draws: Any
    everything: Any = ()


class Step(NamedTuple):
    """A minibatch and its place in the round. seed: of what the model draws; number: 0, 1, ...;
    weight: of the examples, 0 for padding; live: whether the client has so many steps; noise: of
    the private gradient.
    """

    data: Any
    seed: Any
    lr: Any
    number: Any
    weight: Any = ()
    live: Any = ()
    noise: Any = ()


class LocalSteps:
    """What the local steps of all clients of a run have in common."""

    def __init__(self, plan: Plan, fed: Federation, stages: tuple[Stage, ...]) -> None:
        self.plan, self.fed, self.turning = plan, fed, overriding(stages, "along")
        self.guard, self._around = Guard(plan.algorithm), trajectory_parts(plan.algorithm)
        loss = type(plan.objective)  # most have no client state, and are not asked
        self.carries = plan.objective.carries
        self._begins = loss.begin is not Objective.begin
        self.finishes = loss.finish is not Objective.finish
        self._rates: tuple[int, dict[tuple[int, int, float], list[float]]] = (-1, {})

    def initial_states(
        self, download: Download, memory: Rec, i: int, round: int, seed: int
    ) -> tuple[Rec, Rec]:
        """-> mem and obj of a client (d,) at the beginning of a round."""
        mem, obj = download.view.take(memory.alg), memory.obj
        if download.view.net is not None:  # the net that computes the loss is as long as the part
            obj = download.view.take(obj)
        if self._begins:
            seed_torch(seed, download.msg.x)
            info = rec(round=round, last=float(memory.last), first=self.fed.first(i, round))
            obj = self.plan.objective.begin(obj, info)
        return mem, obj

    def rates(self, i: int, round: int) -> list[float]:
        """The rates of a client's steps. Clients with as many steps share a list."""
        if self._rates[0] != round:
            self._rates = round, {}
        cache, fed = self._rates[1], self.fed
        like = steps, pace, factor = fed.steps(i), fed.pace(i), fed.rate_factor(i)
        rates = cache.get(like)
        if rates is None:
            common = self.plan.rates(fed.local, round, steps, pace)
            rates = cache[like] = [factor * rate for rate in common]
        return rates

    def job(self, i: int, round: int, last: float, download: Download, rates: list[float]) -> Job:
        """What a client is told at the first step. last: the round of its last participation."""
        fed, masked = self.fed, download.masked
        return Job(
            weight=fed.weight(i),
            steps=float(len(rates)),
            lr=rates[0],
            lr_sum=total(rates),
            round=float(round),
            step=0.0,
            last=float(last),
            size=fed.relative_size(i),
            kept=None if masked is None else masked.kept,
            around=self._around if masked is None else (*self._around, masked),
            relative_weight=fed.relative_weight(i),
            draws=Draws(key(fed.seed, "author", round, i), download.msg.x),
            client=float(i),
            layers=download.layers,
        )

    def plain(self, view: View) -> bool:
        """True if x moves along the gradient itself, and nothing else happens in a step."""
        more = self.carries or self.turning or view.fit is not None or self.fed.local.dp is not None
        in_place = view.held is None or view.net is not None
        return self.plan.algorithm.plain and not more and in_place


class LocalRound(ABC):
    """One round of local steps of clients that received the same. Methods raise AuthorError.

    After run(): x (m,) where the steps ended, the update, and the new mem and obj, of many clients
    with a leading axis of clients; and each client's mean loss.
    """

    x: Vec
    up: Rec
    mem: Rec
    obj: Rec
    means: list[float | None]

    def __init__(
        self,
        steps: LocalSteps,
        download: Download,
        memories: Sequence[Rec],
        clients: Sequence[int],
        round: int,
    ) -> None:
        self.steps, self.download = steps, download
        self.plan, self.fed = steps.plan, steps.fed
        self.memories, self.clients, self.round = memories, clients, round
        self.rates = [steps.rates(i, round) for i in clients]
        self.jobs = [
            steps.job(i, round, memory.last, download, rates)
            for i, memory, rates in zip(clients, memories, self.rates, strict=True)
        ]
        self.gradients, self.values = Counter[Place](), Counter[Place]()  # losses without gradient
        self.losses: dict[int, Tensor] = {}  # of each step that computed a gradient, the first
        self._reference = download.view.seen(download.msg.x)

    # -------------------------------------------------------------------- one client, or many
    @abstractmethod
    def inputs(self) -> Inputs:
        """What the clients' steps are computed from."""

    @abstractmethod
    def batches(self) -> Iterator[Step]:
        """The steps, one at a time: the data of all are never in memory together."""

    @abstractmethod
    def begin(self, inputs: Inputs) -> tuple[Vec, Rec]:
        """-> x where the steps begin, and loc."""

    @abstractmethod
    def advance(
        self, k: int, x: Vec, loc: Rec, inputs: Inputs, step: Step
    ) -> tuple[Vec, Rec, Rec, Tensor | None]:
        """-> x, loc and obj after step k, and the loss at its first gradient."""

    @abstractmethod
    def end(self, x: Vec, loc: Rec, inputs: Inputs) -> tuple[Rec, Rec, Rec]:
        """-> the update, and the new mem and obj, after the last step."""

    @abstractmethod
    def job_at(self, inputs: Inputs, step: Step, k: int) -> Job:
        """What the method is told at step k."""

    @abstractmethod
    def differentiate(
        self, x: Vec, step: Step, ref: Vec, obj: Rec, place: Place
    ) -> tuple[Vec, Tensor]:
        """The gradient (m,) of a batch's mean loss at x (m,), and that loss. ref: what the client
        received, as the net computes with it.
        """

    @abstractmethod
    def value(self, x: Vec, step: Step, ref: Vec, obj: Rec) -> Tensor:
        """A batch's mean loss at x (m,), 0-d; no graph is made."""

    @abstractmethod
    def _over_all(
        self, ask: Callable[[Oracle], Tensor], zero: Tensor, inputs: Inputs, k: int
    ) -> Tensor:
        """The mean of what is asked of every batch of a client's data, by their examples."""

    # ------------------------------------------------------------------------------- the round
    def run(self) -> Self:
        """Train the clients."""
        for _ in self.walk():
            pass
        return self

    def walk(self) -> Iterator[Vec]:
        """Train the clients -> x (m,) before each step, and after the last."""
        self.download.net.train()
        inputs, guard, msg = self.inputs(), self.steps.guard, self.download.msg
        before = counters(msg, inputs.mem)
        x, loc = self.begin(inputs)
        for k, step in enumerate(self.batches()):
            yield x
            x, loc, obj, loss = self.advance(k, x, loc, inputs, step)
            inputs = inputs if obj is inputs.obj else inputs._replace(obj=obj)
            if loss is not None:
                self.losses[k] = loss
        yield x
        self.x, (self.up, self.mem, self.obj) = x, self.end(x, loc, inputs)
        guard.unchanged(before, msg, inputs.mem)
        self.means = self._mean_losses()

    @abstractmethod
    def row(self, values: Any, r: int) -> Any:
        """A record or vector of one of the clients, whose memory nobody else holds."""

    def step(
        self, k: int, x: Vec, loc: Rec, inputs: Inputs, step: Step
    ) -> tuple[Vec, Rec, Rec, Tensor | None]:
        """-> the direction (m,) in which x moves in step k, the new loc and obj, and the loss at
        the first gradient, None if there is none or it must not be told.
        """
        losses: list[Tensor] = []
        grad = self.gradient(inputs, step, (k, OWN_BATCH), losses)
        job = self.job_at(inputs, step, k)
        job.draws.step(step.number)
        d, loc = self.steps.guard.call("direction", x, loc, inputs.msg, inputs.mem, grad, job)
        if self.download.masked is not None:
            d = self.download.masked.move(d, x)
        for stage in self.steps.turning:
            d = with_note(f"{type(stage).__name__}.along()", stage.along, d, x, job)
        obj = inputs.obj
        if self.steps.carries:
            with seeded(step.seed):
                x_of_net = self.download.view.seen(x)
                obj = self.plan.objective.carry(self.download.net, x_of_net, step.data, obj)
        return d, loc, obj, losses[0] if losses else None

    def finish(self, x: Vec, loc: Rec, inputs: Inputs, job: Job) -> tuple[Rec, Rec, Rec]:
        """-> the client update, and the new mem and obj. x (m,), job: of the last step."""
        job.draws.at(FINISH)
        up, mem = self.steps.guard.call("finish", x, loc, inputs.msg, inputs.mem, job)
        obj, embed = inputs.obj, self.download.view.seen
        if self.steps.finishes:
            obj = self.plan.objective.finish(embed(x), embed(inputs.msg.x), obj)
        return up, mem, obj

    # --------------------------------------------------------------------------- its gradients
    def gradient(self, inputs: Inputs, step: Step, place: Place, losses: list[Tensor]) -> Oracle:
        """What a method may ask of a batch; losses gets the loss of the first gradient, unless
        local.dp hides it.
        """
        download, dp = self.download, self.fed.local.dp
        view, masked, ref = download.view, download.masked, self.reference(inputs)

        def plain(x: Vec) -> Vec:
            check_point(x, view)
            beat()
            g, value = self.differentiate(x, step, ref, inputs.obj, place)
            self.gradients[place] += 1
            if not losses:
                losses.append(value)
            return g

        def private(dp: ExamplePrivacy, x: Vec) -> Vec:
            check_point(x, view)
            beat()
            if self.gradients[place]:
                raise undisclosed(self.plan, "a second gradient in a step")
            self.gradients[place] += 1
            loss = example_loss(self.plan, download, ref, inputs.obj, step.seed)
            count = len(self.clients)
            return clipped_sum(loss, x, step.data, step.weight, dp.clip, count).add(step.noise)

        def behind_mask(masked: Masked, x: Vec) -> Vec:
            check_point(x, view)
            return masked.grad(of_part, x)

        of_part = plain if dp is None else functools.partial(private, dp)

        def loss(x: Vec) -> Tensor:
            if dp is not None:
                raise undisclosed(self.plan, "the loss of a batch")
            check_point(x, view)
            beat()
            self.values[place] += 1
            with torch.no_grad():
                return self.value(x if masked is None else masked.kept(x), step, ref, inputs.obj)

        if masked is None:
            return Oracle(of_part, loss)
        return Oracle(functools.partial(behind_mask, masked), loss)

    def reference(self, inputs: Inputs) -> Vec:
        """The received model, as the net computes with it."""
        return self._reference

    def full(self, inputs: Inputs, k: int) -> Oracle:
        """Job.full: the gradient and the loss of a client's whole objective."""

        def over(ask: Callable[[Oracle], Tensor], zero: Tensor, quantity: str) -> Tensor:
            if self.fed.local.dp is not None:
                raise undisclosed(self.plan, quantity)
            return self._over_all(ask, zero, inputs, k)

        return Oracle(
            lambda x: over(lambda g: g(x), torch.zeros_like(x), "job.full"),
            lambda x: over(lambda g: g.loss(x), x.new_zeros(()), "job.full.loss"),
        )

    # ------------------------------------------------------------------------------- its results
    def memory(self, r: int) -> Rec:
        """The new state (d,) of one of the clients."""
        memory, view = self.memories[r], self.download.view
        if not self.mem and not self.obj:
            return memory
        mem, obj = self.row(self.mem, r), self.row(self.obj, r)
        obj = view.put(obj, memory.obj) if view.net is not None else obj
        return memory._replace(alg=view.put(mem, memory.alg), obj=obj)

    def result(self, r: int) -> LocalResult:
        """What training one of the clients gave."""
        rates, up = self.rates[r], self.row(self.up, r)
        loss, gradients, passes, values, value_passes = self.work(r, self.means[r])
        return LocalResult(
            up=up._replace(weight=float(up.weight)),
            memory=self.memory(r),
            job=self.jobs[r].at(lr=rates[-1], step=float(len(rates) - 1)),
            loss=loss,
            gradients=gradients,
            buffers=self.download.msg.x[:0],
            x=self.row(self.x, r),
            passes=passes,
            values=values,
            value_passes=value_passes,
        )

    # ---------------------------------------------------------------------------- what it cost
    def work(self, r: int, loss: float | None) -> Work:
        """What one of the clients computed, without padding."""
        gradients, passes = self._count_client(self.gradients, r)
        return Work(loss, gradients, passes, *self._count_client(self.values, r))

    def _count_client(self, counter: Counter[Place], r: int) -> tuple[int, int]:
        """How many of these belong to the client, and how many of them to passes over all data."""
        if not counter:
            return 0, 0
        steps, in_steps, passes = len(self.rates[r]), 0, 0
        for (k, batch), count in counter.items():
            if batch == OWN_BATCH:
                in_steps += count if k < steps else 0
            elif k < steps and batch < self._of_pass(r):
                passes += count
        return in_steps + passes, passes

    def _of_pass(self, r: int) -> int:
        """How many batches all data of one of the clients are."""
        count = len(self.fed.data.clients.of(self.clients[r]))
        return -(-count // (self.fed.local.batch or count))

    def _mean_losses(self) -> list[float | None]:
        """Each client's mean over its own steps of the loss at the step's first gradient. All are
        read from a GPU at once.
        """
        if not self.losses:
            return [None] * len(self.clients)
        table = torch.stack([*self.losses.values()]).reshape(len(self.losses), -1).tolist()
        if len(self.clients) == 1:
            return [average([loss for (loss,) in table])]
        means: list[float | None] = []
        for r, rates in enumerate(self.rates):
            cells = [row[r] for k, row in zip(self.losses, table, strict=True) if k < len(rates)]
            means.append(average(cells) if cells else None)
        return means


def check_point(x: Any, view: View) -> None:
    """Raise AuthorError unless x is a vector (m,) of the view's length."""
    if not isinstance(x, Tensor) or x.shape != (view.layout.d,):
        actual = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise AuthorError(
            f"grad() is asked at {actual}; it takes a point as long as x, [{view.layout.d}]"
        )
