"""What is computed from curves and clients: growth, skewness, several seeds together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

GROWTH = 1.05  # by how much the last fifth must lie above the fifth before to be called growing


def skewness(values: Sequence[float]) -> float | None:
    """Fisher's moment coefficient E[(x - m)^3] / s^3; negative with a longer tail to the left.

    >>> skewness([1.0, 2.0, 3.0]), skewness([0.0, 3.0, 3.0]) < 0, skewness([1.0, 1.0])
    (0.0, True, None)
    """
    if not values:
        return None
    middle = math.fsum(values) / len(values)
    second = math.fsum((v - middle) ** 2 for v in values) / len(values)
    third = math.fsum((v - middle) ** 3 for v in values) / len(values)
    return third / second**1.5 if second > 0 else None


def growth(curve: Mapping[int, float]) -> float | None:
    """The mean of the curve's last fifth over that of the fifth before; None with fewer than ten
    points.
    """
    values = [curve[t] for t in sorted(curve)]
    fifth = len(values) // 5
    if fifth < 2:
        return None
    before = math.fsum(values[-2 * fifth : -fifth])
    return math.fsum(values[-fifth:]) / before if before > 0 else None


@dataclass(frozen=True)
class Band:
    """Several seeds' curves: at each x that all of them have, the mean, the lowest and highest."""

    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    seeds: int


def band(curves: Sequence[Mapping[Any, float]]) -> Band | None:
    """Seeds together; None if they share no x.

    >>> band([{1: 0.0, 2: 1.0}, {2: 3.0}])
    Band(x=(2,), mean=(2.0,), low=(1.0,), high=(3.0,), seeds=2)
    """
    curves = [c for c in curves if c]
    shared = sorted(set.intersection(*(set(c) for c in curves))) if curves else []
    if not shared:
        return None
    rows = [[c[x] for c in curves] for x in shared]
    means = tuple(math.fsum(r) / len(r) for r in rows)
    return Band(tuple(shared), means, tuple(map(min, rows)), tuple(map(max, rows)), len(curves))
