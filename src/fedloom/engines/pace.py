"""How long real rounds take, by which `auto` decides between one process and many."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

LAST = 5  # rounds whose median counts, at least
TRIAL, LASTING = 3, 0.15  # rounds and seconds, at least, that say how long a round takes
LONG, TURNS = 0.1, 1.0  # seconds of a long round; seconds, at least, of all turns of a comparison


@dataclass
class Pace:
    """Seconds of the rounds since the last change of the way they are computed.

    A round may be several pieces of work. Its seconds are divided by its work, which differs from
    cohort to cohort. The first round has costs that no later one has; it counts only as long as
    there is no other.

    >>> pace = Pace()
    >>> for seconds, work in ((9.0, 2.0), (1.0, 2.0), (3.0, 2.0), (1.0, 2.0)):
    ...     pace.add(seconds, work)
    ...     pace.end()
    >>> pace.rounds, pace.usual, pace.a_round
    (3, 0.5, 1.0)
    """

    _now: tuple[float, float] = (0.0, 0.0)  # seconds and work of the round that goes on
    _ended: deque[tuple[float, float]] = field(default_factory=deque)
    _first: tuple[float, float] | None = None
    rounds: int = 0  # that count
    _lasted: float = 0.0  # seconds of _ended

    def add(self, seconds: float, work: float) -> None:
        """Take note of a piece of the round."""
        self._now = self._now[0] + seconds, self._now[1] + work

    def end(self) -> None:
        """The round has ended; without work, there was none."""
        now, self._now = self._now, (0.0, 0.0)
        if not now[1]:
            return
        if self._first is None:
            self._first = now
            return
        self.rounds += 1
        self._ended.append(now)
        self._lasted += now[0]
        while len(self._ended) > LAST and self._lasted - self._ended[0][0] >= LASTING:
            self._lasted -= self._ended.popleft()[0]

    @property
    def lasted(self) -> float:
        """Seconds of the rounds that count."""
        return self._lasted

    @property
    def enough(self) -> bool:
        """True if the rounds since the change say how long one takes. Three rounds of a few
        milliseconds do not: anything that the machine does meanwhile hits all of them.
        """
        return self.rounds >= TRIAL and self._lasted >= LASTING

    @property
    def first(self) -> float:
        """Seconds of the first round; 0 before its end."""
        return self._first[0] if self._first else 0.0

    @property
    def usual(self) -> float:
        """Median of the last rounds' seconds for a unit of work."""
        return statistics.median(seconds / work for seconds, work in self._counted)

    @property
    def a_round(self) -> float:
        """About how many seconds a whole round takes."""
        return self.usual * statistics.fmean(work for _, work in self._counted)

    @property
    def _counted(self) -> Collection[tuple[float, float]]:
        assert self._first is not None
        return self._ended or [self._first]


class Comparison:
    """One process and many, in turns, so that whatever else the machine does hits both alike.

    many: the way of the rounds so far, whose pace counts as a turn if its rounds are long. Short
    ones are done anew, because processes were starting beside them. lasted: seconds of all turns.

    >>> found = Comparison(many=False, a_round=2.0, usual=0.5)
    >>> found.turn(many=True, usual=0.4, lasted=6.0)
    >>> found.over, found.ratio, found.least
    (True, 0.8, 0.4)
    """

    def __init__(self, many: bool, a_round: float, usual: float) -> None:
        self.long, self.lasted = a_round >= LONG, 0.0
        self._turns: tuple[list[float], list[float]] = [], []  # of one process, of many
        if self.long:
            self._turns[many].append(usual)

    def turn(self, many: bool, usual: float, lasted: float) -> None:
        """Take note of a turn: seconds for a unit of work, and in all."""
        self._turns[many].append(usual)
        self.lasted += lasted

    @property
    def over(self) -> bool:
        """True if both ways had as many turns, and time enough."""
        alone, many = map(len, self._turns)
        return alone == many and self.lasted >= TURNS

    @property
    def ratio(self) -> float:
        """What many take of the time of one: the least of their turns, because whatever else the
        machine does adds to a turn.
        """
        alone, many = map(min, self._turns)
        return many / alone

    @property
    def least(self) -> float:
        """The pace of the faster way."""
        return min(map(min, self._turns))
