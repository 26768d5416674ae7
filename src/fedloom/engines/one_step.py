"""One local step of a few clients, tried beside a run: what it takes, and whether it can be."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from ..core.device import wait_for
from ..core.net import Net
from ..core.products import has_bfloat16
from ..core.vector import leaves, rec, tree
from ..core.wire import nbytes
from ..federation.federation import Federation
from ..plan import Plan
from ..stage import At
from ..storage.records import sparsify
from .base import Engine, one_thread
from .client_results import Request, TrainTask
from .extra_exchanges import ask_cohort
from .guard import at_server
from .recorded import CHECKS
from .serial import Serial
from .summation import root
from .vectorised import Vectorised

FIRST_STEPS = 12  # of a round that is timed


def try_step(
    plan: Plan,
    fed: Federation,
    net: Net,
    engine: Engine,
    members: list[int],
    times: int = 1,
    clock: Callable[[], float] = lambda: 0.0,
    steps: int = 1,
) -> float:
    """Take one step of these clients, or so many, so many times -> seconds of the last, by a clock
    that is asked if one is given. The model's buffers are then the initial ones. Raises
    FedloomError where that cannot be.
    """
    fed = replace(fed, local=replace(fed.local, epochs=None, steps=steps))
    task = first_task(plan, fed, net, members)
    try:
        engine.open(plan, fed, net)
        task = ask_cohort(engine.map, plan, fed.seed, task)[0]
        for _ in range(times):
            began = clock()
            engine.map(Request.TRAIN, task)
        return clock() - began
    finally:
        engine.close()
        net.load_buffers(net.init_buffers())


def time_round(plan: Plan, fed: Federation, net: Net, engine: Engine, clients: int) -> float:
    """Seconds of a round of so many clients on this device, of their first steps only; once these
    are replayed, if they are. Raises FedloomError where it cannot be computed so.
    """

    def clock() -> float:
        wait_for(net.device)
        return time.perf_counter()

    members = list(range(min(clients, fed.population)))
    steps = min(FIRST_STEPS, max(map(fed.steps, members)))
    # a step is computed, recorded, and checked, before it is replayed
    times = 2 if isinstance(engine, Serial) else 3 + CHECKS
    with as_it_was(net):
        return try_step(plan, fed, net, engine, members, times, clock, steps)


def not_replayed(
    plan: Plan,
    fed: Federation,
    net: Net,
    members: list[int],
    kind: type[Vectorised] = Vectorised,
) -> str:
    """Why a step of these clients is not replayed, see recorded.py, or "". Raises FedloomError."""
    engine = kind(len(members), after=1)
    try_step(plan, fed, net, engine, members, times=2)
    return next(iter(engine.recorded.refused.values()), "")


class StepCost(NamedTuple):
    """What a client needs for a local step. seconds: in the fastest of three times two. Bytes:
    held, its part of the model; peak, all tensors that exist at once, its part and its places too,
    its data not; kept, its state between two rounds.
    """

    seconds: float
    held: int
    peak: int
    kept: int


def step_costs(plan: Plan, fed: Federation, net: Net) -> dict[float, StepCost]:
    """{capacity: what one of these clients needs} at the model before round 1; see StepCost."""
    first: dict[float, int] = {}
    for i in range(fed.population):
        first.setdefault(fed.capacity(i), i)
    # two: an optimiser's state is there from the second on
    fed = replace(fed, local=replace(fed.local, epochs=None, steps=2))
    engine, costs = _OneByOne(), {}
    with as_it_was(net):
        engine.open(plan, fed, net)
        for capacity, i in sorted(first.items()):
            task = first_task(plan, fed, net, [i])
            task = ask_cohort(engine.map, plan, fed.seed, task)[0]
            with one_thread(fed.local.precision):
                costs[capacity] = engine.cost(task, i)
    return costs


class _OneByOne(Serial):
    """The reference engine, which measures a client."""

    def cost(self, task: TrainTask, i: int) -> StepCost:
        """What client i needs, from what it is asked."""
        client = self._clients.client
        (download,) = client.downloads(task).values()
        view = download.view
        memory = task.memories.get(i) or client.first_memory(task.msg.x, i, view)
        size = sum(v.nbytes for v in leaves(download.msg, view.fit) if isinstance(v, Tensor))
        size += 0 if view.held is None else view.held.nbytes

        def train() -> Any:
            return client.train(client.receive(download, memory), memory, i, task.round)

        seconds = min(_seconds(train, task.msg.x) for _ in range(3))
        with _Allocated() as allocated:
            result = train()
        new_memory = client.send(result, download, At(client.fed.seed, task.round, i)).memory
        kept_bytes = sum(nbytes(sparsify(new_memory)).values())
        return StepCost(seconds / 2, download.msg.x.nbytes, size + allocated.peak, kept_bytes)


def _seconds(train: Callable[[], Any], like: Tensor) -> float:
    began = time.perf_counter()
    train()
    wait_for(like.device)
    return time.perf_counter() - began


class _Counting:
    """The hook of Operations. In a class that is a mode itself torch would load its compiler for
    it, which takes seconds.
    """

    count = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if formula := flop_registry.get(func.overloadpacket):
            self.count += formula(*args, **(kwargs or {}), out_val=out)
        return out


class Operations(_Counting, TorchDispatchMode):  # type: ignore[no-untyped-call]  # as below
    """count: of the operations inside that torch has a formula for, two for a multiplication with
    an addition.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]


class _Allocated(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """peak: the most bytes of tensors made inside that existed at once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._live: weakref.WeakKeyDictionary[torch.UntypedStorage, int] = (
            weakref.WeakKeyDictionary()
        )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = set(map(id, _storages((args, kwargs))))
        out = func(*args, **(kwargs or {}))
        self._live |= {s: s.nbytes() for s in _storages(out) if id(s) not in inputs}
        self.peak = max(self.peak, sum(self._live.values()))
        return out


def _storages(values: Any) -> list[torch.UntypedStorage]:
    return [v.untyped_storage() for v in tree_leaves(values) if isinstance(v, Tensor)]


def bfloat16_gain(plan: Plan, fed: Federation, net: Net) -> float | None:
    """The part of a step's time that `local.precision = bf16` would take, by the second of two
    steps each; None for a run that is not on a CPU with bfloat16, or not in float32 throughout. The
    model's buffers and the way that it computes stay as they were.
    """
    if net.device.type != "cpu" or net.dtype != torch.float32 or not has_bfloat16(net.device):
        return None
    if fed.local.precision != "full":
        return None
    seconds, onednn = dict[str, float](), net.onednn
    with as_it_was(net):
        for precision in ("full", "bf16"):
            local = replace(fed.local, precision=precision)
            parts = plan, replace(fed, local=local), net
            seconds[precision] = try_step(*parts, Serial(onednn), [0], 2, time.perf_counter)
    return seconds["bf16"] / seconds["full"]


@contextlib.contextmanager
def as_it_was(net: Net) -> Iterator[None]:
    """Afterwards the net's buffers, and the way that it computes, are those of before."""
    ways, buffers = (net.onednn, net.bf16), net.buffers().clone()
    try:
        yield
    finally:
        net.onednn, net.bf16 = ways
        net.load_buffers(buffers)


def first_task(
    plan: Plan, fed: Federation, net: Net, members: list[int], up: Any = None
) -> TrainTask:
    """What round 1 asks of these clients. up: what they answered before it, if that is known."""
    x, alg = net.init(), plan.algorithm
    if alg.probes and up is None:
        engine = Serial()
        engine.open(plan, fed, net)
        total = root(
            engine.map(
                Request.PROBE, TrainTask(rec(x=x), net.init_buffers(), {}, members[:1], -1)
            ).nodes
        )
        up = tree(lambda v: v / total.n, total.up)
    srv = at_server(alg, fed.seed, "server_init", 0, x, up)
    msg = at_server(alg, fed.seed, "broadcast", 0, srv)
    return TrainTask(msg, net.init_buffers(), {}, members, 0)
