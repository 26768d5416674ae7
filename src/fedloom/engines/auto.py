"""The engine `auto`: first a family of bits, then one process or many that compute the same bits.

On a CPU a family, "serial", "serial+onednn" or "vectorised:N", follows from the configuration and
never from a clock, so that it means the same bits on every machine: from the model's layers and
length, the data type and the size of a round (benchmarks/records/family.md). Whether processes are
faster is tried once, in the first round of a run that is long enough. On a GPU, which promises no
bits, the ways are timed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from ..core.net import Net
from ..core.products import gains
from ..errors import ConfigError, FedloomError, WorkerError
from ..federation.federation import Federation
from ..plan import Plan
from .base import processors
from .client_results import RangeResult, Request, TrainTask, join_results
from .one_step import time_round, try_step
from .ranges import TooManyError, default_chunk
from .serial import Serial
from .vectorised import Streams, Vectorised
from .vmap_refusals import MANY, refuse_model
from .workers import Workers

WORTH = 20.0  # seconds that a run must last before processes are started for it
TRIAL = 1.0  # seconds of this process's part of the trial, about
FASTER = 0.95  # times as long: processes must gain that much, for they need more of the machine
STARTING = 300.0  # seconds that processes may take to start

PARAMETERS = 1 << 17  # of a longer model one client keeps a processor busy
FEWEST = 20  # clients at once, below which the batched functions cost more than they save
CHUNK = 50  # clients at once, at least, where a cohort is cut for worker processes to share it
# with convolutions it saves less than a second processor: so enough parts for four processes
BATCH, CHUNK_OF_CONVOLUTIONS, PARTS = 10, 25, 4

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """A family of bits, and why."""

    family: str
    why: str
    setting: str = "auto"

    @property
    def engine(self) -> str:
        """The engine that was given, with what was chosen.

        >>> Choice("vectorised:50", "").engine
        'auto+vectorised:50'
        >>> Choice("vectorised:50", "", "workers:2+vectorised").engine
        'workers:2+vectorised:50'
        """
        plus = "+" if self.setting.endswith("auto") else ""
        return self.setting.removesuffix(self.family.partition(":")[0]) + plus + self.family

    def __str__(self) -> str:
        return f"engine = {self.setting} takes {self.family}: {self.why}"


def family_of(plan: Plan, fed: Federation, net: Net, clients: int, shares: int = 1) -> Choice:
    """The family of a run whose rounds have this many clients. shares: ranks that share them.

    Whether the model and the method can be computed for many clients at once is tried on one step
    of two clients; on a GPU, how long a round takes.
    """
    if net.device.type != "cpu":
        return fastest(plan, fed, net, max(1, chunk_of(clients, shares)))
    batch = fed.local.batch or len(fed.data.clients.of(0))
    chunk = chunk_of(clients, shares, CHUNK_OF_CONVOLUTIONS if convolves(net) else CHUNK)
    why_not = one_by_one(net, clients, batch, shares)
    if not why_not:
        try:
            refuse_model(plan, fed, net)
            try_step(plan, fed, net, Vectorised(2), [0, 1])
            return Choice(f"vectorised:{chunk}", f"a small model, and cohorts of {clients}")
        except FedloomError as error:
            why_not = f"many clients at once are refused: {error}"
    full = net.dtype == torch.float32 and fed.local.precision == "full"
    if full and gains(net.module, batch):
        return Choice("serial+onednn", f"{why_not}; it has large linear layers")
    return Choice("serial", why_not)


def fastest(plan: Plan, fed: Federation, net: Net, chunk: int) -> Choice:
    """The way that takes the least time for a round of `chunk` clients on this device; half as many
    where they do not fit into its memory.
    """
    seconds = dict[str, float]()
    for kind in (Vectorised, Streams):
        size = min(chunk, kind.largest)
        while size > 1:
            engine = kind(size, after=1)
            try:
                seconds[engine.text] = time_round(plan, fed, net, engine, chunk)
                break
            except FedloomError as error:
                full = isinstance(error.__cause__, torch.OutOfMemoryError)
                size = size // 2 if full or isinstance(error, TooManyError) else 0
    seconds["serial"] = time_round(plan, fed, net, Serial(), chunk)
    best = min(seconds, key=seconds.__getitem__)
    each = ", ".join(f"{name} {1e3 * s:.3g} ms" for name, s in seconds.items())
    return Choice(best, f"of a round on this device the first steps take {each}")


def choose_chunk(
    plan: Plan,
    fed: Federation,
    net: Net,
    clients: int,
    shares: int = 1,
    kind: type[Vectorised] = Vectorised,
) -> Choice:
    """What `vectorised` or `streams` without a number takes: the clients at once of family_of(), on
    a CPU at most as many as fit into a gigabyte. Raises CompositionError for a model that cannot be
    computed so.
    """
    refuse_model(plan, fed, net, MANY[kind.name])
    chunk, why = max(1, min(chunk_of(clients, shares), kind.largest)), f"cohorts of {clients}"
    if net.device.type == "cpu" and (fits := default_chunk(plan, fed, net, chunk)) < chunk:
        chunk, why = fits, "as many as fit into a gigabyte"
    return Choice(f"{kind.name}:{chunk}", why)


def one_by_one(net: Net, clients: int, batch: int, shares: int = 1) -> str:
    """Why clients are computed one after another, by layers, parameters, clients and the examples
    of a step; "" if they are not.

    >>> one_by_one(Net(nn.Linear(784, 10)), 20, 50), one_by_one(Net(nn.Linear(784, 10)), 19, 50)
    ('', '19 of a cohort are too few for 20 at once')
    >>> one_by_one(Net(nn.Linear(784, 200)), 100, 50)
    'a model of 157,000 parameters is work enough alone'
    >>> one_by_one(Net(nn.Conv2d(1, 1, 3)), 100, 50)
    'a model with convolutions gains from many at once only with batches of at most 10'
    """
    if net.layout.d > PARAMETERS:
        return f"a model of {net.layout.d:,} parameters is work enough alone"
    if clients // shares < FEWEST:
        return f"{clients // shares} of a cohort are too few for {FEWEST} at once"
    if convolves(net):
        only = "a model with convolutions gains from many at once only"
        if batch > BATCH:
            return f"{only} with batches of at most {BATCH}"
        if clients < (least := PARTS * CHUNK_OF_CONVOLUTIONS):
            return f"{only} in cohorts of {least}"
    return ""


def convolves(net: Net) -> bool:
    """Whether the model has convolutions."""
    return any(isinstance(part, nn.modules.conv._ConvNd) for part in net.module.modules())


def chunk_of(clients: int, shares: int = 1, least: int = CHUNK) -> int:
    """How many clients of a cohort are computed at once: equal parts of 50 to 99 (`least` to twice
    that), whose number every machine shares; fewer if there are fewer, or the ranks need them.

    >>> chunk_of(20), chunk_of(99), chunk_of(100), chunk_of(1000), chunk_of(100, shares=3)
    (20, 99, 50, 50, 33)
    """
    return min(-(-clients // max(1, clients // least)), clients // shares)


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
        shared = net.device.type == "cpu" and not isinstance(self.inner, Streams)
        self._processes = min(processors(), busy) if shared else 1

    def map(self, request: Request, task: TrainTask) -> RangeResult:
        """See Engine.map."""
        if request is Request.TRAIN and not self._decided:
            self._decided = True
            if self._processes > 1:
                return self._deciding(task)
        return self._safely(lambda: self.way.map(request, task))

    def _deciding(self, task: TrainTask) -> RangeResult:
        """The first round, after which it is decided; cut at whole chunks, which changes no bit."""
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
