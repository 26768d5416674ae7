"""Equal effort: the same number of trials of every method's main settings, wherever they lead.

A search begins at the recipe's values and tries three times as much and a third of one setting
after the other. It moves to what is best, so that the edge of what was tried is followed, and takes
smaller steps when both sides are worse, until its trials are used up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..core.hyper import Hyper
from .strategies import Batch, Strategy, best_point

STEP = 3.0  # the factor of a first step; then its root, and so on
_FINEST = 6  # roots
Point = tuple[str, ...]  # a value of each setting


@dataclass(frozen=True)
class Ladder:
    """The values of a setting. start: where its search begins; values: all there are, if a user
    named them; rule: what is allowed.
    """

    start: str
    values: tuple[str, ...] = ()
    rule: Hyper = field(default_factory=Hyper)

    def beside(self, value: str, step: float = STEP) -> list[str]:
        """The values next to one.

        >>> Ladder("0.1").beside("0.1"), Ladder("2", ("1", "2", "4")).beside("4")
        (['0.3', '0.0333'], ['2'])
        """
        if self.values:
            at = self.values.index(value)
            return [*self.values[at + 1 : at + 2], *self.values[max(0, at - 1) : at]]
        now = float(value)
        if self.rule.bound("exclusiveMaximum") == 1:  # a decay: its distance from 1 counts
            near = [1 - (1 - now) / step, 1 - (1 - now) * step]
        else:
            near = [now * step, now / step]
        found = [float(f"{v:.3g}") for v in near]
        return [repr(v) for v in found if v > 0 and v != now and self.rule.allows(v)]


Space = Mapping[str, Ladder]


def climb(space: Space, trials: int) -> Strategy[Point]:
    """The search of so many trials; none without a setting. Of equals the first is the best."""
    scores = dict[Point, float]()
    new = [tuple(ladder.start for ladder in space.values())] if space else []
    while new:
        scores |= yield Batch(new)
        new = _beside_best(space, scores)[: trials - len(scores)]


def _beside_best(space: Space, scores: Mapping[Point, float]) -> list[Point]:
    """The next points beside the best one, in steps of the first size that has any."""
    best = best_point(scores)
    for root in range(_FINEST):
        for at, ladder in enumerate(space.values()):
            values = ladder.beside(best[at], STEP ** (0.5**root))
            points = [(*best[:at], value, *best[at + 1 :]) for value in values]
            if new := [point for point in points if point not in scores]:
                return new
    return []


@dataclass(frozen=True)
class Tuned:
    """What came of a search: the best values; how many were tried, and failed; at which settings a
    better one may lie outside, and which had no effect; the score of the choice, more is better,
    and its curves.
    """

    choice: Mapping[str, str] = field(default_factory=dict)
    trials: int = 0
    failed: int = 0
    edges: tuple[str, ...] = ()
    without_effect: tuple[str, ...] = ()
    score: float = -math.inf
    curves: object = None


def chosen(space: Space, scores: Mapping[Point, float], curves: Mapping[Point, object]) -> Tuned:
    """The end of a search. curves: of the points that did not fail."""
    if not scores:
        return Tuned()
    best, idle = best_point(scores), without_effect(space, curves)
    return Tuned(
        choice=dict(zip(space, best, strict=True)),
        trials=len(scores),
        failed=len(scores) - len(curves),
        edges=tuple(key for key in edges(space, scores) if key not in idle),
        without_effect=tuple(idle),
        score=scores[best],
        curves=curves.get(best),
    )


def edges(space: Space, scores: Mapping[Point, float]) -> list[str]:
    """The settings whose best value is the least or the largest that was tried, where there are
    others beyond: a better one may lie there. Of a list of --tune, its first and last value.
    """
    best, out = best_point(scores), []
    for at, (key, ladder) in enumerate(space.items()):
        if ladder.values:
            outside = best[at] in (ladder.values[0], ladder.values[-1])
        else:
            tried, now = [float(point[at]) for point in scores], float(best[at])
            beyond = [float(value) for value in ladder.beside(best[at])]
            outside = now in (min(tried), max(tried)) and any(
                v > max(tried) if v > now else v < min(tried) for v in beyond
            )
        if outside:
            out.append(key)
    return out


def without_effect(space: Space, curves: Mapping[Point, object]) -> list[str]:
    """The settings of which all values that were tried gave the same curves, to the bit."""
    out = []
    for at, key in enumerate(space):
        pairs = [
            curves[one] == curves[other]
            for one in curves
            for other in curves
            if one[at] < other[at] and (*one[:at], other[at], *one[at + 1 :]) == other
        ]
        if pairs and all(pairs):
            out.append(key)
    return out
