"""Several worker processes, one torch thread each: any range of a cohort may run in any of them."""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import ConfigError, WorkerError
from ..interrupts import deaf_children, leave_to_parent
from ..net import Net
from ..plan import Federation, Plan
from ..vector import Rec, Vec
from .base import (
    Score,
    add,
    evaluate_range,
    evaluation_batch,
    keep_memory,
    one_thread,
    processors,
)
from .chunks import Chunks, default_chunk
from .client import Client, RangeResult
from .shared import Board, dumps, load, loads
from .sums import push, ranges
from .vectorised import refuse_module

__all__ = ["Workers"]

_log = logging.getLogger(__name__)
_ATTEMPTS = 3  # of a round in which workers die
_PIECES = 4  # ranges per worker: more balance better, and hand on more partial sums


class Workers:
    """A pool of processes that lives as long as the run; data and messages lie in shared memory.

    A worker that dies is replaced, and the round is repeated. vectorised: every worker computes its
    clients in chunks, of this many clients (0: as many as fit, see Vectorised); the bits are those
    of the vectorised engine with these chunks.
    """

    name = "workers"

    def __init__(self, workers: int | None = None, vectorised: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise ConfigError(f"workers must be at least 1, got {workers}")
        self.workers = workers or processors()
        self.chunk, self._vectorised = vectorised or 1, vectorised
        self._executor: Any = None
        self._board: Board | None = None
        self._posted: dict[tuple[int, int], tuple[Any, str]] = {}

    @property
    def text(self) -> str:
        """As a configuration writes it."""
        first, chunk = f"workers:{self.workers}", self._vectorised
        return first if chunk is None else f"{first}+vectorised" + (f":{chunk}" if chunk else "")

    def open(self, plan: Plan, fed: Federation, net: Net) -> None:
        """Put plan, data and model into shared memory, and start the processes."""
        if net.device.type != "cpu":
            raise ConfigError(
                f"engine workers runs on CPUs, and the model is on {net.device}; "
                "give device = cpu, or engine = serial"
            )
        self._fed = fed
        if self._vectorised is not None:
            refuse_module(net.module)
            self.chunk = self._vectorised or default_chunk(plan, fed, net)
        self._board = Board()
        module = net.export(net.init(), net.init_buffers())
        chunk = None if self._vectorised is None else self.chunk
        try:
            self._post = self._board.post((plan, fed, module, chunk))
        except OSError:  # the memory is full
            raise
        except Exception as error:  # whatever a user's part raises that is no copy of itself
            why = str(error).partition("\n")[0]
            raise ConfigError(
                f"engine workers sends method, data and model to other processes, and one of them "
                f"cannot be sent ({type(error).__name__}: {why}); take engine = serial, or "
                "vectorised, which train them here"
            ) from error
        self._start()

    def _start(self) -> None:
        from loky import ProcessPoolExecutor
        from loky.backend.resource_tracker import ensure_running

        with deaf_children():
            ensure_running()
        self._executor = ProcessPoolExecutor(
            max_workers=self.workers,
            initializer=_begin,
            initargs=(self._post, os.getpid()),
            env={"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        )

    def round(
        self, msg: Rec, buffers: Vec, memories: dict[int, Rec], cohort: list[int], round: int
    ) -> RangeResult:
        """Train a cohort. Raises WorkerError when workers keep dying."""
        assert self._board is not None
        size = self.chunk  # ranges are whole chunks, so that their number changes no bit
        costs = [self._fed.cost(i) for i in cohort]
        costs = [sum(costs[a : a + size]) for a in range(0, len(costs), size)]
        cuts = [(a * size, b * size) for a, b in ranges(costs, _PIECES * self.workers)]
        post = self._board.post((msg, buffers))

        def submit(a: int, b: int) -> Any:
            mine = {i: memories[i] for i in cohort[a:b] if i in memories}
            return self._executor.submit(_train, post, dumps(mine), cohort[a:b], round, a)

        try:
            parts: list[RangeResult] = self._repeat(lambda: [submit(a, b) for a, b in cuts])
        finally:
            self._board.remove(post)
        return _joined(parts)

    def probe(self, x: Vec, buffers: Vec, clients: list[int]) -> RangeResult:
        """Ask clients once before round 0."""
        assert self._board is not None
        post = self._board.post((x, buffers))
        cuts = ranges([1.0] * len(clients), _PIECES * self.workers)

        def submit(a: int, b: int) -> Any:
            return self._executor.submit(_probe, post, clients[a:b], a)

        try:
            return _joined(self._repeat(lambda: [submit(a, b) for a, b in cuts]))
        finally:
            self._board.remove(post)

    def evaluate(self, x: Vec, buffers: Vec, inputs: Tensor, targets: Tensor) -> Score:
        """The loss and the metrics of a model on data; the batches are shared out."""
        assert self._board is not None
        held = (id(inputs), id(targets))
        if held not in self._posted:
            self._posted[held] = ((inputs, targets), self._board.post((inputs, targets)))
        size = evaluation_batch(targets)
        data, batches = self._posted[held][1], -(-len(inputs) // size)
        model = self._board.post((x, buffers))

        def submit(a: int, b: int) -> Any:
            first, end = a * size, b * size
            return self._executor.submit(_score, model, data, first, end)

        cuts = ranges([1.0] * batches, 2 * self.workers)
        try:
            parts = self._repeat(lambda: [submit(a, b) for a, b in cuts])
        finally:
            self._board.remove(model)
        return add([score for part in parts for score in part])

    def _repeat(self, submit: Callable[[], list[Any]]) -> list[Any]:
        """The results of these tasks, in order; all again with new processes if one died."""
        from loky.process_executor import BrokenProcessPool

        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return [loads(future.result()) for future in submit()]
            except BrokenProcessPool as error:
                cause = str(error).splitlines()[0]
                _log.warning("a worker died (attempt %d of %d): %s", attempt, _ATTEMPTS, cause)
                self._executor.shutdown(wait=True, kill_workers=True)
                self._start()
        raise WorkerError(
            f"workers died {_ATTEMPTS} times in the same round; is there memory enough for "
            f"{self.workers} of them? try engine = serial or fewer workers"
        )

    def close(self) -> None:
        """End the processes and free the shared memory."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, kill_workers=True)
            self._executor = None
        if self._board is not None:
            self._board.close()
            self._board = None
        self._posted.clear()


def _joined(parts: list[RangeResult]) -> RangeResult:
    """The results of ranges, in order, as one."""
    out = RangeResult([], {}, [])
    for part in parts:
        for node in part.nodes:
            push(out.nodes, *node)
        out.memories.update(part.memories)
        out.stats.extend(part.stats)
    return out


# ---------------------------------------------------------------------------------- in the worker
_HERE: dict[str, Any] = {}  # this process's client, and what it loaded last


def _begin(post: str, parent: int) -> None:
    """Make this process a worker."""
    leave_to_parent()
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()
    torch.set_num_threads(1)
    keep_memory()
    plan, fed, module, chunk = load(post)
    net = Net(module)
    client = Client(plan, fed, net) if chunk is None else Chunks(plan, fed, net, chunk)
    _HERE.update(plan=plan, fed=fed, net=net, client=client, loaded={}, settled=False)


def _settle() -> None:
    """Take what is here after the first task, torch's modules above all, out of the collector's
    sight: loky collects garbage every second, and looking at all of it costs a tenth of that.
    """
    if not _HERE["settled"]:
        gc.freeze()
        _HERE["settled"] = True


def _follow(parent: int) -> None:
    """End with the parent, also when it is killed."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(3)


def _loaded(kind: str, post: str) -> Any:
    """What lies under a path; the last object of each kind is kept."""
    if _HERE["loaded"].get(kind, (None, None))[0] != post:
        _HERE["loaded"][kind] = (post, load(post))
    return _HERE["loaded"][kind][1]


def _train(post: str, memories: bytes, cohort: list[int], round: int, first: int) -> bytes:
    msg, buffers = _loaded("message", post)
    with one_thread():
        client: Client | Chunks = _HERE["client"]
        done = dumps(client.run_range(msg, buffers, loads(memories), cohort, round, first))
    _settle()
    return done


def _probe(post: str, clients: list[int], first: int) -> bytes:
    x, buffers = _loaded("message", post)
    with one_thread():
        client: Client | Chunks = _HERE["client"]
        return dumps(client.probe_range(x, buffers, clients, first))


def _score(model: str, data: str, first: int, end: int) -> bytes:
    x, buffers = _loaded("message", model)
    inputs, targets = _loaded(data, data)
    net: Net = _HERE["net"]
    with one_thread():
        net.load_buffers(buffers)
        plan, fed = _HERE["plan"], _HERE["fed"]
        return dumps(evaluate_range(plan, fed, net, x, inputs[first:end], targets[first:end]))
