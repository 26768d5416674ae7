"""What is computed from curves: moving averages, roughness, where one is at a given x."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedloom.report.curve_data import mean
from fedloom.server.evaluation import Curve, Evaluation

WINDOW = 5  # evaluations of the moving mean that a curve's roughness is measured against
GROWTH = 1.05  # by how much the last fifth must lie above the fifth before to be called growing


def points(rows: Iterable[Mapping[str, Any]], key: str) -> dict[int, float]:
    """{round: value} of the rows that have a finite value."""
    found = {int(r["round"]): float(r[key]) for r in rows if r.get(key) is not None}
    return {t: v for t, v in found.items() if math.isfinite(v)}


def smoothed(curve: Mapping[int, float], ema: float | None = None) -> dict[int, float]:
    """The debiased moving average at each evaluation, as runs compute it (FedACG: 0.9 per round).

    >>> smoothed({1: 0.5, 2: 0.7})
    {1: 0.5, 2: 0.6052631578947368}
    """
    state = Curve(ema=Evaluation().ema if ema is None else ema)
    return {t: state.add(t, curve[t], 0, 0.0) for t in sorted(curve)}


def roughness(curve: Mapping[int, float], window: int = WINDOW) -> float | None:
    """How much a curve shakes: the mean of (a_t - m_t)^2 in squared points (a in shares), m_t the
    centred mean of `window` evaluations; None where there are fewer.

    FedACG's Figure A has such a number and leaves the window open; centred, so that a rising curve
    is not taken for a shaking one.

    >>> roughness({t: 0.01 * t for t in range(9)}) < 1e-9
    True
    >>> round(roughness({0: 0.0, 1: 0.03, 2: 0.0}, window=3), 9)
    4.0
    """
    values = [100 * curve[t] for t in sorted(curve)]
    side = window // 2
    inner = range(side, len(values) - side)
    middles = {i: math.fsum(values[i - side : i + side + 1]) / (2 * side + 1) for i in inner}
    return mean([(values[i] - m) ** 2 for i, m in middles.items()])


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


def still_growing(curve: Mapping[int, float]) -> tuple[float, bool] | None:
    """The mean of the curve's last fifth over that of the fifth before, and whether it grew by
    more than a twentieth; None with fewer than ten points.
    """
    values = [curve[t] for t in sorted(curve)]
    fifth = len(values) // 5
    if fifth < 2:
        return None
    before = math.fsum(values[-2 * fifth : -fifth])
    if before <= 0:
        return None
    ratio = math.fsum(values[-fifth:]) / before
    return ratio, ratio > GROWTH


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
