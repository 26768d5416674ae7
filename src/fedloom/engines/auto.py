"""The engine `auto`: the run begins at once in one process, and its own rounds are the measurement.

Worker processes start beside a run that is long enough, and take over between two rounds, or within
a long first one, when they are ready. That changes no bit, because they compute the same family
(see family.py). After a few of their rounds it is decided, once: the faster way stays.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from torch import Tensor

from ..core.net import Net
from ..core.vector import Vec
from ..errors import ConfigError, WorkerError
from ..federation.federation import Federation
from ..plan import Plan
from .base import processors
from .client_results import RangeResult, Request, TrainTask
from .evaluation import Score
from .pace import Pace
from .serial import Serial
from .vectorised import Vectorised
from .workers import Workers, joined

T = TypeVar("T")
WORTH = 8.0  # seconds that what is left of a run must last before processes are started for it
SHORT = 0.01  # seconds of a round to which processes add more than they save (5 ms alone, 7 in two)
LONG = 2.0  # seconds of a first round that says enough
PIECE = 1.0  # seconds of the pieces of a long first round, between which processes may take over
FASTER = 0.95  # times as long: processes must gain that much, for they need more of the machine
STARTING = 300.0  # seconds that processes may take to start

_log = logging.getLogger(__name__)


class Auto:
    """One process, or worker processes that compute the same bits: whichever takes less time.

    here: the engine of one process, with the number of clients at once given.
    """

    name = "auto"

    def __init__(self, here: Serial | Vectorised) -> None:
        self.here = here
        self._now: Serial | Vectorised | Workers = here
        self._workers: Workers | None = None  # starting, or at work
        self._started = 0.0
        self._clients = self._rounds = self._most = 0
        self._pace, self._round = Pace(), -1
        self._alone = 0.0  # seconds for a unit of work in this process, before others were started
        self._decided = False

    @property
    def text(self) -> str:
        """The engine as a configuration writes it."""
        return f"auto+{self.here.text}"

    @property
    def chunk(self) -> int:
        """How many clients are computed at once."""
        return int(getattr(self.here, "chunk", 1))

    @property
    def way(self) -> str:
        """The engine that computes now, such as "workers:2"."""
        return self._now.text

    @property
    def _many(self) -> bool:
        return self._now is not self.here

    def fit(self, clients: int, rounds: int) -> None:
        """Know the size of the largest cohort, and the length of the run."""
        self._clients, self._rounds = clients, rounds

    def open(self, plan: Plan, fed: Federation, net: Net) -> None:
        """Prepare the run, in this process."""
        self._plan, self._fed, self._net = plan, fed, net
        self.here.open(plan, fed, net)
        busy = -(-self._clients // self.chunk)  # more processes would have nothing to do
        self._most = min(processors(), busy) if net.device.type == "cpu" else 1

    # ------------------------------------------------------------------------------------ the work
    def map(self, what: Request, task: TrainTask) -> RangeResult:
        """See Engine.map."""
        if what is Request.PROBE:
            return self._safely(lambda: self._now.map(what, task))
        if what is not Request.TRAIN or self._most < 2 or self._pace.first or self._many:
            return self._part(what, task)
        return joined(self._pieces(task))

    def _part(self, what: Request, task: TrainTask) -> RangeResult:
        work = sum(map(self._fed.cost, task.cohort)) if what is Request.TRAIN else 0.0
        return self._timed(task.round, work, lambda: self._now.map(what, task))

    def _pieces(self, asked: TrainTask) -> Iterator[RangeResult]:
        """The first round in pieces of whole chunks, which change no bit: the first piece says
        whether the round is long. Then processes start, and take over when they are ready.
        """
        at, size, began = 0, self.chunk, time.perf_counter()
        while at < (clients := len(asked.cohort)):
            yield self._part(Request.TRAIN, asked.range(at, at + size))
            at += size
            each = (time.perf_counter() - began) / min(at, clients)
            left = each * clients * (self._rounds - asked.round)
            if self._most < 2 or self._many or each * clients < LONG or left <= WORTH:
                size = clients  # the rest
            elif self._workers is None:
                self._start()
            elif self._workers.ready():
                self._now, self._pace = self._workers, Pace()
                size = clients
            else:
                size = self.chunk * max(1, int(PIECE / (each * self.chunk)))

    def scores(
        self, x: Vec, buffers: Vec, inputs: Tensor, targets: Tensor, first: int = 0
    ) -> list[Score]:
        """The loss and the metrics of a model on data."""
        return self._safely(lambda: self._now.scores(x, buffers, inputs, targets, first))

    def _timed(self, round: int, work: float, do: Callable[[], T]) -> T:
        if round > self._round:
            self._pace.end()
            self._between(round)
            self._round = round
        began, way = time.perf_counter(), self._now
        found = self._safely(do)
        if way is self._now:  # else it is a round that was repeated
            self._pace.add(time.perf_counter() - began, work)
        return found

    def _safely(self, do: Callable[[], T]) -> T:
        """What `do` gives; if processes keep dying or hanging, what it gives in this one."""
        try:
            return do()
        except WorkerError as error:
            if self._now is self.here:
                raise
            _log.warning("engine = auto: %s; the run goes on in one process", error)
        self._end()
        self._most = 1
        return do()

    # -------------------------------------------------------------------------- between two rounds
    def _between(self, round: int) -> None:
        """Before a round: start processes, let them take over, or decide."""
        if self._most < 2 or self._decided or not self._pace.first:
            return
        if self._many:
            if self._pace.enough:
                self._decide()
        elif self._workers is not None:
            self._await()
        elif self._worth(round):
            self._start()

    def _worth(self, round: int) -> bool:
        """True if what is left of the run may gain more from processes than starting them takes."""
        pace = self._pace
        if not pace.lasting and pace.first < LONG:
            return False
        return pace.a_round >= SHORT and pace.a_round * (self._rounds - round) > WORTH

    def _start(self) -> None:
        """Start processes beside the run, which may slow down its rounds until they are there."""
        self._alone = self._pace.usual
        chunk = self.here.chunk if isinstance(self.here, Vectorised) else None
        onednn = isinstance(self.here, Serial) and self.here.onednn
        self._workers = Workers(self._most, chunk, onednn)
        self._workers.fit(self._clients)
        try:
            self._workers.open(self._plan, self._fed, self._net)
            self._workers.wake()
        except (ConfigError, OSError) as error:
            _log.warning("engine = auto: the run stays in one process: %s", error)
            self._end()
            self._most = 1
        self._started = time.monotonic()

    def _await(self) -> None:
        """Let the processes take over if they are ready."""
        assert self._workers is not None
        if self._workers.ready():
            self._now, self._pace = self._workers, Pace()
        elif time.monotonic() - self._started > STARTING:
            _log.warning(
                "engine = auto: no worker process was ready after %.0f s; the run stays in one "
                "process",
                STARTING,
            )
            self._end()
            self._most = 1

    def _decide(self) -> None:
        """Keep the faster way, and end processes that lose."""
        ratio = self._pace.usual / self._alone
        _log.info(
            "engine = auto: %d processes take %.2f of the time of one; the run goes on in %s",
            *(self._most, ratio, "them" if ratio < FASTER else "one"),
        )
        self._decided = True
        if ratio >= FASTER:
            self._end()
            self._most = 1

    def _end(self) -> None:
        """Go on in this process, and end the others."""
        workers, self._workers = self._workers, None
        if self._now is not self.here:
            self._now, self._pace = self.here, Pace()
        if workers is not None:
            workers.close()

    def close(self) -> None:
        """End all processes."""
        self._end()
        self.here.close()
