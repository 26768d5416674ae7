"""Client availability and sampling: the available clients, and the cohort of a round."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from ..core.hyper import Part, PositiveInt, Share, hyper, plain_values
from ..core.rng import generator
from ..data.clients import ClientNumbers
from ..errors import ConfigError
from .availability import Availability, Trace, read_trace

_BY_CHANCE = ("bernoulli", "poisson")  # how many come is drawn too


class Churn(Part):
    """Client availability that changes: `active` of all clients are available, and every `every`
    rounds some of them are replaced.

    replace: each available client leaves with this probability, and an absent client, drawn without
    replacement, takes its place; if more leave than are absent, the surplus stays. None: the whole
    set is drawn again. With half of all clients and replace = 0.5 the two replace equally many on
    average. forget: the state of a client is deleted when it leaves; otherwise it is kept for its
    return. The server state keeps what came from it in either case.

    Source: Kim, Kim and Han, FedACG, CVPR 2024, Table 3: 250 of 500, every 100 rounds, 0.5 in the
    text, drawn again in the appendix's Figure F. It does not say what happens to client states.
    """

    title: ClassVar[str] = "churn"
    active: PositiveInt = hyper(meaning="how many clients are available at a time")
    every: PositiveInt = hyper(100, "rounds between changes")
    replace: Share | None = hyper(
        0.5, "probability with which each leaves then; none: all are drawn again"
    )
    forget: bool = hyper(False, "delete a client's state when it leaves")

    def first(self, population: int, seed: int) -> list[int]:
        """The clients available at the beginning, sorted."""
        order = torch.randperm(population, generator=generator(seed, "turnover", 0))
        return sorted(order[: self.active].tolist())

    def after(self, available: list[int], stage: int, population: int, seed: int) -> list[int]:
        """The clients available in a stage (from 0), from those of the stage before; sorted."""
        source = generator(seed, "turnover", stage)
        if self.replace is None:
            return sorted(torch.randperm(population, generator=source)[: self.active].tolist())
        before = torch.tensor(available)
        outside = torch.ones(population, dtype=torch.bool)
        outside[before] = False
        arriving = outside.nonzero()[:, 0]
        leaving = (torch.rand(len(available), generator=source) < self.replace).nonzero()[:, 0]
        leaving = leaving[torch.randperm(len(leaving), generator=source)][: len(arriving)]
        arriving = arriving[torch.randperm(len(arriving), generator=source)][: len(leaving)]
        after = before.clone()
        after[leaving] = arriving
        return sorted(after.tolist())


@dataclass(frozen=True)
class ClientSampler:
    """The cohort of every round, sorted by client.

    size: a share of all clients as a float in (0, 1], a number of clients as an int, or an explicit
    schedule: one list of clients per round, which restarts at its end. sampling: "fixed" draws
    exactly that many without replacement; "bernoulli" lets every client take part with that
    probability, and draws again if nobody does; "poisson" does not draw again, so that a round may
    have nobody, as the accounts of privacy take it; "cycle" draws that many without replacement
    until all had their turn, and begins anew. churn, availability: which clients are
    available; a share or number is then of those. Raises ConfigError for a cohort that the
    population does not have; Settings have checked the types. absent: of a deployment, who is not
    there now, as if a trace in rounds said so. names: of the clients, by which lists and a trace
    may call them; size has their numbers then. `now` is in simulated seconds, which only a trace
    may ask for.

    >>> ClientSampler(0.5, 4, seed=1).of(0) == ClientSampler(2, 4, seed=1).of(0)
    True
    """

    size: float | int | Sequence[Sequence[Any]]
    population: int
    seed: int = 0
    sampling: str = "fixed"
    churn: Churn | None = None
    availability: Availability | None = None
    absent: frozenset[int] = frozenset()
    names: Sequence[str] = ()
    trace: Trace | None = field(default=None, init=False, repr=False)
    _stages: dict[int, list[int]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", plain_values(self.size))  # numpy's numbers too
        self._check_churn()
        n = self.active
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
            object.__setattr__(self, "size", self._to_numbers(self.size))
        self._check_availability()
        self._check_cycle()

    def _check_cycle(self) -> None:
        if self.sampling != "cycle":
            return
        if self.churn is not None or self.availability is not None:
            raise ConfigError(
                "sampling = cycle gives every client its turn, and churn and availability say who "
                "is there; keep one of them"
            )
        if isinstance(self.size, Sequence) or self.population % self._count:
            got = "lists" if isinstance(self.size, Sequence) else str(self._count)
            raise ConfigError(
                f"sampling = cycle needs a cohort that divides the {self.population} clients, got "
                f"{got}; cohort = 1 is one after the other"
            )

    def _check_availability(self) -> None:
        setting = self.availability
        if setting is not None and setting.trace is not None:
            object.__setattr__(
                self, "trace", read_trace(setting.trace, ClientNumbers(self.names, self.population))
            )
        if setting is not None and setting.over_selection > 1:
            self.check_countable("availability.over_selection")

    def _check_churn(self) -> None:
        if self.churn is None:
            return
        if self.churn.active > self.population:
            raise ConfigError(
                f"churn.active must be from 1 to the {self.population} clients of the data, got "
                f"{self.churn.active}"
            )
        if isinstance(self.size, Sequence):
            raise ConfigError(
                "a cohort of explicit lists and churn both say who is there; keep one of them"
            )

    def _to_numbers(self, lists: Sequence[Sequence[int | str]]) -> tuple[tuple[int, ...], ...]:
        """The schedule with clients' numbers for their names."""
        if not lists:
            raise ConfigError("a cohort schedule needs at least one list of clients, got none")
        clients = ClientNumbers(self.names, self.population)
        return tuple(clients.all_of(m, f"cohort of round {t}") for t, m in enumerate(lists, 1))

    @property
    def active(self) -> int:
        """How many clients are available at a time."""
        return self.population if self.churn is None else self.churn.active

    @property
    def words(self) -> str:
        """How many clients take part, as text.

        >>> ClientSampler(1, 50).words, ClientSampler(1.0, 50).words
        ('1 of 50 clients', '50 of 50 clients')
        """
        if isinstance(self.size, Sequence):
            return f"{len(self.size)} lists of clients, in turn"
        near = "about " if self.sampling in _BY_CHANCE else ""
        suffix = "" if self.churn is None else " that are there"
        return f"{near}{self._count} of {self.active} clients{suffix}"

    @property
    def single_warning(self) -> str:
        """Why a cohort of one client may be a mistake for all clients; empty if it cannot."""
        turns = self.sampling == "cycle"
        if self.size != 1 or not isinstance(self.size, int) or self.active == 1 or turns:
            return ""
        return (
            f"cohort = 1 is one client of {self.active} in every round; for all of them write "
            "cohort = 1.0"
        )

    @property
    def _count(self) -> int:
        """A share or number as a number of available clients."""
        assert isinstance(self.size, int | float)
        n = self.active
        return self.size if isinstance(self.size, int) else max(round_half_up(self.size * n), 1)

    @property
    def share(self) -> float:
        """The expected share of the available clients that take part."""
        if isinstance(self.size, Sequence):
            return sum(map(len, self.size)) / len(self.size) / self.population
        return self.size if isinstance(self.size, float) else self.size / self.active

    @property
    def expected(self) -> float:
        """How many clients a round has on average."""
        return self.share * self.active

    @property
    def largest(self) -> int:
        """The most clients that a round can have.

        >>> [ClientSampler(size, 10).largest for size in (0.25, 4, [[1], [2, 3]])]
        [3, 4, 2]
        """
        if isinstance(self.size, Sequence):
            return max(map(len, self.size))
        if self.sampling in _BY_CHANCE:
            return self.active
        return self._count

    def check_countable(self, setting: str) -> None:
        """Raise ConfigError unless every round has the same number of clients, as a setting needs
        it.
        """
        if isinstance(self.size, Sequence) or self.sampling != "fixed":
            cohort = (
                "lists of clients"
                if isinstance(self.size, Sequence)
                else f"sampling = {self.sampling}"
            )
            raise ConfigError(
                f"{setting} and {cohort} both say who takes part; give cohort as a share or a "
                "number, with sampling = fixed"
            )

    @property
    def example(self) -> list[int]:
        """The cohort of the first round that has one, or the first client."""
        often = self.sampling == "poisson" or self.availability is not None
        cohorts = (self.of(t) for t in range(100 if often else 1))
        return next(filter(None, cohorts), [0])

    def present(self, round: int, now: float = 0.0) -> Sequence[int]:
        """Clients available in a round (counted from 0), sorted; a range where all are."""
        available: Sequence[int] = range(self.population)
        if self.churn is not None:
            available = self._present(round // self.churn.every)
        if self.absent:
            available = [i for i in available if i not in self.absent]
        if self.trace is not None:
            open_now = self.trace.available(now if self.trace.unit == "seconds" else round)
            available = [i for i in available if i in open_now]
        if self.availability is not None and self.availability.share is not None:
            free = self.availability.available(self.population, self.seed, round)
            available = [i for i in available if free[i]]
        return available

    def waits(self, now: float) -> float:
        """The first time from now on when the trace has somebody; now without one in seconds.
        Raises ConfigError if there is none.
        """
        if self.trace is None or self.trace.unit != "seconds":
            return now
        assert self.availability is not None
        if (later := self.trace.next(now)) is None:
            raise ConfigError(
                f"availability.trace '{self.availability.trace}' has nobody after {now:.6g} "
                "seconds, and the run goes on; give a longer trace, or fewer rounds"
            )
        return later

    def _present(self, stage: int) -> list[int]:
        """Clients available in a stage, computed stage by stage from the last known one."""
        assert self.churn is not None
        last = max((known for known in self._stages if known <= stage), default=0)
        clients = self._stages.get(last) or self.churn.first(self.population, self.seed)
        stages = {last: clients}
        for later in range(last + 1, stage + 1):
            clients = self.churn.after(clients, later, self.population, self.seed)
            stages = {later - 1: stages[later - 1], later: clients}
        self._stages.clear()
        self._stages.update(stages)
        return clients

    def forgotten(self, round: int) -> list[int]:
        """Clients whose state is deleted before a round (counted from 0): those that have just
        left, if their state is not kept; sorted.
        """
        change = self.churn
        if change is None or not change.forget or not round or round % change.every:
            return []
        before = self._present(round // change.every - 1)
        return sorted(set(before) - set(self._present(round // change.every)))

    def cohort_size(self, available: int) -> int:
        """How many of so many available clients a round needs."""
        if isinstance(self.size, Sequence) or self.sampling in _BY_CHANCE:
            return available
        if isinstance(self.size, int):
            return min(self.size, available)
        return max(round_half_up(self.size * available), 1) if available else 0

    def order(self, available: Sequence[int], round: int, attempt: int = 0) -> Iterator[int]:
        """The available clients of a round (from 0) in the order in which they are asked; attempt:
        see of().
        """
        places = torch.randperm(len(available), generator=self._source(round, attempt))
        return (available[int(i)] for i in places.numpy())  # one by one: there may be a million

    def _source(self, round: int, attempt: int, *more: int) -> torch.Generator:
        """The random numbers of a draw."""
        if attempt:
            return generator(self.seed, "redraw", round, attempt, *more)
        return generator(self.seed, "cohort", round, *more)

    def of(self, round: int, now: float = 0.0, attempt: int = 0) -> list[int]:
        """The clients that are asked in a round (counted from 0), sorted. attempt: how many draws
        of this round failed because too few answered; lists of clients stay as they are.
        """
        if isinstance(self.size, Sequence):
            cohort = self.size[round % len(self.size)]
            if self.availability is None and not self.absent:
                return sorted(cohort)
            return sorted({*cohort} & {*self.present(round, now)})
        available = self.present(round, now)
        n = len(available)
        if self.sampling == "cycle":
            return self._turn(round)
        if self.sampling != "fixed" and available:
            for draw in range(1000):
                draws = torch.rand(n, generator=self._source(round, attempt, draw))
                members = (draws < self.share).nonzero()[:, 0].tolist()
                if members or self.sampling == "poisson":
                    return [available[i] for i in members]
            raise ConfigError(
                f"cohort = {self.size}: nobody of {n} clients was drawn in 1000 tries"
            )
        count = self.cohort_size(n)
        count = count if self.availability is None else self.availability.ask_count(count)
        return sorted(itertools.islice(self.order(available, round, attempt), count))

    def _turn(self, round: int) -> list[int]:
        """The clients of a round where all have their turn in a random cycle, drawn again at its
        end.
        """
        cycle, position = divmod(round * self._count, self.population)
        order = torch.randperm(self.population, generator=generator(self.seed, "cycle", cycle))
        return sorted(order[position : position + self._count].tolist())


def round_half_up(value: float) -> int:
    """The nearest whole number; halves go up (Python's round() takes them to the even one)."""
    return int(value + 0.5)
