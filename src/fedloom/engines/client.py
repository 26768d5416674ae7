"""One client's round: the body of every engine, and of a node in a real federation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..algorithm import Job
from ..dropout import seeded
from ..errors import ClientError, FedloomError
from ..net import Net
from ..plan import Federation, Plan
from ..rng import key, substream
from ..vector import Rec, Vec, leaves, rec
from ..wire import nbytes
from .sums import Node, finite, push

__all__ = ["Client", "RangeResult", "Stats"]


_NOTHING: set[int] = set()


class Stats(NamedTuple):
    """What a client's round cost. bytes_up: {field: bytes} of its answer."""

    client: int
    answered: bool
    loss: float  # mean over the steps of the loss at each step's first gradient
    steps: int
    gradients: int
    bytes_up: dict[str, int]


class Done(NamedTuple):
    """What local training gives. buffers: the module's own after training, empty if it has none."""

    up: Rec
    memory: Rec
    job: Job
    loss: float
    gradients: int
    buffers: Vec


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

    def settle(self, held: set[int]) -> None:
        """What lies outside these storages is free again."""
        if not held:
            self._out.clear()
        elif self._out:
            self._out = {id(b) for b in self._mine if id(b) in self._out and _storage(b) in held}

    def next(self, x: Vec, held: set[int]) -> Vec:
        """A vector to write the next x into: x itself, if it is ours and not in a held storage."""
        if any(x is b for b in self._mine) and (not held or _storage(x) not in held):
            return x
        return self.take(x)

    def give_away(self, held: set[int]) -> None:
        """Vectors in these storages are no longer ours; all others are free again."""
        self._mine = [b for b in self._mine if _storage(b) not in held]
        self._out.clear()


def _storage(v: Tensor) -> int:
    return v.untyped_storage().data_ptr()


def _storages(*records: Any) -> set[int]:
    """Where the tensors of these records lie."""
    found = set()
    for value in leaves(*records):
        if isinstance(value, Tensor):
            found.add(_storage(value))
        elif value is not None and not isinstance(value, (int, float)):
            raise TypeError(
                f"a record holds a {type(value).__name__}; it may hold tensors, numbers and "
                "records: make nested ones with rec(...)"
            )
    return found


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
        with torch.enable_grad(), seeded(self.seed):
            handle = net.live(x)
            value = plan.objective.mean(net, handle, self.batch, self.ref, self.memory)
            found = torch.autograd.grad(value, [*net.params, handle], allow_unused=True)
        self.calls += 1
        if self.fresh:
            self.losses.append(value.detach().clone())  # a loss may be a view of x
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
            with self.explained(i, round):
                part, memory, cost = self._one(msg, buffers, memories.get(i), i, round)
            if memory is not None:
                new[i] = memory
            stats.append(cost)
            push(nodes, 0, place, part)
        return RangeResult(nodes, new, stats)

    def probe_range(self, x: Vec, buffers: Vec, clients: list[int], first: int = 0) -> RangeResult:
        """Ask clients once before round 0: their answers' sums, to be averaged plainly."""
        nodes: list[Node] = []
        stats: list[Stats] = []
        for place, i in enumerate(clients, first):
            with self.explained(i, -1):
                self.net.load_buffers(buffers)
                self.net.train()
                oracle = Gradient(self, Buffers())
                oracle.ref = x
                batch = self.fed.batch(self.fed.probe_batch(i))
                oracle.at(batch, self.first_memory(x, i).obj, key(self.fed.seed, "probe", 0, i))
                up = self.plan.algorithm.probe(x, oracle)
                if not finite(up):
                    raise ClientError(
                        f"{self.plan.algorithm.method}: client {i}: its answer before round 1 is "
                        "not finite; is the model's loss finite on its data?"
                    )
            stats.append(Stats(i, True, 0.0, 0, oracle.calls, nbytes(up)))
            push(nodes, 0, place, rec(n=1.0, up=up))
        return RangeResult(nodes, {}, stats)

    def _one(
        self, msg: Rec, buffers: Vec, memory: Rec, i: int, round: int
    ) -> tuple[Rec, Rec, Stats]:
        """Train and deliver one client."""
        if memory is None:
            memory = self.first_memory(msg.x, i)
        self.net.load_buffers(buffers)
        done = self.train(msg, memory, i, round)
        if len(buffers):
            done = done._replace(buffers=self.net.buffers())
        return self.deliver(done, i, round)

    def deliver(self, done: Done, i: int, round: int) -> tuple[Rec, Rec, Stats]:
        """-> the leaf of the sums and the client's new memory (None if the answer is left out), and
        its cost.
        """
        up, weight, mine = done.up, float(done.up.weight), done.buffers
        part = rec(
            n=1.0,
            weight=weight,
            delta=weight * up.delta,
            uniform=self._uniform(up, done.job),
            buffers=weight * mine if len(mine) else mine,
        )
        sent = nbytes(up) | ({"buffers": mine.nbytes} if len(mine) else {})
        cost = Stats(i, True, done.loss, int(done.job.steps), done.gradients, sent)
        if math.isfinite(done.loss) and finite(part):
            return part, done.memory._replace(last=float(round)), cost
        if self.plan.nonfinite == "stop":
            bad_loss = not math.isfinite(done.loss)
            what = f"its loss was {done.loss}" if bad_loss else "its answer is not finite"
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

    def train(self, msg: Rec, memory: Rec, i: int, round: int) -> Done:
        """One client's local training."""
        fed, alg, objective, own = self.fed, self.plan.algorithm, self.plan.objective, memory.alg
        indices, obj = fed.batches(i, round), memory.obj
        rates = [fed.local.rate(round, k) for k in range(len(indices))]
        oracle = Gradient(self, self._gradients)
        oracle.ref = msg.x
        fixed = (fed.weight(i), float(len(indices)))
        later = (math.fsum(rates), float(round))
        full = lambda x: self._full(x, msg.x, obj, i, round)
        end = (float(memory.last), full)
        job = Job(*fixed, rates[0], *later, 0.0, *end)
        seed = key(fed.seed, "step", round, i)
        self.net.train()
        x, loc = alg.start(msg, own, job)
        for k, index in enumerate(indices):
            job = Job(*fixed, rates[k], *later, float(k), *end)
            batch = fed.batch(index)
            oracle.at(batch, obj, substream(seed, k))
            d, loc = alg.direction(x, loc, msg, own, oracle, job)
            obj = objective.carry(self.net, x, batch, obj)
            d = d.contiguous()  # one entry of x spread out would change while x is written to
            held = _storages(loc, obj) if loc or obj else _NOTHING
            x = torch.sub(x, d, alpha=rates[k], out=self._points.next(x, held))
            self._points.settle(held | {_storage(x)} if held else held)
            self._gradients.settle(held)
        up, own = alg.finish(x, loc, msg, own, job)
        memory = memory._replace(alg=own, obj=objective.finish(x, msg.x, obj))
        held = _storages(up, memory)
        self._points.give_away(held)
        self._gradients.give_away(held)
        loss = float(torch.stack(oracle.losses).mean()) if oracle.losses else 0.0
        return Done(up, memory, job, loss, oracle.calls, msg.x[:0])

    def _full(self, x: Vec, ref: Vec, obj: Rec, i: int, round: int) -> Vec:
        """Gradient of the client's mean loss over all its data, in chunks of its batch size."""
        own = self.fed.data.clients.of(i)
        total = torch.zeros_like(x)
        oracle = Gradient(self, Buffers())
        oracle.ref = ref
        seed = key(self.fed.seed, "full", round, i)
        for k, index in enumerate(torch.split(own, self.fed.local.batch or len(own))):
            oracle.at(self.fed.batch(index), obj, substream(seed, k))
            total.add_(oracle(x), alpha=len(index) / len(own))
            oracle.buffers.settle(_NOTHING)
        return total

    @contextmanager
    def explained(self, i: int, round: int) -> Iterator[None]:
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
