"""Local learning rates as factors of (round, step); a user's own is any such function."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, dataclass_transform

from .algorithm import check_ranges, hyper
from .errors import ConfigError, did_you_mean

__all__ = [
    "SCHEDULES",
    "Constant",
    "Cosine",
    "Exponential",
    "InverseSqrt",
    "Milestones",
    "Schedule",
]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(hyper,))
class Schedule:
    """schedule(round, step) -> factor of the base rate. round and step count from 0; step within
    the round.
    """

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        check_ranges(self)

    def __call__(self, round: int, step: int) -> float:
        raise NotImplementedError


class Constant(Schedule):
    """Always 1."""

    def __call__(self, round: int, step: int) -> float:
        return 1.0


class Exponential(Schedule):
    """decay^round * step_decay^step.

    >>> Exponential(decay=0.5)(2, 7)
    0.25
    """

    decay: float = hyper(0.998, low=0, open_low=True, source="FedACG, FedSMOO: {0.995, 0.998, 1}")
    step_decay: float = hyper(1.0, low=0, open_low=True, source="1: one rate per round")

    def __call__(self, round: int, step: int) -> float:
        return float(self.decay**round * self.step_decay**step)


class Cosine(Schedule):
    """From 1 down to `floor` over `rounds` rounds along half a cosine, then `floor`."""

    rounds: int = hyper(100, low=1)
    floor: float = hyper(0.0, low=0, high=1)

    def __call__(self, round: int, step: int) -> float:
        share = min(round / self.rounds, 1.0)
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * share))


class Milestones(Schedule):
    """factor^(number of milestones reached): a staircase by rounds.

    >>> Milestones(at=(10, 20), factor=0.1)(10, 0)
    0.1
    """

    at: tuple[int, ...] = hyper((50, 75))
    factor: float = hyper(0.1, low=0, open_low=True)

    def __call__(self, round: int, step: int) -> float:
        return float(self.factor ** sum(round >= r for r in self.at))


class InverseSqrt(Schedule):
    """1 / sqrt(1 + round / scale), the decaying rate of CFedAvg's theory with scale 1."""

    scale: float = hyper(1.0, low=0, open_low=True)

    def __call__(self, round: int, step: int) -> float:
        return 1.0 / math.sqrt(1.0 + round / self.scale)


SCHEDULES: dict[str, type[Schedule]] = {
    "constant": Constant,
    "exponential": Exponential,
    "cosine": Cosine,
    "milestones": Milestones,
    "inverse_sqrt": InverseSqrt,
}


def make(name: str, **options: Any) -> Schedule:
    """A schedule by its name. Raises ConfigError for an unknown name or option."""
    if name not in SCHEDULES:
        raise ConfigError(f"unknown schedule '{name}'; {did_you_mean(name, SCHEDULES)}")
    try:
        return SCHEDULES[name](**options)
    except TypeError as error:
        raise ConfigError(f"schedule '{name}': {error}") from None
