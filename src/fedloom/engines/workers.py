"""Worker processes with one torch thread each. Any of them may run any range of a cohort."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import wait
from typing import Any, NamedTuple

import torch

from ..core.child_processes import begin_guarded
from ..core.net import Net
from ..core.vector import rec
from ..errors import ConfigError, WorkerError
from ..federation.federation import Federation
from ..plan import Plan
from . import heartbeat as pulse
from . import worker_process
from .base import processors
from .client_results import RangeResult, Request, TrainTask, join_results
from .heartbeat import Heartbeats, Hung, short_list
from .ranges import default_chunk
from .serial import Serial
from .shared_memory import Board, Parcel
from .summation import ranges
from .vectorised import Vectorised
from .vmap_refusals import refuse_model

PER_PROCESSOR = 4  # more processes than that wait for each other, and each has memory of its own

_log = logging.getLogger(__name__)
_ATTEMPTS = 3  # of a round in which workers die or hang
_PAUSE = 0.01  # seconds between two looks at workers that start
_PIECES = 4  # ranges per worker: more of them balance the load better, and return more partial sums


class Workers:
    """A pool of processes that lives as long as the run. Data and messages are in shared memory.

    A worker that dies or hangs (see heartbeat.py) is replaced, and its work is repeated.
    vectorised: every worker computes chunks of this many clients (0: as many as fit, see
    Vectorised); the bits are those of the vectorised engine with these chunks. onednn: see Serial.
    """

    name = "workers"

    def __init__(
        self, workers: int | None = None, vectorised: int | None = None, onednn: bool = False
    ) -> None:
        if workers is not None and workers < 1:
            raise ConfigError(f"workers must be at least 1, got {workers}")
        self.onednn = onednn
        self.workers = self._number = workers or processors()
        self._fixed_number, self._clients = workers is not None, 0
        self.chunk, self._vectorised = vectorised or 1, vectorised
        self._executor: Any = None
        self._board: Board | None = None

    @property
    def text(self) -> str:
        """The engine as a configuration writes it."""
        first, chunk = f"workers:{self._number}", self._vectorised
        if chunk is not None:
            return f"{first}+vectorised" + (f":{chunk}" if chunk else "")
        return first + ("+onednn" if self.onednn else "")

    def fit(self, clients: int) -> None:
        """Use no more processes than cohorts of this many clients keep busy. Raises ConfigError for
        more than a machine of this size should run.
        """
        self._clients, most = clients, PER_PROCESSOR * processors()
        if self._number > most:
            raise ConfigError(
                f"engine '{self.text}': at most {most} workers here, {PER_PROCESSOR} for each of "
                f"{processors()} processors; 'workers' takes one for each"
            )

    def settle(self, plan: Plan, fed: Federation, net: Net) -> None:
        """Choose the number of processes and of clients at once; nothing is started. Raises
        ConfigError for a plan that this engine cannot run.
        """
        self.fit(self._clients)
        if net.device.type != "cpu":
            raise ConfigError(
                f"engine workers runs on CPUs, and the model is on {net.device}; "
                "give device = cpu, or engine = serial or vectorised"
            )
        self._plan, self._fed, self._net = plan, fed, net
        if self._vectorised is not None:
            refuse_model(plan, fed, net)
            self.chunk = self._vectorised or default_chunk(plan, fed, net)
        self.workers = self._number
        busy = -(-self._clients // self.chunk)  # a range of a cohort is whole chunks
        if 0 < busy < self.workers:
            if self._fixed_number:
                _log.warning(
                    "engine = %s: the largest cohort, of %d, keeps %d workers busy; no more are "
                    "started",
                    *(self.text, self._clients, busy),
                )
            self.workers = busy

    def in_process(self) -> Serial | Vectorised:
        """An engine that computes the same in this process."""
        return Serial(self.onednn) if self._vectorised is None else Vectorised(self.chunk)

    def open(self, plan: Plan, fed: Federation, net: Net) -> None:
        """Put plan, data and model into shared memory, and start the processes."""
        self.settle(plan, fed, net)
        self._board = Board()
        module = net.export(net.init(), net.init_buffers())
        chunk = None if self._vectorised is None else self.chunk
        net.onednn = self.onednn  # for metrics of the whole set, which are computed here
        try:
            self._post = self._board.post(
                (plan, fed, module, chunk, self.onednn),
                once=(fed.data.inputs, fed.data.targets),
            )
        except OSError:  # the memory is full
            raise
        except Exception as error:  # an exception of a user's part may not survive pickling
            why = str(error).partition("\n")[0]
            raise ConfigError(
                f"engine workers sends method, data and model to other processes, and one of them "
                f"cannot be sent ({type(error).__name__}: {why}); take engine = serial, or "
                "vectorised, which train them here"
            ) from error
        self._heartbeats = Heartbeats(self._board.folder, self.workers)
        self._start()

    def wait_until_ready(self, seconds: float) -> None:
        """Wait until all processes have loaded the run. Raises WorkerError after these seconds."""
        self._executor.submit(int)  # which starts them
        until = time.monotonic() + seconds
        while not self._heartbeats.ready():
            if time.monotonic() > until:
                raise WorkerError(f"no worker process was ready after {seconds:.0f} s")
            time.sleep(_PAUSE)

    def _start(self) -> None:
        self._heartbeats.begin(anew=True)
        self._executor = started(self.workers, self._post)

    def map(self, request: Request, task: TrainTask) -> RangeResult:
        """See Engine.map. Raises WorkerError if workers keep dying or hanging."""
        assert self._board is not None
        costs = [1.0 if request.evaluates else self._fed.cost(i) for i in task.cohort]
        cuts = self._cut(costs, 1 if request.evaluates else self.chunk)
        post = self._board.post((task.msg, task.buffers))
        when = f"of round {task.round + 1}" if task.round >= 0 else "before round 1"
        bare = task._replace(msg=rec(), buffers=torch.empty(0))  # which are in the post
        sent, tasks = list[Parcel](), list[_Task]()
        try:
            for cut in cuts:
                part = bare.range(*cut)
                memories = {i: task.memories[i] for i in part.cohort if i in task.memories}
                sent.append(self._board.pack(part._replace(memories=memories)))
                text = "an evaluation" if request.evaluates else f"{short_list(part.cohort)} {when}"
                tasks.append(_Task(text, (request, post, sent[-1])))
            return join_results(self._each(tasks))
        finally:
            self._board.remove(post)
            self._board.delete(sent)

    def _cut(self, costs: list[float], chunk: int) -> list[tuple[int, int]]:
        """Ranges (first, end) of places with these costs: whole chunks, so that their number
        changes no bit, and whole subtrees of the sum where there are many, so that a range returns
        few partial sums.
        """
        pieces = _PIECES * self.workers
        spare = max(1, len(costs) // (chunk * 2 * pieces))
        size = chunk << (spare.bit_length() - 1)
        costs = [sum(costs[a : a + size]) for a in range(0, len(costs), size)]
        return [(a * size, b * size) for a, b in ranges(costs, pieces)]

    def _each(self, tasks: list[_Task]) -> Iterator[Any]:
        """The results of these tasks, in order, each as soon as it is there: while they are added
        up here, the workers go on. Lost work is repeated in new processes.
        """
        from loky.process_executor import BrokenProcessPool

        assert self._board is not None
        results: dict[int, Any] = {}
        stem = self._board.new_name("result")
        first = 0  # of those that are still to be given
        for attempt in range(1, _ATTEMPTS + 1):
            futures: dict[int, Any] = {}
            try:
                self._heartbeats.begin()
                for k, task in enumerate(tasks):
                    if k not in results:
                        name = f"{stem}.{k}"
                        take = worker_process.take
                        futures[k] = self._executor.submit(take, k + 1, name, *task.arguments)
                while first < len(tasks):
                    if first in futures:
                        results[first] = self._board.take(self._result(futures[first]))
                    result, results[first], first = results[first], None, first + 1
                    yield result
                return
            except BrokenProcessPool as error:
                kind, message = "died", f"a worker died: {str(error).splitlines()[0]}"
                advice = (
                    f"is there memory enough for {self.workers} of them? try engine = serial or "
                    "fewer workers"
                )
            except _HungError as error:
                kind, message = "hung", _describe_hang(error.args[0], tasks)
                advice = (
                    "does a part of your own wait for something that never comes? engine = serial "
                    "waits however long it takes"
                )
            _log.warning("%s (attempt %d of %d)", message, attempt, _ATTEMPTS)
            for k, future in futures.items():
                if k not in results and future.done() and future.exception() is None:
                    results[k] = self._board.take(future.result())
            self._end()
            self._start()
        raise WorkerError(
            f"workers {kind} {_ATTEMPTS} times in the same round ({message}); {advice}"
        )

    def _result(self, future: Any) -> Parcel:
        """The result of a task. Raises _HungError."""
        while not wait([future], pulse.POLL).done:
            if hung := self._heartbeats.look():
                raise _HungError(hung)
        result: Parcel = future.result()
        return result

    def close(self) -> None:
        """End the processes and free the shared memory."""
        if self._executor is not None:
            self._end()
            self._executor = None
        if self._board is not None:
            self._board.close()
            self._board = None

    def _end(self) -> None:
        end(self._executor)


class _Task(NamedTuple):
    """What a worker is asked, in words, and the arguments of worker_process.take."""

    description: str
    arguments: tuple[Any, ...]


class _HungError(Exception):
    """A worker hangs; holds a heartbeat.Hung."""


def _describe_hang(hung: Hung, tasks: list[_Task]) -> str:
    seconds = f"{hung.seconds:.3g} s"
    if hung.worker is None:
        return f"tasks wait, and no worker has begun one for {seconds}; all workers are replaced"
    return (
        f"worker process {hung.worker} has sent no heartbeat for {seconds}, in "
        f"{tasks[hung.task - 1].description}; it is replaced, and its work is repeated"
    )


_WORKER = f"{__package__}.worker_process"
_PATIENCE = 5.0  # seconds for processes to end on their own


def started(number: int, post: str) -> Any:
    """Processes that load what is posted there, plan, data and model, and take tasks."""
    from loky import ProcessPoolExecutor

    parent = os.getpid()
    return ProcessPoolExecutor(
        max_workers=number,
        initializer=begin_guarded,  # which a process can load before torch
        initargs=(parent, _WORKER, "begin", post, parent),
        env={"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
    )


def end(executor: Any) -> None:
    """End these processes, whatever they are doing."""
    processes = list((executor._processes or {}).values())
    results, manager = executor._result_queue, executor._executor_manager_thread
    executor.shutdown(wait=False, kill_workers=True)
    if manager is None:
        return
    manager.join(_PATIENCE)
    if manager.is_alive():  # it reads a result that a hanging worker wrote only in part
        for process in processes:
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
        results._writer.close()
        manager.join()
