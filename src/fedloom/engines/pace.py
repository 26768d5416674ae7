"""How long real rounds take, by which `auto` decides between one process and many."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

LAST = 5  # rounds whose median counts, at least
TRIAL, LASTING = 3, 1.0  # rounds and seconds, at least, that say how long a round takes


@dataclass
class Pace:
    """Seconds of the rounds since the way they are computed was changed, or since the beginning.

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
    def lasting(self) -> bool:
        """True if the rounds that count took a second. A few of some milliseconds say nothing:
        anything that the machine does meanwhile hits all of them.
        """
        return self._lasted >= LASTING

    @property
    def enough(self) -> bool:
        """True if the rounds since the change say how long one takes."""
        return self.rounds >= TRIAL and self.lasting

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
        if self._ended:
            return self._ended
        return [self._first or self._now]  # of a long first round what was done of it
