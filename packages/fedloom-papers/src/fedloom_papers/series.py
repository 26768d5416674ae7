"""The curves of a line of evidence: by name and size, smoothed, and of several seeds together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedloom.evaluation.settings import Curve
from fedloom.report.curve_data import mean

from .lines import Line

EMA = 0.9  # of FedACG, per round
Band = list[tuple[float, float, float, float]]  # x, mean, least and largest over the seeds


def points(line: Line, name: str) -> dict[int, float]:
    """A curve of a line, {round: value}; nothing where it has no such curve."""
    return {int(t): float(v) for t, v in line["curves"].get(name, ())}


def smoothed(curve: Mapping[int, float]) -> dict[int, float]:
    """FedACG's moving average, debiased; evaluations r rounds apart decay by 0.9^r."""
    state = Curve(ema=EMA)
    return {t: state.add(t, curve[t]) for t in sorted(curve)}


def roughness(curve: Mapping[int, float], window: int = 5) -> float | None:
    """How much a curve of shares shakes: the mean of (a_t - m_t)^2 in squared points, m_t the mean
    of `window` evaluations around it, so that a rising curve is not taken for a shaking one; None
    where there are fewer.

    >>> roughness({t: 0.01 * t for t in range(9)}) < 1e-9
    True
    >>> round(roughness({0: 0.0, 1: 0.03, 2: 0.0}, window=3), 9)
    4.0
    """
    values = [100 * curve[t] for t in sorted(curve)]
    starts = range(len(values) - window + 1)
    middles = [math.fsum(values[a : a + window]) / window for a in starts]
    return mean([(values[a + window // 2] - m) ** 2 for a, m in zip(starts, middles, strict=True)])


def last_of(values: Sequence[float], count: int) -> float | None:
    """The mean of the last so many values; None of fewer."""
    return math.fsum(values[-count:]) / count if len(values) >= count else None


def band(curves: Sequence[Mapping[Any, float]]) -> Band:
    """(x, mean, least, largest) of several seeds' curves {x: value}, where all of them have one;
    empty curves do not count.

    >>> band([{1: 0.0, 2: 1.0}, {2: 3.0}, {}])
    [(2, 2.0, 1.0, 3.0)]
    """
    nonempty = [curve for curve in curves if curve]
    common = sorted(set.intersection(*map(set, nonempty))) if nonempty else []
    values = [(x, [curve[x] for curve in nonempty]) for x in common]
    return [(x, math.fsum(v) / len(v), min(v), max(v)) for x, v in values]


def size_fraction(size: str) -> float:
    """A size as a number with the digits that columns have; not a number for "mean"."""
    top, _, bottom = size.partition("/")
    try:
        return float(f"{float(top) / float(bottom or 1):.6g}")
    except ValueError:
        return math.nan


def _column(line: Line, name: str, size: str) -> str:
    """The curve of a size: test_accuracy@0.25 for 1/4; there may be none."""
    prefix = name.replace("METRIC", line["metric"])
    for column in line["curves"]:
        start, _, end = column.rpartition("@")
        if start == prefix and (
            end == size or (end != "mean" and size_fraction(end) == size_fraction(size))
        ):
            return str(column)
    return f"{prefix}@{size}"


def sized(line: Line, name: str, size: str) -> dict[int, float]:
    """A curve of a line and a size of sub-models."""
    return points(line, _column(line, name, size))


@dataclass(frozen=True)
class Series:
    """A curve of a line: its column there, words for an axis, what is done with it, and the name of
    its picture. average: it is FedACG's moving average; read: from a line and a size to a curve
    that is no column.
    """

    column: str
    words: str
    scale: float = 1.0
    average: bool = False
    change: Callable[[float], float] | None = None
    name: str = ""
    read: Callable[[Line, str], dict[int, float]] | None = None

    def raw(self, line: Line, size: str = "") -> dict[int, float]:
        """{round: value}, not averaged; nothing where a line has no such curve. size: of a
        sub-model.
        """
        if self.read:
            return self.read(line, size)
        curve = sized(line, self.column, size) if size else points(line, self.column)
        return {t: self.change(v) if self.change else self.scale * v for t, v in curve.items()}

    def of(self, line: Line, size: str = "") -> dict[int, float]:
        """{round: value}, as it is shown."""
        return smoothed(self.raw(line, size)) if self.average else self.raw(line, size)

    def band(self, lines: Sequence[Line], size: str = "") -> Band:
        """The seeds' curves together, see `band`."""
        return band([self.of(line, size) for line in lines])
