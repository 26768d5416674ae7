"""engine = "auto": measure the engines on the very model and data, and take the fastest."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..core.net import Net
from ..core.onednn import gains
from ..core.vector import Rec, tree
from ..errors import FedloomError
from ..federation.federation import Federation
from ..plan import Plan
from .author_checks import at_server
from .base import Engine, processors
from .client_results import Asked
from .questions import answered
from .serial import Serial
from .summation import root
from .timing_cache import Measured
from .vectorised import Vectorised
from .vmap_range import default_chunk
from .vmap_refusals import refuse_model
from .workers import Workers

LEAST, SHARE = 2.0, 0.01  # seconds, and share of the run's time, that measuring takes at most
ENGINES = 5  # that are measured: the time is shared out among them
WORTH = 20.0  # seconds that a run must last before processes are started to see how fast they are
ONEDNN = "+onednn"
WIDEST = 128  # clients at once that are tried
HOPELESS = 1.5  # times the best: a long first round that is slower is the last
MARGIN = 0.97  # a later candidate must be this much faster, because it needs more of the machine


@dataclass(frozen=True)
class Choice:
    """The engine, the seconds a round would take with each candidate, and why others were not
    tried. measured: the day, where that was an earlier run's.
    """

    engine: str
    seconds: Mapping[str, float]
    left_out: Mapping[str, str]
    measured: str = ""

    def __str__(self) -> str:
        others = [f"{k} {_shown(v)}" for k, v in self.seconds.items() if k != self.engine]
        others += [f"not {k}: {why}" for k, why in self.left_out.items()]
        others += [f"measured on {self.measured}"] if self.measured else []
        said = f"engine = {self.engine}"
        if self.engine in self.seconds:
            said += f", {_shown(self.seconds[self.engine])} a round"
        return said + (f" ({'; '.join(others)})" if others else "")


class Auto:
    """Measure serial, vectorised and workers on the real model and data, for at most 2 s or a
    hundredth of the run, and choose the fastest. Its name goes into the run's configuration.
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
    """Measure the candidates on a typical cohort; rounds: how long the run will be.

    One engine is open at a time. A candidate that cannot run the method is left out with its
    reason. Processes are started only for a run that is long enough to pay for them, and not at all
    without `processes`; each computes its clients as the best engine of one process does. What was
    measured is remembered, see measured.py.
    """
    before = Measured.of(plan, fed, net, cohort)
    trial = _Trial(plan, fed, net, cohort, rounds, before.seconds)
    trial.take("serial", Serial)
    batch = fed.local.batch or len(fed.data.clients.of(cohort[0]))
    if net.device.type == "cpu" and fed.local.precision == "full" and gains(net.module, batch):
        trial.take(f"serial{ONEDNN}", functools.partial(Serial, onednn=True))
    fits = min(default_chunk(plan, fed, net, WIDEST), len(cohort))
    for chunk in sorted({min(fits, 32), fits}):
        trial.take(f"vectorised:{chunk}", functools.partial(Vectorised, chunk))
    many = min(processors(), len(cohort))
    if many > 1 and net.device.type == "cpu":
        name, lasts = f"workers:{many}", rounds * min(trial.seconds.values(), default=0.0)
        best = trial.best()
        several = best.startswith("vectorised")
        chunks = min(fits, -(-len(cohort) // (2 * many))) if several else None
        engine = Workers(many, chunks, best.endswith(ONEDNN))
        if lasts < WORTH:
            trial.left_out[name] = f"the run lasts about {_shown(lasts)}, too short to start them"
        elif not processes:
            trial.left_out[name] = "a dry run starts no processes; the run itself measures them"
        else:
            trial.take(engine.text, lambda: engine)
    before.keep(trial.seconds)
    return Choice(trial.best(), trial.seconds, trial.left_out, before.day)


def _at_once(engine: Engine) -> int:
    """How many clients an engine runs at the same time."""
    chunk: int = getattr(engine, "chunk", None) or 1
    return chunk * getattr(engine, "workers", 1)


class _Trial:
    """Measures engines, all on the same clients and steps. known: what was measured before."""

    def __init__(
        self,
        plan: Plan,
        fed: Federation,
        net: Net,
        cohort: list[int],
        rounds: int,
        known: Mapping[str, float],
    ) -> None:
        self.plan, self.net, self.cohort, self.rounds = plan, net, cohort, rounds
        self.whole = sum(map(fed.cost, cohort))
        self.seconds: dict[str, float] = {}
        self.left_out: dict[str, str] = {}
        self._full, self._fed, self._known = fed, fed, known
        self._msg: Rec = None
        self._budget = 0.0  # seconds for a candidate

    def best(self) -> str:
        """The fastest until now; of those that are close, the one that asks least."""
        best = next(iter(self.seconds), "serial")
        for name, seconds in self.seconds.items():
            if seconds < MARGIN * self.seconds[best]:
                best = name
        return best

    def take(self, name: str, make: Callable[[], Engine]) -> None:
        """Measure a candidate, or note why it cannot run."""
        try:
            engine = make()
            if isinstance(engine, Vectorised):
                refuse_model(self.plan, self._full, self.net)
            if name in self._known:
                self.seconds[name] = self._known[name]
                return
            if self._msg is None:
                self._prepare()
            try:
                engine.open(self.plan, self._fed, self.net)
                self.seconds[name] = self._measure(engine)
            finally:
                engine.close()
        except FedloomError as error:
            self.left_out[name] = str(error)

    def _prepare(self) -> None:
        """A message to train on; fewer steps where a client takes long."""
        engine, x = Serial(), self.net.init()
        engine.open(self.plan, self._full, self.net)
        up: Any = None
        if self.plan.algorithm.probes:
            total = root(engine.probe(x, self.net.init_buffers(), self.cohort[:1]).nodes)
            up = tree(lambda v: v / total.n, total.up)
        alg, seed = self.plan.algorithm, self._full.seed
        srv = at_server(alg, seed, "server_init", 0, x, up)
        self._msg = at_server(alg, seed, "broadcast", 0, srv)
        one = replace(self._full, local=replace(self._full.local, epochs=None, steps=1))
        engine.open(self.plan, one, self.net)
        self._round(engine, self.cohort[:1])
        step = self._round(engine, self.cohort[:1])
        engine.close()
        each = step / one.cost(self.cohort[0])
        self._budget = max(LEAST, SHARE * self.rounds * each * self.whole) / ENGINES
        steps, most = int(self._budget / 2 / step), max(map(self._full.steps, self.cohort))
        if steps < most:
            local = replace(self._full.local, epochs=None, steps=max(steps, 1))
            self._fed = replace(self._full, local=local)

    def _measure(self, engine: Engine) -> float:
        """Seconds of a whole round, from as many clients as the engine runs at once, and more as
        time allows.
        """
        budget, at_once = self._budget, _at_once(engine)
        members = self.cohort[:at_once]
        # the first time costs what no other does
        times, whole = [self._round(engine, members)], self._as_whole(members)
        if times[0] > budget / 2 and times[0] * whole > HOPELESS * self._least():
            return times[0] * whole
        times = [self._round(engine, members)]
        count = int(budget / 3 / times[0] * len(members))  # see what a whole cohort takes
        if count > at_once and len(members) < len(self.cohort):
            members, times = self.cohort[:count], []
        while not times or (sum(times) < budget and len(times) < 20):
            times.append(self._round(engine, members))
        usual = statistics.median(times) if len(times) > 2 else min(times)
        return usual * self._as_whole(members)

    def _as_whole(self, members: list[int]) -> float:
        """How many times as much work as these clients' a round is."""
        return self.whole / sum(map(self._fed.cost, members))

    def _least(self) -> float:
        return min(self.seconds.values(), default=float("inf"))

    def _round(self, engine: Engine, members: list[int]) -> float:
        started = time.perf_counter()
        asked = Asked(self._msg, self.net.init_buffers(), {}, members, 0)
        engine.round(answered(engine.ask, self.plan.algorithm, asked)[0])
        return time.perf_counter() - started
