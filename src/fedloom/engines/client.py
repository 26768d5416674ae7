"""One client's round: the body of every engine, and of a node in a real federation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..algorithm import Job
from ..errors import ClientError, FedloomError
from ..net import Net
from ..plan import Federation, Plan
from ..rng import key
from ..vector import Rec, Vec, leaves, rec, tree
from ..wire import nbytes
from .sums import Node, finite, push

__all__ = ["Client", "RangeResult", "Stats"]


class Stats(NamedTuple):
    """What a client's round cost. bytes_up: {field: bytes} of its answer."""

    client: int
    answered: bool
    loss: float  # mean over the steps of the loss at each step's first gradient
    steps: int
    gradients: int
    bytes_up: dict[str, int]


class RangeResult(NamedTuple):
    """What a range of a cohort hands on: partial sums, its clients' new memories, their
    statistics.
    """

    nodes: list[Node]
    memories: dict[int, Rec]
    stats: list[Stats]


class Buffers:
    """Vectors that the engine may write into: those that no record of the author holds any more.

    Fresh memory for every vector of every step costs page faults that are felt from 30,000
    parameters on.
    """

    def __init__(self) -> None:
        self._mine: list[Tensor] = []
        self._out: set[int] = set()

    def take(self, like: Vec) -> Vec:
        """A vector like this one, ours until release()."""
        for buffer in self._mine:
            if id(buffer) not in self._out:
                break
        else:
            buffer = torch.empty_like(like)
            self._mine.append(buffer)
        self._out.add(id(buffer))
        return buffer

    def release(self, *records: Any) -> None:
        """Everything that these records do not hold is free again."""
        if self._out:
            held = _storages(records)
            self._out = {id(b) for b in self._mine if id(b) in self._out and _storage(b) in held}

    def swap(self, x: Vec, *records: Any) -> Vec:
        """A vector to write the next x into, given that these records live on: x itself if it is
        ours and not held.
        """
        held = _storages(records)
        if any(x is b for b in self._mine) and _storage(x) not in held:
            return x
        return self.take(x)

    def forget(self, *records: Any) -> None:
        """Give away what these records hold; everything else is free again."""
        held = _storages(records)
        self._mine = [b for b in self._mine if _storage(b) not in held]
        self._out = set()


def _storage(v: Tensor) -> int:
    return v.untyped_storage().data_ptr()


def _storages(records: tuple[Any, ...]) -> set[int]:
    return {_storage(v) for v in leaves(*records) if isinstance(v, Tensor)}


class Gradient:
    """The oracle of one step: x (d,) -> gradient (d,) of the minibatch's mean loss. All calls see
    equal randomness.
    """

    def __init__(self, client: Client, buffers: Buffers) -> None:
        self.client, self.buffers = client, buffers
        self.calls, self.losses = 0, []  # type: int, list[Tensor]
        self.batch: tuple[Any, ...] = ()
        self.ref: Vec
        self.memory: Rec
        self.seed = 0
        self.fresh = True

    def at(self, batch: tuple[Any, ...], memory: Rec, seed: int) -> None:
        """Begin the next step."""
        self.batch, self.memory, self.seed, self.fresh = batch, memory, seed, True

    def __call__(self, x: Vec) -> Vec:
        plan, net = self.client.plan, self.client.net
        seed_torch(self.seed, x)
        with torch.enable_grad():
            handle = net.live(x)
            loss = plan.objective.loss(net, handle, self.batch, self.ref, self.memory)
            value = loss if loss.ndim == 0 else loss.mean()
            found = torch.autograd.grad(value, [*net.params, handle], allow_unused=True)
        self.calls += 1
        if self.fresh:
            self.losses.append(value.detach())
            self.fresh = False
        g = self.buffers.take(x)
        flat = [
            p.new_zeros(p.numel()) if part is None else part.reshape(-1)
            for part, p in zip(found[:-1], net.params, strict=True)
        ]
        torch.cat(flat, out=g)
        return g if found[-1] is None else g.add_(found[-1])


def seed_torch(seed: int, like: Tensor) -> None:
    """Seed the generators that layers such as dropout draw from."""
    torch.default_generator.manual_seed(seed)
    if like.is_cuda:
        torch.cuda.manual_seed(seed)


class Client:
    """Runs clients, one after another, on one model instance."""

    def __init__(self, plan: Plan, fed: Federation, net: Net) -> None:
        self.plan, self.fed, self.net = plan, fed, net
        self._counts: Any = None
        self._points, self._gradients = Buffers(), Buffers()

    # -------------------------------------------------------------------------------------- a range
    def run_range(
        self,
        msg: Rec,
        buffers: Vec,
        memories: dict[int, Rec],
        cohort: list[int],
        round: int,
        first: int = 0,
    ) -> RangeResult:
        """Train the clients of a range of the cohort, which begins at place `first`.

        memories has those of the clients who took part before. Raises ClientError.
        """
        nodes: list[Node] = []
        new: dict[int, Rec] = {}
        stats: list[Stats] = []
        for place, i in enumerate(cohort, first):
            with self._explained(i, round):
                part, memory, cost = self._one(msg, buffers, memories.get(i), i, round)
            if memory is not None:
                new[i] = memory
            stats.append(cost)
            push(nodes, 0, place, part)
        return RangeResult(nodes, new, stats)

    def _one(
        self, msg: Rec, buffers: Vec, memory: Rec, i: int, round: int
    ) -> tuple[Rec, Rec, Stats]:
        """-> the leaf of the sums (None if the answer is left out), the client's new memory, its
        cost.
        """
        if memory is None:
            memory = self.first_memory(msg.x, i)
        if len(buffers):
            self.net.load_buffers(buffers)
        up, new, job, oracle = self.train(msg, memory, i, round)
        weight = float(up.weight)
        to = msg.x.new_tensor
        part = rec(
            n=to(1.0),
            weight=to(weight),
            delta=weight * up.delta,
            uniform=tree(
                lambda v: v if isinstance(v, Tensor) else to(float(v)), self._uniform(up, job)
            ),
            buffers=weight * self.net.buffers(),
        )
        loss = float(torch.stack(oracle.losses).mean()) if oracle.losses else math.nan
        sent = nbytes(up) | ({"buffers": buffers.nbytes} if len(buffers) else {})
        cost = Stats(i, True, loss, int(job.steps), oracle.calls, sent)
        if finite(part) and (math.isfinite(loss) or not oracle.losses):
            return part, new._replace(last=float(round)), cost
        if self.plan.nonfinite == "stop":
            what = f"its loss was {loss}" if not math.isfinite(loss) else "its answer is not finite"
            raise ClientError(
                f"{self.plan.algorithm.method}: client {i}, round {round + 1}: {what}; lower "
                'local.lr, set local.clip, or skip such clients with nonfinite="skip"'
            )
        return None, None, cost._replace(answered=False)

    def _uniform(self, up: Rec, job: Job) -> Rec:
        alg = self.plan.algorithm
        uniform = alg.uniform(up, job._replace(full=None))
        if uniform._fields != alg.means:
            raise ClientError(
                f"{alg.method}: uniform() returns the fields {uniform._fields}, "
                f"but `means` says {alg.means}"
            )
        return uniform

    # ----------------------------------------------------------------------------------- one client
    def first_memory(self, x: Vec, i: int) -> Rec:
        """What a client remembers when it takes part for the first time."""
        if self._counts is None and self.fed.data.classes is not None:
            self._counts = self.fed.data.label_counts()
        counts = x.new_zeros(0) if self._counts is None else self._counts[i].to(x)
        return rec(
            alg=self.plan.algorithm.client_init(x),
            obj=self.plan.objective.init(rec(counts=counts, d=len(x))),
            last=-1.0,
        )

    def train(self, msg: Rec, memory: Rec, i: int, round: int) -> tuple[Rec, Rec, Job, Gradient]:
        """One client's local training -> up, memory, job, and the oracle with its counts."""
        fed, alg, objective, own = self.fed, self.plan.algorithm, self.plan.objective, memory.alg
        data, indices, obj = fed.data, fed.batches(i, round), memory.obj
        rates = [fed.local.rate(round, k) for k in range(len(indices))]
        oracle = Gradient(self, self._gradients)
        oracle.ref = msg.x
        job = Job(
            weight=fed.weight(i),
            steps=float(len(indices)),
            lr=rates[0],
            lr_sum=math.fsum(rates),
            round=float(round),
            step=0.0,
            last=memory.last,
            full=lambda x: self._full(x, msg.x, obj, i, round),
        )
        self.net.train()
        x, loc = alg.start(msg, own, job)
        for k, index in enumerate(indices):
            job = job._replace(step=float(k), lr=rates[k])
            batch = (data.inputs[index], data.targets[index])
            oracle.at(batch, obj, key(fed.seed, "step", round, i, k))
            d, loc = alg.direction(x, loc, msg, own, oracle, job)
            obj = objective.carry(self.net, x, batch, obj)
            x = torch.sub(x, d, alpha=job.lr, out=self._points.swap(x, loc, own, obj))
            self._points.release(x, loc, own, obj)
            self._gradients.release(loc, own, obj)
        up, own = alg.finish(x, loc, msg, own, job)
        memory = memory._replace(alg=own, obj=objective.finish(x, msg.x, obj))
        self._points.forget(up, memory)
        self._gradients.forget(up, memory)
        return up, memory, job, oracle

    def _full(self, x: Vec, ref: Vec, obj: Rec, i: int, round: int) -> Vec:
        """Gradient of the client's mean loss over all its data, in chunks of its batch size."""
        data, own = self.fed.data, self.fed.data.clients.of(i)
        total = torch.zeros_like(x)
        oracle = Gradient(self, Buffers())
        oracle.ref = ref
        for k, index in enumerate(torch.split(own, self.fed.local.batch or len(own))):
            batch = (data.inputs[index], data.targets[index])
            oracle.at(batch, obj, key(self.fed.seed, "full", round, i, k))
            total.add_(oracle(x), alpha=len(index) / len(own))
            oracle.buffers.release()
        return total

    @contextmanager
    def _explained(self, i: int, round: int) -> Iterator[None]:
        """Say of a failure which algorithm, client and round it was."""
        try:
            yield
        except (FedloomError, MemoryError):
            raise
        except Exception as error:
            name = self.plan.algorithm.method
            raise ClientError(
                f"{name}: client {i}, round {round + 1}: {type(error).__name__}: {error}"
            ) from error
