"""The clients of a round shared out over the ranks of torchrun, on one machine or many.

Every rank runs the same rounds, and trains a range of each cohort. In the one exchange each gets
its slice of the coordinates of all partial sums, adds them up in the tree of summation.py, and
hands its slice of the total to the others: the bits are those of one process.
"""

from __future__ import annotations

import functools
import math
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..core.hyper import Part, Positive, hyper
from ..core.net import Net
from ..core.ranks import ALONE, Group
from ..core.vector import Rec, as_bytes, leaves, tree
from ..errors import ConfigError, WorkerError
from ..federation.federation import Federation
from ..plan import Plan
from .base import Engine, processors
from .client_results import RangeResult, Request, TrainTask
from .ranges import default_chunk
from .serial import Serial
from .stages import sums_suffice
from .summation import Node, push, ranges, root
from .vectorised import Vectorised
from .vmap_refusals import MANY, refuse_model
from .workers import Workers


class RankSettings(Part, frozen=False, kw_only=False):
    """How the ranks of torchrun deal with each other; without effect in a run of one process."""

    title: ClassVar[str] = "ranks"
    timeout: Positive = hyper(
        600.0, "seconds that a rank waits for the others, the slowest one's round included"
    )


class Ranks:
    """Shares each cohort out over the ranks of a group; each trains its range with `inner`."""

    name = "ranks"

    def __init__(self, inner: Engine | None = None, group: Group = ALONE) -> None:
        self.inner: Engine = Serial() if inner is None else inner
        self.group, self._clients = group, 0
        self.rounds = self.sent = 0  # bytes of sums that left this rank
        self.slowest = self.mean = self.exchanging = 0.0  # seconds over all rounds
        self._run = self.inner

    @property
    def text(self) -> str:
        """The engine as a configuration writes it."""
        return f"ranks+{getattr(self.inner, 'text', self.inner.name)}"

    @property
    def chunk(self) -> int:
        """How many clients the inner engine computes at once: ranges are whole chunks."""
        return int(getattr(self._run, "chunk", 1))

    def fit(self, clients: int) -> None:
        """Know the size of the largest cohort. Raises ConfigError for more ranks than clients."""
        self._clients, size = clients, self.group.size
        if clients < size:
            raise ConfigError(
                f"{size} ranks, and the largest cohort has {clients} client"
                f"{'s' * (clients != 1)}: start at most as many ranks as clients "
                "(torchrun --nproc-per-node), or take a larger cohort"
            )
        inner = self.inner
        if isinstance(inner, Workers):
            if not inner._fixed_number:  # the ranks of one machine share its processors
                number = max(1, processors() // self.group.locals)
                self.inner = self._run = inner = Workers(number, inner._vectorised, inner.onednn)
            inner.fit(-(-clients // size))

    def open(self, plan: Plan, fed: Federation, net: Net) -> None:
        """Prepare the run. Raises ConfigError at every rank if there is nothing to do for one."""
        self._plan, self._fed, self._net = plan, fed, net
        self._run = self._settled(plan, fed, net)
        busy = -(-self._clients // self.chunk)
        if 0 < busy < self.group.size:
            least = -(-self._clients // self.group.size)
            many = self._run.name if isinstance(self._run, Vectorised) else "vectorised"
            raise ConfigError(
                f"engine = {self.text}: the largest cohort, of {self._clients}, is {busy} chunk"
                f"{'s' * (busy > 1)} of {self.chunk} clients, and there are {self.group.size} "
                f"ranks; take chunks of at most {least} clients, as in engine = {many}:{least}, "
                "or start fewer ranks"
            )
        _, error = self.group.attempt(lambda: self._run.open(plan, fed, net))
        self.group.gather(None, error)

    def _settled(self, plan: Plan, fed: Federation, net: Net) -> Engine:
        """The inner engine with a number of clients at once that is the first rank's everywhere,
        and without a process that another one only waits for.
        """
        inner = self.inner
        kind = type(inner) if isinstance(inner, Vectorised) else Vectorised
        as_fits = isinstance(inner, Vectorised) and inner._setting is None
        if as_fits or (isinstance(inner, Workers) and inner._vectorised == 0):
            refuse_model(plan, fed, net, MANY[kind.name])
            many = self.group.first(lambda: default_chunk(plan, fed, net, kind.largest))
            inner = Workers(inner._number, many) if isinstance(inner, Workers) else kind(many)
        if isinstance(inner, Workers):
            inner.settle(plan, fed, net)
            return inner.in_process() if inner.workers == 1 else inner
        return inner

    def cut(self, cohort: list[int]) -> list[tuple[int, int]]:
        """The range (first, end) of a cohort that each rank trains, perhaps empty: whole chunks, of
        about equal cost.
        """
        costs, size = [self._fed.cost(i) for i in cohort], self.chunk
        return self._cut([sum(costs[a : a + size]) for a in range(0, len(costs), size)], len(costs))

    def _cut(self, costs: list[float], end: int) -> list[tuple[int, int]]:
        """The same of the costs of the chunks of `end` places."""
        size, group = self.chunk, self.group.size
        cuts = [(a * size, min(b * size, end)) for a, b in ranges(costs, group)]
        return cuts + [(end, end)] * (group - len(cuts))

    # ------------------------------------------------------------------------------------- rounds
    def map(self, request: Request, task: TrainTask) -> RangeResult:
        """See Engine.map: the sums of all ranks, the client states of this one."""
        count, rank, size = len(task.cohort), self.group.rank, self.group.size
        cut = _slice(count, rank, size) if request.evaluates else self.cut(task.cohort)[rank]
        part = task.range(*cut)

        def work() -> RangeResult:
            return self._run.map(request, part) if part.cohort else RangeResult([], {}, [])

        if request.evaluates:
            result, error = self.group.attempt(work)
            scores = result.scores if result else ()
            lists = self.group.gather(scores, error)
            return RangeResult([], {}, [], [score for scores in lists for score in scores])
        when = f"round {task.round + 1}" if task.round >= 0 else "the first message"
        return self._exchanged(work, _checksum(task.msg, task.buffers), when)

    def _exchanged(self, work: Callable[[], RangeResult], checksum: int, when: str) -> RangeResult:
        """The results of all ranks, with one sum. A failure at one is raised at all of them."""
        started = time.perf_counter()
        result, error = self.group.attempt(work)
        seconds = time.perf_counter() - started
        result = result or RangeResult([], {}, [])
        nodes = [(level, index, tree(_hollow, total)) for level, index, total in result.nodes]
        heads = self.group.gather((checksum, nodes, result.stats, seconds), error)
        self._agree([head[0] for head in heads], when)
        started = time.perf_counter()
        add = self._sum if sums_suffice(self._plan, self._fed) else self._join
        total = add([head[1] for head in heads], [t for _, _, t in result.nodes])
        durations = [head[3] for head in heads]
        self.rounds += 1
        self.slowest += max(durations)
        self.mean += sum(durations) / len(durations)
        self.exchanging += time.perf_counter() - started
        stats = [cost for head in heads for cost in head[2]]
        return RangeResult([(0, 0, total)] if stats else [], result.memories, stats)

    def _agree(self, checksums: list[int], when: str) -> None:
        """Raise WorkerError if a rank holds another server state than the first one."""
        other = [r for r, other_checksum in enumerate(checksums) if other_checksum != checksums[0]]
        if other:
            names = ", ".join(f"{r} ({self.group.hosts[r]})" for r in other[:8])
            raise WorkerError(
                f"{when}: the server state at rank {names} differs in bits from that at rank 0 "
                f"({self.group.hosts[0]}): their processors, GPUs or libraries round differently; "
                "run on machines of one kind"
            )

    def _sum(self, nodes: list[list[Node]], values: list[Rec]) -> Rec:
        """The sum of all ranks' partial sums, which are (level, index, shape) by rank; values: this
        rank's. None if no update arrived.
        """
        group, rank, size = self.group, self.group.rank, self.group.size
        shapes = [shape for sums in nodes for _, _, shape in sums if shape is not None]
        if not shapes:
            return None
        give = [self._packed(values, r, size) for r in range(size)]
        take = [sum(_bytes(shape, rank, size) for _, _, shape in sums) for sums in nodes]
        stack: list[Node] = []
        for sums, raw in zip(nodes, group.exchange(give, take), strict=True):
            reader = _Reader(raw)
            for level, index, shape in sums:
                push(stack, level, index, reader.record(shape, rank, size))
        total, whole = root(stack), functools.reduce(_either, shapes)
        part = self._packed([total], 0, 1)  # this rank's slice of it
        take = [_bytes(whole, r, size) for r in range(size)]
        readers = map(_Reader, group.exchange([part] * size, take))
        slices = [reader.record(whole, r, size) for r, reader in enumerate(readers)]
        self.sent += sum(map(len, give)) - len(give[rank]) + (size - 1) * len(part)
        return tree(functools.partial(_concatenated, self._net.device), whole, total, *slices)

    def _join(self, nodes: list[list[Node]], values: list[Rec]) -> Rec:
        """The same where updates are not added up: every rank gets all, see aggregation/rows.py."""
        group, size = self.group, self.group.size
        raw = self._packed(values, 0, 1)
        take = [sum(_bytes(shape, 0, 1) for _, _, shape in sums) for sums in nodes]
        stack: list[Node] = []
        for sums, received in zip(nodes, group.exchange([raw] * size, take), strict=True):
            reader = _Reader(received)
            for level, index, shape in sums:
                push(stack, level, index, tree(self._to_device, shape, reader.record(shape, 0, 1)))
        self.sent += (size - 1) * len(raw)
        return root(stack)

    def _to_device(self, v: Any, value: Any) -> Any:
        """A whole vector in its shape, on this rank's device; a number as it is."""
        return value.view(v.shape).to(self._net.device) if isinstance(v, _Shape) else value

    def _packed(self, records: list[Rec], r: int, size: int) -> Tensor:
        """The bytes of the slice number r of all vectors in some records, (n,) uint8."""
        out = [torch.empty(0, dtype=torch.uint8, device=self.group.wire)]
        for v in leaves(*records):
            if isinstance(v, Tensor):
                a, b = _slice(v.numel(), r, size)
                flat = v.detach().contiguous().view(-1)[a:b]
                out.append(flat.to(self.group.wire).view(torch.uint8))
        return torch.cat(out)

    def balance(self) -> dict[str, float]:
        """What the ranks did: seconds of the slowest and of the mean rank, summed over the rounds,
        seconds in the exchange, and bytes of sums that this rank sent.
        """
        return {
            "number": self.group.size,
            "slowest_seconds": self.slowest,
            "mean_seconds": self.mean,
            "exchange_seconds": self.exchanging,
            "bytes_sent": self.sent,
        }

    def close(self) -> None:
        """Release what the inner engine holds."""
        self._run.close()


@dataclass(frozen=True)
class _Shape:
    """Stands for a vector in a record that is sent without its values."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def _hollow(v: Any) -> Any:
    return _Shape(tuple(v.shape), v.dtype) if isinstance(v, Tensor) else v


def _slice(count: int, r: int, size: int) -> tuple[int, int]:
    """(first, end) of slice number r of `count` places in `size` slices."""
    return count * r // size, count * (r + 1) // size


def _bytes(shape: Rec, r: int, size: int) -> int:
    """How many bytes slice number r of the vectors of a record takes."""
    total = 0
    for v in leaves(shape):
        if isinstance(v, _Shape):
            a, b = _slice(math.prod(v.shape), r, size)
            total += (b - a) * v.dtype.itemsize
    return total


class _Reader:
    """Reads slices of vectors from bytes, (n,) uint8, in the order in which they were packed."""

    def __init__(self, raw: Tensor) -> None:
        self._raw, self._at = raw, 0

    def record(self, shape: Rec, r: int, size: int) -> Rec:
        """A record with slice number r of each vector, and the numbers as they are."""
        return tree(lambda v: self._vector(v, r, size) if isinstance(v, _Shape) else v, shape)

    def _vector(self, v: _Shape, r: int, size: int) -> Tensor:
        a, b = _slice(math.prod(v.shape), r, size)
        raw = self._raw[self._at : self._at + (b - a) * v.dtype.itemsize]
        self._at += len(raw)
        raw = raw.clone() if raw.storage_offset() % v.dtype.itemsize else raw
        return raw.view(v.dtype)


def _either(one: Rec, other: Rec) -> Rec:
    """The shape of the sum: a vector where either has one."""
    return tree(lambda a, b: a if isinstance(a, _Shape) else b, one, other)


def _concatenated(device: torch.device, v: Any, total: Any, *slices: Any) -> Any:
    """A vector of its slices, in new memory; a number is the total."""
    return torch.cat(slices).view(v.shape).to(device) if isinstance(v, _Shape) else total


def _checksum(*records: Rec) -> int:
    """A number for the bits of records."""
    checksum = 0
    for v in leaves(*records):
        raw = as_bytes(v).numpy().data if isinstance(v, Tensor) else repr(v).encode()
        checksum = zlib.crc32(raw, checksum)
    return checksum
