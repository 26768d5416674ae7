"""Who takes part in a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .errors import ConfigError
from .rng import generator

__all__ = ["Cohorts"]


@dataclass(frozen=True)
class Cohorts:
    """The cohort of every round, sorted by client.

    size: a share of all clients as a float in (0, 1], a number of clients as an int, or an explicit
    schedule: one list of clients per round, begun again when it ends. sampling: "fixed" draws
    exactly that many without replacement; "bernoulli" lets every client take part with that
    probability, and draws again if nobody does. Raises ConfigError for a cohort that the population
    does not have.

    >>> Cohorts(0.5, 4, seed=1).of(0) == Cohorts(2, 4, seed=1).of(0)
    True
    """

    size: float | int | Sequence[Sequence[int]]
    population: int
    seed: int = 0
    sampling: str = "fixed"

    def __post_init__(self) -> None:
        if self.sampling not in ("fixed", "bernoulli"):
            raise ConfigError(f'sampling must be "fixed" or "bernoulli", got {self.sampling!r}')
        n = self.population
        if isinstance(self.size, bool) or not isinstance(self.size, (int, float, Sequence)):
            raise ConfigError(
                f"cohort must be a share, a number or lists of clients, got {self.size!r}"
            )
        if isinstance(self.size, float) and not 0 < self.size <= 1:
            raise ConfigError(
                f"cohort as a share must be in (0, 1], got {self.size}; "
                "for a number of clients give an integer"
            )
        if isinstance(self.size, int) and not 1 <= self.size <= n:
            raise ConfigError(
                f"cohort must be from 1 to the {n} clients there are, got {self.size}"
            )
        if isinstance(self.size, Sequence):
            self._check_lists(self.size)

    def _check_lists(self, lists: Sequence[Sequence[int]]) -> None:
        if not lists or any(isinstance(members, (str, int)) for members in lists):
            raise ConfigError(
                f"a cohort schedule needs at least one list of clients, got {lists!r}"
            )
        for t, members in enumerate(lists):
            bad: list[Any] = [i for i in members if type(i) is not int]
            bad = bad or [i for i in members if not 0 <= i < self.population]
            if bad:
                raise ConfigError(
                    f"cohort of round {t + 1} names client {bad[0]!r}; "
                    f"clients are numbered 0 to {self.population - 1}"
                )
            if len(set(members)) < len(members):
                raise ConfigError(f"cohort of round {t + 1} names a client twice: {list(members)}")

    @property
    def share(self) -> float:
        """The expected share of the clients that take part."""
        if isinstance(self.size, Sequence):
            return sum(map(len, self.size)) / len(self.size) / self.population
        return self.size if isinstance(self.size, float) else self.size / self.population

    def of(self, round: int) -> list[int]:
        """The clients of a round (counted from 0), sorted."""
        if isinstance(self.size, Sequence):
            return sorted(self.size[round % len(self.size)])
        n = self.population
        if self.sampling == "bernoulli":
            for attempt in range(1000):
                draws = torch.rand(n, generator=generator(self.seed, "cohort", round, attempt))
                if members := (draws < self.share).nonzero()[:, 0].tolist():
                    return list(members)
            raise ConfigError(
                f"cohort = {self.size}: nobody of {n} clients was drawn in 1000 tries"
            )
        count = self.size if isinstance(self.size, int) else max(round_half_up(self.size * n), 1)
        order = torch.randperm(n, generator=generator(self.seed, "cohort", round))
        return sorted(order[:count].tolist())


def round_half_up(value: float) -> int:
    """The nearest whole number; halves go up (Python's round() takes them to the even one)."""
    return int(value + 0.5)
