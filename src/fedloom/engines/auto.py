"""engine = "auto": measure the engines on the real model and data, and choose the fastest."""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..core.net import Net
from ..core.vector import Rec, tree
from ..errors import FedloomError
from ..federation.federation import Federation
from ..plan import Plan
from .base import Engine, processors
from .serial import Serial
from .summation import root
from .vectorised import Vectorised, refuse_module
from .vmap_range import default_chunk
from .workers import Workers

BUDGET = 0.2  # seconds that one candidate is measured for, at least
SHARE, MOST = 0.003, 2.0  # of a long run's time, for one candidate; but never more seconds
WORTH = 20.0  # seconds that a run must last before processes are started to see how fast they are
WIDEST = 128  # clients at once that are tried
CLOSE, FINALISTS, HEATS = 1.25, 3, 5  # how near to the best, how many candidates, how often in turn
MARGIN = 0.97  # a later candidate must be this much faster, because it needs more of the machine


@dataclass(frozen=True)
class Choice:
    """The chosen engine, the seconds per round of each candidate, and why others were not tried."""

    engine: str
    seconds: Mapping[str, float]
    left_out: Mapping[str, str]

    def __str__(self) -> str:
        others = [f"{k} {_shown(v)}" for k, v in self.seconds.items() if k != self.engine]
        others += [f"not {k}: {why}" for k, why in self.left_out.items()]
        said = f"engine = {self.engine}"
        if self.engine in self.seconds:
            said += f", {_shown(self.seconds[self.engine])} a round"
        return said + (f" ({'; '.join(others)})" if others else "")


class Auto:
    """Measure serial, vectorised and workers on the real model and data, for about a second in all
    (longer if the run is long), and choose the fastest. The run's configuration gets its name.
    """


def _shown(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def choose(
    plan: Plan,
    fed: Federation,
    net: Net,
    cohort: list[int],
    rounds: int,
    processes: bool = True,
) -> Choice:
    """Measure the candidates on a typical cohort. rounds: how long the run will be.

    A candidate that cannot run the method is left out with its reason. Processes are started only
    if the run is long enough to pay for them, and never without `processes`.
    """
    trial = _Trial(plan, fed, net, cohort)
    trial.take("serial", Serial)
    allowed = SHARE * rounds * trial.seconds.get("serial", 0.0)
    if trial.allow(allowed):
        trial.take("serial", Serial)
    fits = min(default_chunk(plan, fed, net, WIDEST), len(cohort))
    for chunk in sorted({min(fits, 32), fits}):
        trial.take(f"vectorised:{chunk}", functools.partial(Vectorised, chunk))
    many = min(processors(), len(cohort))
    if many > 1 and net.device.type == "cpu":
        name, lasts = f"workers:{many}", rounds * min(trial.seconds.values(), default=0.0)
        if lasts < WORTH:
            trial.left_out[name] = f"the run lasts about {_shown(lasts)}, too short to start them"
        elif not processes:
            trial.left_out[name] = "a dry run starts no processes; the run itself measures them"
        else:
            trial.take(name, functools.partial(Workers, many))
            chunk = min(fits, -(-len(cohort) // (2 * many)))
            if not any(k.startswith("vectorised") for k in trial.left_out):
                both = f"{name}+vectorised:{chunk}"
                trial.take(both, functools.partial(Workers, many, chunk))
    if allowed >= MOST:
        trial.settle()
    best = next(iter(trial.seconds), "serial")
    for name, seconds in trial.seconds.items():
        if seconds < MARGIN * trial.seconds[best]:
            best = name
    return Choice(best, trial.seconds, trial.left_out)


def _at_once(engine: Engine) -> int:
    """Number of clients that an engine runs at the same time."""
    chunk: int = getattr(engine, "chunk", None) or 1
    return chunk * getattr(engine, "workers", 1)


class _Trial:
    """Measures engines, all on the same clients and steps."""

    def __init__(self, plan: Plan, fed: Federation, net: Net, cohort: list[int]) -> None:
        self.plan, self.net, self.cohort = plan, net, cohort
        self.whole = sum(map(fed.cost, cohort))
        self.seconds: dict[str, float] = {}
        self.left_out: dict[str, str] = {}
        self._full, self._fed = fed, fed
        self._msg: Rec = None
        self._budget, self._step = BUDGET, 0.0
        self._makes: dict[str, Callable[[], Engine]] = {}

    def allow(self, seconds: float) -> bool:
        """Allow every candidate so many seconds from now on, at most MOST. True if that is more
        than before. A few clients tell little about a cohort whose messages are large.
        """
        before, self._budget = self._budget, min(max(seconds, BUDGET), MOST)
        if more := self._budget > before:
            self._shorten()
        return more

    def take(self, name: str, make: Callable[[], Engine]) -> None:
        """Measure a candidate, or note why it cannot run."""
        try:
            if self._msg is None:
                self._prepare()
            engine = make()
            if isinstance(engine, Vectorised):
                refuse_module(self.net.module)
            try:
                engine.open(self.plan, self._fed, self.net)
                self.seconds[name] = self._measure(engine)
                self._makes[name] = make
            finally:
                engine.close()
        except FedloomError as error:
            self.left_out[name] = str(error)

    def settle(self) -> None:
        """Run the closest candidates in turn, a whole cohort each if there is time, because the
        speed of the machine may change between two measurements. Skipped if a few clients would
        take longer than MOST, or if a candidate fails.
        """
        best = min(self.seconds.values(), default=0.0)
        names = sorted(self.seconds, key=lambda name: self.seconds[name])[:FINALISTS]
        names = [name for name in names if self.seconds[name] <= CLOSE * best]
        if len(names) < 2:
            return
        engines = {name: self._makes[name]() for name in names}
        count, least = int(len(self.cohort) * MOST / best), max(map(_at_once, engines.values()))
        if count < min(least, len(self.cohort)):
            return
        members = self.cohort[: count - count % least if count < len(self.cohort) else count]
        times: dict[str, list[float]] = {name: [] for name in names}
        with contextlib.ExitStack() as stack, contextlib.suppress(FedloomError):
            for engine in engines.values():
                stack.callback(engine.close)
                engine.open(self.plan, self._full, self.net)
                self._round(engine, members)
            for name in names * HEATS:
                times[name].append(self._round(engines[name], members))
        if not all(times.values()):
            return  # a failure here will fail in the run too, which says why
        share = self.whole / sum(map(self._full.cost, members))
        self.seconds |= {name: share * statistics.median(found) for name, found in times.items()}

    def _prepare(self) -> None:
        """Prepare a broadcast to train on, and measure the time of a step."""
        engine, x = Serial(), self.net.init()
        engine.open(self.plan, self._full, self.net)
        up: Any = None
        if self.plan.algorithm.probes:
            total = root(engine.probe(x, self.net.init_buffers(), self.cohort[:1]).nodes)
            up = tree(lambda v: v / total.n, total.up)
        self._msg = self.plan.algorithm.broadcast(self.plan.algorithm.server_init(x, up))
        one = replace(self._full, local=replace(self._full.local, epochs=None, steps=1))
        engine.open(self.plan, one, self.net)
        self._round(engine, self.cohort[:1])
        self._step = self._round(engine, self.cohort[:1])
        self._shorten()

    def _shorten(self) -> None:
        """Use fewer local steps if a client takes long."""
        self._fed = self._full
        steps, most = int(self._budget / 2 / self._step), max(map(self._full.steps, self.cohort))
        if steps < most:
            local = replace(self._full.local, epochs=None, steps=max(steps, 1))
            self._fed = replace(self._full, local=local)

    def _measure(self, engine: Engine) -> float:
        """Seconds of a round, from as many clients as the engine runs at once, or more."""
        budget, at_once = self._budget, _at_once(engine)
        members = self.cohort[:at_once]
        self._round(engine, members)  # the first time has costs that no later time has
        times = [self._round(engine, members)]
        count = int(budget / 3 / times[0] * len(members))  # see what a whole cohort takes
        if count > at_once and len(members) < len(self.cohort):
            members, times = self.cohort[:count], []
        while len(times) < 2 or (sum(times) < budget and len(times) < 20):
            times.append(self._round(engine, members))
        usual = statistics.median(times) if len(times) > 2 else min(times)
        return usual * self.whole / sum(map(self._fed.cost, members))

    def _round(self, engine: Engine, members: list[int]) -> float:
        started = time.perf_counter()
        engine.round(self._msg, self.net.init_buffers(), {}, members, 0)
        return time.perf_counter() - started
