"""One tuner for all searches: a strategy names the points to be tried, and is told their scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
P = TypeVar("P", bound=Hashable)
ETA = 3  # of halving: of ETA points one gets ETA times the rounds
RUNGS = (ETA**2, ETA)  # 1 / 9 of the rounds, and 1 / 3, before all of them
_LEAST = 2  # points that are always run to the end


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
    kept = points
    for part in RUNGS:
        stay = max(_LEAST, math.ceil(len(points) * part / ETA**3))
        if len(kept) > stay:
            scores = yield Batch(kept, part)
            kept = sorted((p for p in points if p in scores), key=lambda p: -scores[p])[:stay]
    yield Batch(kept)


def tune(
    searches: Mapping[K, Strategy[P]],
    run: Callable[[dict[K, Batch[P]]], Mapping[K, Mapping[P, float]]],
) -> None:
    """Carry out searches side by side. run: tries the batches of all that are not over -> of each
    the scores.
    """
    scores: Mapping[K, Any] = dict.fromkeys(searches)  # None begins a search
    while batches := {
        key: batch
        for key, told in scores.items()
        if (batch := _next(searches[key], told)) is not None
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
