"""What is run: the parts of a method together, and the federation they run on."""

from __future__ import annotations

from dataclasses import dataclass, field

from .algorithm import Algorithm
from .compression.link import Link
from .core.arithmetic import total
from .errors import CompositionError, ConfigError
from .federation.local import Local
from .objectives import Objective
from .submodels.base import Rule


@dataclass(frozen=True)
class Plan:
    """The four axes of a method: algorithm (with its local parts around it, see Local.around),
    objective, rule (which coordinates a client holds; None: all) and link (how answers travel).

    nonfinite: of an answer that is not finite, or with which the server would not be, "stop" raises
    ClientError naming client and round; "skip" leaves it out of the means and lets its client keep
    the memory it had.
    """

    algorithm: Algorithm
    objective: Objective
    nonfinite: str = "stop"
    rule: Rule | None = None
    link: Link = field(default_factory=Link)
    d: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "link", self.link.settled(self.algorithm, self.rule, self.d))
        if self.rule is not None and not self.algorithm.partial:
            raise CompositionError(
                f"{self.rule.name} and {self.algorithm.method}: the method needs every client to "
                "hold all coordinates"
            )
        if self.rule is not None and self.rule.exits and not self.objective.exits:
            raise CompositionError(
                f"{self.rule.name} and {self.objective.name}: a client trains every exit it has, "
                "which this loss does not ask; take objective = self_distillation"
            )
        if self.objective.drawn and not (self.rule is not None and self.rule.ordered):
            other = "whole models" if self.rule is None else self.rule.name
            raise CompositionError(
                f"{self.objective.name} and {other}: it distils into the narrower parts that FjORD "
                "draws; take submodel = fjord"
            )
        if self.nonfinite not in ("stop", "skip"):
            raise ConfigError(f'nonfinite must be "stop" or "skip", got {self.nonfinite!r}')

    def rates(self, local: Local, round: int, steps: int) -> list[float]:
        """The rates of a client's steps in a round. Raises ConfigError where they are 0 and the
        method divides by them.
        """
        rates, alg = [local.rate(round, k) for k in range(steps)], self.algorithm
        divides = alg.sums and not alg.recursive and not total(rates)
        if divides or (alg.normalises and not rates[0]):
            raise ConfigError(
                f"{alg.method} divides by the local rates, and in round {round + 1} local.lr times "
                "local.schedule is 0; give the schedule a floor, or end the run before"
            )
        return rates
