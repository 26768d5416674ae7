"""The method of a run: the axes put together. What goes with what is in rules.py."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import NamedTuple

from .aggregation import Aggregation, Mean
from .algorithm import Algorithm, LocalSGD, Trait
from .compression.link import Link
from .core.arithmetic import total
from .errors import CompositionError, ConfigError
from .federation.local import Local
from .objectives import Objective
from .rules import REFUSALS, WARNINGS
from .stage import Stage
from .submodels.base import Rule
from .submodels.private import Private
from .trace import Trace, plain_means, traced
from .wrappers.base import method_in


class Setting(NamedTuple):
    """What the rules ask about the federation beside the method."""

    order: str = "shuffled"  # of the batches, see Local.order
    forgets: bool = False  # clients that come back have lost their state, see Churn.forget
    unequal: bool = False  # aggregation weights differ from client to client
    staleness: float | None = None  # see Asynchronous.staleness; None: all train in rounds
    forger: str = ""  # the name of an attack that makes its updates of all honest ones


@dataclass(frozen=True)
class Plan:
    """The axes of a method: algorithm (with its local parts around it, see Local.around),
    objective, rule (the sub-model scheme; None: whole models), link (how messages travel), private
    (layers that clients keep), aggregation (of updates), stages (own ones, in order of sending).

    nonfinite: of an update that is not finite, or with which the server would not be, "stop" raises
    ClientError naming client and round; "skip" leaves it out of the means and lets its client keep
    the state it had. Raises CompositionError for parts that have no meaning together.
    """

    algorithm: Algorithm
    objective: Objective
    nonfinite: str = "stop"
    rule: Rule | None = None
    link: Link = field(default_factory=Link)
    d: int | None = None
    setting: Setting = field(default_factory=Setting)
    private: Private | None = None
    aggregation: Aggregation = field(default_factory=Mean)
    stages: tuple[Stage, ...] = ()

    def __post_init__(self) -> None:
        named = self.link.spelled_out(self.algorithm)
        object.__setattr__(self, "link", named)
        for rule in REFUSALS:
            if reason := rule(self):
                raise CompositionError(reason)
        object.__setattr__(self, "link", named.settled(self.algorithm))

    @functools.cached_property
    def trace(self) -> Trace | None:
        """One client's round on zeros, of the method inside all wrappers, which change values and
        no fields. None where a method of the author's fails on them: the run itself says so, with
        client and round.
        """
        try:
            return traced(method_in(self.algorithm), self.d or 2)
        except Exception:  # an author's code may raise anything on zeros
            return None

    @property
    def averaged(self) -> tuple[str, ...]:
        """The fields of which the server needs plain means beside delta."""
        if type(method_in(self.algorithm)).uniform is LocalSGD.uniform:
            return ()  # as of most methods; they need not be traced
        return self.trace.averaged._fields if self.trace is not None else ()

    @functools.cached_property
    def plain(self) -> tuple[str, ...]:
        """The fields of which the server needs means that do not follow the clients' weights."""
        if not self.averaged or self.trace is None:
            return ()
        try:
            return plain_means(method_in(self.algorithm), self.trace.up)
        except Exception:  # as in trace
            return ()

    @property
    def personalises(self) -> bool:
        """True if clients use models of their own."""
        return self.private is not None or self.algorithm.personalises

    def warnings(self) -> list[str]:
        """One sentence for each setting under which the method does not do what its paper says."""
        return [said for rule in WARNINGS if (said := rule(self))]

    def rates(self, local: Local, round: int, steps: int, pace: int) -> list[float]:
        """The learning rates of a client's steps in a round; pace: see Federation.pace(). Raises
        ConfigError where they are 0 and the method divides by them.
        """
        rates, traits = [local.rate(round, k, pace) for k in range(steps)], self.algorithm.traits
        divides = Trait.READS_THE_MOVE in traits and not total(rates)
        if divides or (Trait.DIVIDES_BY_RATES in traits and not rates[0]):
            raise ConfigError(
                f"{self.algorithm.method} divides by the local rates, and in round {round + 1} "
                "local.lr times local.schedule is 0; give the schedule a floor, or end the run "
                "before"
            )
        return rates
