"""One tuner for all searches: a strategy names the points to be tried, and is told their scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ..core.hyper import Hyper

K = TypeVar("K", bound=Hashable)
P = TypeVar("P", bound=Hashable)
ETA = 3  # of halving: of ETA points one gets ETA times the rounds
RUNGS = (ETA**2, ETA)  # 1 / 9 of the rounds, and 1 / 3, before all of them
_LEAST = 2  # points that are always run to the end
STEP = 3.0  # the factor of a climb's first step; then its root, and so on
_FINEST = 6  # roots


@dataclass(frozen=True)
class Batch(Generic[P]):
    """Points to be tried, each for 1 / part of the rounds."""

    points: Sequence[P]
    part: int = 1


# gives batches; is sent {point: score, more is better}, without those that cannot be scored
Strategy = Generator[Batch[P], Mapping[P, float], None]


def grid(points: Sequence[P]) -> Strategy[P]:
    """All points, at once."""
    yield Batch(points)


def halving(points: Sequence[P]) -> Strategy[P]:
    """All points for a ninth of the rounds, the best third of them for a third, and the best ninth
    to the end; at least two stay (successive halving; Jamieson and Talwalkar, AISTATS 2016,
    Algorithm 1; Li et al., Hyperband, JMLR 2018, with their eta = 3).

    >>> search = halving(range(9))
    >>> search.send(None)
    Batch(points=range(0, 9), part=9)
    >>> search.send({n: n % 5 for n in range(9)}), search.send({4: 0.1, 3: 0.3, 8: 0.2})
    (Batch(points=[4, 3, 8], part=3), Batch(points=[3, 8], part=1))
    """
    remaining = points
    for part in RUNGS:
        stay = max(_LEAST, math.ceil(len(points) * part / ETA**3))
        if len(remaining) > stay:
            scores = yield Batch(remaining, part)
            remaining = sorted((p for p in points if p in scores), key=lambda p: -scores[p])[:stay]
    yield Batch(remaining)


# -------------------------------------------------------------------------------- with equal effort
@dataclass(frozen=True)
class Ladder:
    """A setting. start: where its search begins; rule: what is allowed; None: it stays."""

    start: str
    rule: Hyper | None = None

    def neighbours(self, value: str, step: float = STEP) -> list[str]:
        """The values next to one.

        >>> Ladder("0.1", Hyper()).neighbours("0.1"), Ladder("0.1").neighbours("0.1")
        (['0.3', '0.0333'], [])
        """
        if self.rule is None:
            return []
        now = float(value)
        if self.rule.bound("exclusiveMaximum") == 1:  # a decay: its distance from 1 counts
            near = [1 - (1 - now) / step, 1 - (1 - now) * step]
        else:
            near = [now * step, now / step]
        rounded = [float(f"{v:.3g}") for v in near]
        return [repr(v) for v in rounded if v > 0 and v != now and self.rule.allows(v)]


Space = Mapping[str, Ladder]
Point = tuple[str, ...]  # a value of each setting


def climb(space: Space, trials: int) -> Strategy[Point]:
    """Equal effort: so many trials, wherever they lead; none without a setting. It begins at the
    recipe's values and tries three times as much and a third of one setting after the other. It
    moves to what is best, so that the edge of what was tried is followed, and takes smaller steps
    when both sides are worse, until its trials are used up.
    """
    scores = dict[Point, float]()
    new = [tuple(ladder.start for ladder in space.values())] if space else []
    while new:
        answers = yield Batch(new)
        scores |= {point: answers[point] for point in new}
        new = _next_points(space, scores)[: trials - len(scores)]


def fixed(space: Space, settings: Sequence[str]) -> Space:
    """The space with some settings at their start."""
    return {**space, **{key: Ladder(space[key].start) for key in settings}}


def _next_points(space: Space, scores: Mapping[Point, float]) -> list[Point]:
    """The next points beside the best one, in steps of the first size that has any."""
    best = best_point(scores)
    for root in range(_FINEST):
        for i, ladder in enumerate(space.values()):
            values = ladder.neighbours(best[i], STEP ** (0.5**root))
            points = [(*best[:i], value, *best[i + 1 :]) for value in values]
            if new := [point for point in points if point not in scores]:
                return new
    return []


# ----------------------------------------------------------------------------------- carried out
def tune(
    searches: Mapping[K, Strategy[P]],
    run: Callable[[dict[K, Batch[P]]], Mapping[K, Mapping[P, float]]],
) -> None:
    """Carry out searches side by side. run: tries batches -> of each the scores."""
    scores: Mapping[K, Any] = dict.fromkeys(searches)  # None begins a search
    while batches := {
        key: batch
        for key, answer in scores.items()
        if (batch := _next(searches[key], answer)) is not None
    }:
        scores = run(batches)


def _next(search: Strategy[P], scores: Any) -> Batch[P] | None:
    try:
        return search.send(scores)
    except StopIteration:
        return None


def best_point(scores: Mapping[P, float]) -> P:
    """The best point, of equals the first that was tried."""
    return max(scores, key=lambda point: scores[point])


@dataclass(frozen=True)
class Tuned:
    """What came of a search: the best values; how many were tried, and failed; which settings had
    no effect; the score of the choice, more is better, and its curves.
    """

    choice: Mapping[str, str] = field(default_factory=dict)
    trials: int = 0
    failed: int = 0
    without_effect: tuple[str, ...] = ()
    score: float = -math.inf
    curves: object = None


def summarise(space: Space, scores: Mapping[Point, float], curves: Mapping[Point, object]) -> Tuned:
    """The end of a search. curves: of the points that did not fail."""
    if not scores:
        return Tuned()
    best = best_point(scores)
    return Tuned(
        choice=dict(zip(space, best, strict=True)),
        trials=len(scores),
        failed=len(scores) - len(curves),
        without_effect=tuple(without_effect(space, curves)),
        score=scores[best],
        curves=curves.get(best),
    )


def without_effect(space: Space, curves: Mapping[Point, object]) -> list[str]:
    """The settings of which all values that were tried gave the same curves, to the bit."""
    out = []
    for i, key in enumerate(space):
        pairs = [
            curves[one] == curves[other]
            for one in curves
            for other in curves
            if one[i] < other[i] and (*one[:i], other[i], *one[i + 1 :]) == other
        ]
        if pairs and all(pairs):
            out.append(key)
    return out
