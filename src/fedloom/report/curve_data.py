"""Numbers from curves: a run's tested, last and best value and target, a group's mean and band."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedloom.core.arithmetic import total
from fedloom.core.curves import Value, crossing, tested, whole_round

from .runs import Floats, Group, Run

Axis = Literal["round", "bytes", "seconds", "simulated"]


@dataclass(frozen=True)
class Hit:
    """Where a run reached a target: the round from 1, and what was spent until then."""

    round: int
    bytes: float
    gradients: float
    seconds: float
    simulated: float


@dataclass(frozen=True, eq=False)
class Curve:
    """A group's mean line with its seed band, each of length E = rounds that all seeds measured."""

    x: Floats
    mean: Floats
    low: Floats
    high: Floats
    seeds: int


def measured(run: Run, column: str) -> tuple[NDArray[np.intp], Floats]:
    """Give the rows (indices from 0) in which a column was measured, and its values there."""
    if column not in run.columns:
        return np.zeros(0, dtype=np.intp), np.zeros(0)
    rows = np.flatnonzero(run.present[column])
    return rows, run.columns[column][rows]


def last(run: Run, column: str) -> float | None:
    """Give the last measured value: NaN if that one was not a number, None if there is none."""
    values = measured(run, column)[1]
    return float(values[-1]) if values.size else None


def best(run: Run) -> float | None:
    """The best measured value of the run's metric, without NaN; None if nobody knows which is."""
    values = measured(run, run.metric.column)[1]
    values = values[np.isfinite(values)]
    if not values.size or run.metric.higher_is_better is None:
        return None
    return float(values.max() if run.metric.higher_is_better else values.min())


def tested_rows(run: Run, how: Value = "last-tenth") -> dict[int, float]:
    """{row (from 0): what `value_of` would be had the run ended there}. Raises what that raises."""

    def column(name: str) -> dict[int, float]:
        rows, values = measured(run, name)
        return dict(zip(rows.tolist(), values.tolist(), strict=True))

    metric = run.metric
    criteria = metric.name, metric.higher_is_better, how, f"'{run.path}'", metric.of_clients
    return tested(column, *criteria)


def value_of(run: Run, how: Value = "last-tenth") -> float | None:
    """The value of a run's metric that is compared (core.curves.VALUES); None without an
    evaluation. Raises ConfigError for a value that the run has not.
    """
    by_row = tested_rows(run, how)
    return by_row[max(by_row)] if by_row else None


def first_hit(run: Run, target: float) -> Hit | None:
    """The first round whose EMA (or value) reaches the target, on lines between evaluations."""
    metric = run.metric
    column = metric.ema_column if metric.ema_column in run.columns else metric.column
    rows, values = measured(run, column)
    if not metric.reached(values, target).any():
        return None
    curve = dict(zip(run.rounds[rows].tolist(), values.tolist(), strict=True))
    place = crossing(curve, target, metric.higher_is_better is True)
    assert place is not None
    row = int(np.searchsorted(run.rounds, whole_round(place)))
    costs = (run.bytes, run.gradients, run.seconds, run.simulated)
    return Hit(int(run.rounds[row]), *(float(cost[row]) for cost in costs))


def mean(values: Sequence[float | None]) -> float | None:
    """Average the known values; None if there are none.

    >>> mean([1.0, None, 2.0]), mean([None])
    (1.5, None)
    """
    present = [value for value in values if value is not None]
    return total(present) / len(present) if present else None


def sd(values: Sequence[float | None]) -> float | None:
    """Sample standard deviation (divided by n - 1) of the known values; None for fewer than two.

    >>> sd([1.0, 3.0]), sd([1.0])
    (1.4142135623730951, None)
    """
    present = [value for value in values if value is not None]
    if len(present) < 2:
        return None
    middle = total(present) / len(present)
    away = [value - middle for value in present]
    return math.sqrt(total(d * d for d in away) / (len(present) - 1))


def group_curve(group: Group, column: str, axis: Axis = "round") -> Curve | None:
    """A column's mean over the seeds that count, with the lowest and the highest as band, at the
    rounds that all of them measured. A value that is not finite leaves a gap. None without such a
    round.
    """
    runs = [run for run in group.averaged_runs if measured(run, column)[0].size]
    by_run = [set(run.rounds[measured(run, column)[0]].tolist()) for run in runs]
    common = set.intersection(*by_run) if runs else ()
    if not common:
        return None
    rounds = np.array(sorted(common))
    xs, ys = [], []
    for run in runs:
        rows = np.searchsorted(run.rounds, rounds)
        xs.append((run.rounds if axis == "round" else getattr(run, axis))[rows].astype(np.float64))
        values = run.columns[column][rows]
        ys.append(np.where(np.isfinite(values), values, np.nan))
    y = np.stack(ys)
    return Curve(np.mean(xs, axis=0), y.mean(axis=0), y.min(axis=0), y.max(axis=0), len(runs))
