"""Equal effort: the same number of trials of every method's main settings, wherever they lead.

A search begins at the recipe's values and tries three times as much and a third of one setting
after the other. It moves to what is best, so that the edge of what was tried is followed, and takes
smaller steps when both sides are worse, until its trials are used up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

from ..algorithm import FedAvg
from ..config.overrides import REGISTRIES
from ..core.hyper import Hyper, keys_of
from ..federation.local import Local
from .question import Cell, Method, Question, Words

STEP = 3.0  # the factor of a first step; then its root, and so on
_FINEST = 6  # roots
# parts whose options make them better or worse; those of a codec make it smaller
_TUNED = ("algorithm", "objective", "server", "aggregation")
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


Space = dict[str, Ladder]


def space_of(question: Question, cell: Cell, method: Method) -> Space:
    """The main settings of a method: the local rate, and the numbers above 0 that it declares with
    a range, or those of --tune that it has. What a user has set is left as it is, and so is a
    server's rate that is FedAvg's.
    """
    config = question.config(cell, method)
    rules = {"local.lr": keys_of(Local)["lr"]}
    if question.vary in _TUNED and question.vary in config.values:
        make = REGISTRIES[question.vary][config.values[question.vary]["name"]]
        shared, own = _defaults(FedAvg), _defaults(make)
        for key, rule in keys_of(make).items():
            as_fedavg = key in shared and own[key] == shared[key]
            if not as_fedavg and rule.ends != (None, None):
                rules[f"{question.vary}.{key}"] = rule
    out = Space()
    for key in question.tune or rules:
        now = _at(config.values, key)
        fixed = key in cell.words or key in method.words
        if fixed or (now is None and key.startswith(f"{question.vary}.")):
            continue
        if values := tuple(question.tune.get(key, ())):
            start = next((v for v in values if _same(v, now)), values[len(values) // 2])
            out[key] = Ladder(start, values)
        elif isinstance(now, float) and now > 0:
            out[key] = Ladder(repr(now), (), rules[key])
    return out


def _defaults(make: Callable[..., Any]) -> dict[str, Any]:
    return {name: one.default for name, one in signature(make).parameters.items()}


def _at(values: Any, path: str) -> Any:
    for part in path.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def _same(text: str, value: Any) -> bool:
    try:
        return float(text) == float(value)
    except (TypeError, ValueError):
        return text == str(value)


def proposed(space: Space, scores: Mapping[Point, float], trials: int) -> list[Point]:
    """The points to be tried next, none if the search is over. scores: of what was tried, in
    order, more is better and -inf failed.
    """
    if not space or len(scores) >= trials:
        return []
    if not scores:
        return [tuple(ladder.start for ladder in space.values())]
    best = best_of(scores)
    for root in range(_FINEST):
        for at, ladder in enumerate(space.values()):
            values = ladder.beside(best[at], STEP ** (0.5**root))
            points = [(*best[:at], value, *best[at + 1 :]) for value in values]
            if new := [point for point in points if point not in scores]:
                return new[: trials - len(scores)]
    return []


def best_of(scores: Mapping[Point, float]) -> Point:
    """The best point, of equals the first that was tried."""
    return max(scores, key=lambda point: scores[point])


@dataclass(frozen=True)
class Tuned:
    """What came of a search: the best values; how many were tried, and failed; at which settings a
    better one may lie outside, and which had no effect; the score of the choice, more is better,
    and its curves.
    """

    choice: Words
    trials: int
    failed: int
    edges: tuple[str, ...]
    without_effect: tuple[str, ...]
    score: float = -math.inf
    curves: object = None


def chosen(space: Space, scores: Mapping[Point, float], curves: Mapping[Point, object]) -> Tuned:
    """The end of a search. curves: of the points that did not fail."""
    if not scores:
        return Tuned({}, 0, 0, (), ())
    idle = without_effect(space, curves)
    at_end = [key for key in edges(space, scores) if key not in idle]
    best, failed = best_of(scores), len(scores) - len(curves)
    choice = dict(zip(space, best, strict=True))
    return Tuned(
        *(choice, len(scores), failed, tuple(at_end), tuple(idle)), scores[best], curves.get(best)
    )


def edges(space: Space, scores: Mapping[Point, float]) -> list[str]:
    """The settings whose best value is the least or the largest that was tried, where there are
    others beyond: a better one may lie there. Of a list of --tune, its first and last value.
    """
    best, out = best_of(scores), []
    for at, (key, ladder) in enumerate(space.items()):
        if ladder.values:
            outside = best[at] in (ladder.values[0], ladder.values[-1])
        else:
            tried, now = [float(point[at]) for point in scores], float(best[at])
            beyond = [float(value) for value in ladder.beside(best[at])]
            outside = any(v > max(tried) if v > now else v < min(tried) for v in beyond)
            outside = outside and now in (min(tried), max(tried))
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
