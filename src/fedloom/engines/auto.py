"""The engine `auto`: one process, or worker processes that compute the same bits (see family.py).

It is decided once, in the first round of a run that is long enough to be worth it: a part of that
round is computed both ways, and the faster one stays.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from ..core.net import Net
from ..errors import ConfigError, WorkerError
from ..federation.federation import Federation
from ..plan import Plan
from .base import processors
from .client_results import RangeResult, Request, TrainTask, join_results
from .serial import Serial
from .vectorised import Vectorised
from .workers import Workers

WORTH = 20.0  # seconds that a run must last before processes are started for it
TRIAL = 1.0  # seconds of this process's part of the trial, about
FASTER = 0.95  # times as long: processes must gain that much, for they need more of the machine
STARTING = 300.0  # seconds that processes may take to start

_log = logging.getLogger(__name__)


class Auto:
    """One process, or worker processes that compute the same bits: whichever takes less time.

    inner: the engine of one process, with the number of clients at once given.
    """

    name = "auto"

    def __init__(self, inner: Serial | Vectorised) -> None:
        self.inner = inner
        self._workers: Workers | None = None
        self._clients = self._rounds = 0
        self._processes = 1  # that a run may take
        self._decided = False

    @property
    def text(self) -> str:
        """The engine as a configuration writes it."""
        return f"auto+{self.inner.text}"

    @property
    def chunk(self) -> int:
        """How many clients are computed at once."""
        return int(getattr(self.inner, "chunk", 1))

    @property
    def way(self) -> Serial | Vectorised | Workers:
        """The engine that computes now."""
        return self._workers or self.inner

    def fit(self, clients: int, rounds: int) -> None:
        """Know the size of the largest cohort, and the length of the run."""
        self._clients, self._rounds = clients, rounds

    def open(self, plan: Plan, fed: Federation, net: Net) -> None:
        """Prepare the run, in this process."""
        self._plan, self._fed, self._net = plan, fed, net
        self.inner.open(plan, fed, net)
        busy = -(-self._clients // self.chunk)  # more processes would have nothing to do
        self._processes = min(processors(), busy) if net.device.type == "cpu" else 1

    def map(self, request: Request, task: TrainTask) -> RangeResult:
        """See Engine.map."""
        if request is Request.TRAIN and not self._decided:
            self._decided = True
            if self._processes > 1:
                return self._deciding(task)
        return self._safely(lambda: self.way.map(request, task))

    def _deciding(self, task: TrainTask) -> RangeResult:
        """The first round, after which it is decided. It is cut at whole chunks, which changes no
        bit.
        """
        clients, chunk = len(task.cohort), self.chunk
        seconds, first_result = _timed(self.inner, task.range(0, chunk))
        each = seconds / min(chunk, clients)
        if each * clients * (self._rounds - task.round) > WORTH:
            several = chunk * self._processes
            trial = task.range(0, several * max(1, int(TRIAL / (each * several))))
            self._try(trial)
        if clients <= chunk:
            return first_result
        rest = task.range(chunk, clients)
        return join_results([first_result, self._safely(lambda: self.way.map(Request.TRAIN, rest))])

    def _try(self, trial: TrainTask) -> None:
        """Start processes, and keep them if they take less time for this part of a round."""
        chunk = self.inner.chunk if isinstance(self.inner, Vectorised) else None
        onednn = isinstance(self.inner, Serial) and self.inner.onednn
        workers = self._workers = Workers(self._processes, chunk, onednn)
        workers.fit(self._clients)
        try:
            workers.open(self._plan, self._fed, self._net)
            workers.wait_until_ready(STARTING)
            _timed(workers, trial)  # the first one has costs that no later one has
            several, _ = _timed(workers, trial)
        except (ConfigError, OSError, WorkerError) as error:
            _log.warning("engine = auto: the run stays in one process: %s", error)
            self._end()
            return
        ratio = several / _timed(self.inner, trial)[0]
        _log.info(
            "engine = auto: %d processes take %.2f of the time of one; the run goes on in %s",
            *(self._processes, ratio, "them" if ratio < FASTER else "one"),
        )
        if ratio >= FASTER:
            self._end()

    def _safely(self, work: Callable[[], RangeResult]) -> RangeResult:
        """What `work` gives; if processes keep dying or hanging, what it gives in this one."""
        try:
            return work()
        except WorkerError as error:
            if self._workers is None:
                raise
            _log.warning("engine = auto: %s; the run goes on in one process", error)
        self._end()
        return work()

    def _end(self) -> None:
        """Go on in this process, and end the others."""
        workers, self._workers = self._workers, None
        if workers is not None:
            workers.close()

    def close(self) -> None:
        """End all processes."""
        self._end()
        self.inner.close()


def _timed(engine: Serial | Vectorised | Workers, task: TrainTask) -> tuple[float, RangeResult]:
    """The seconds of a task, and its result."""
    began = time.perf_counter()
    result = engine.map(Request.TRAIN, task)
    return time.perf_counter() - began, result
