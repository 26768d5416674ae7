"""Tuning: the settings of every method in every cell, with as many trials on validation splits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from statistics import fmean
from typing import Any

from ..algorithm import FedAvg
from ..config.overrides import REGISTRIES
from ..core.hyper import keys_of
from ..data import FederatedData
from ..errors import ConfigError
from ..federation.local import Local
from ..report.curve_data import measured
from ..report.runs import Run
from ..study import Runs, check_all
from ..study.sweep import at_end
from ..study.tune import Batch, Ladder, Point, Tuned, climb, fixed, grid, summarise, tune
from .question import Cell, Method, Question

ROWS, MOST_SPLITS = 500, 10  # splits are added until so many rows are judged by, up to so many
# parts whose options make them better or worse; those of a codec make it smaller
_TUNED = ("algorithm", "objective", "server", "aggregation")
Place = tuple[Cell, Method]
Curves = tuple[tuple[float, ...], ...]


class Tuner:
    """Finds the settings of all methods of a question in all its cells.

    Raises ConfigError for what cannot be run, and for settings to tune that no method has.
    """

    def __init__(self, question: Question, runs: Runs) -> None:
        self.question, self._runs = question, runs
        self.places = [(cell, m) for cell in question.cells for m in question.methods]
        self.spaces = {place: space_of(question, *place) for place in self.places}
        for key in question.tune:
            if not any(key in space for space in self.spaces.values()):
                raise ConfigError(f"--tune {key}: no method has this setting free to be tuned")
        check_all([question.tuning(*place, {}, 0) for place in self.places])

    @property
    def count(self) -> int:
        """How many runs a split takes."""
        return sum(map(bool, self.spaces.values())) * self.question.trials

    def seconds(self) -> float:
        """What a run takes: the first of the search."""
        place = self.places[0]
        start = {key: ladder.start for key, ladder in self.spaces[place].items()}
        first, second = (self.question.tuning(*place, start, split) for split in (0, 1))
        return self._runs.seconds_of(first, second)

    def splits(self) -> int:
        """How many splits judge by enough rows, in the cell with the fewest; and no more than hold
        out a row, since shares differ and clients may be small.
        """
        method, fewest, most = self.question.methods[0], ROWS, MOST_SPLITS
        for cell in self.question.cells:
            data = self.question.config(cell, method).data()
            rows = [
                held_out(data, trial.config.values["evaluate"]["validation"])
                for trial in (self.question.tuning(cell, method, {}, n) for n in range(MOST_SPLITS))
            ]
            fewest = min(fewest, rows[0])
            most = min(most, len([*itertools.takewhile(bool, rows)]))
        return max(1, min(most, math.ceil(ROWS / max(1, fewest))))

    def run(self, splits: int, all_of_them: bool = False) -> dict[Place, Tuned]:
        """The settings of each method in each cell, all searches side by side. splits: by how many
        validation splits every trial is judged; all_of_them: judge methods that have nothing to
        tune, too. Trials of a setting that has no effect do not count: a method with one searches
        again without it. Raises TimeUpError if time is up.
        """
        results: dict[Place, dict[Point, list[Run | None]]] = {key: {} for key in self.places}

        def run(batches: Mapping[Place, Batch[Point]]) -> dict[Place, dict[Point, float]]:
            trials = {
                (key, point): [
                    self.question.tuning(*key, dict(zip(self.spaces[key], point, strict=True)), n)
                    for n in range(splits)
                ]
                for key, batch in batches.items()
                for point in batch.points
            }
            self._runs.run(trial for every in trials.values() for trial in every)
            for (key, point), every in trials.items():
                results[key][point] = [self._runs.result_of(trial) for trial in every]
            return {key: _scores(results[key]) for key in batches}

        once: list[Point] = [()] if all_of_them else []
        searches = {
            key: climb(space, self.question.trials) if space else grid(once)
            for key, space in self.spaces.items()
        }
        tune(searches, run)
        tuned = {key: self._choose(key, runs) for key, runs in results.items()}
        again = {
            key: climb(fixed(self.spaces[key], one.without_effect), self.question.trials)
            for key, one in tuned.items()
            if one.without_effect
        }
        tune(again, run)
        return tuned | {key: self._choose(key, results[key]) for key in again}

    def _choose(self, key: Place, runs: Mapping[Point, Sequence[Run | None]]) -> Tuned:
        curves = {
            point: tuple(curve for run in splits if run for curve in curves_of(run))
            for point, splits in runs.items()
            if all(splits)
        }
        return summarise(self.spaces[key], _scores(runs), curves)


def space_of(question: Question, cell: Cell, method: Method) -> dict[str, Ladder]:
    """The main settings of a method: the local rate, and the numbers above 0 that it declares with
    a range, or those of --tune that it has. What a user has set is left as it is, and so is a
    server's rate that is FedAvg's.
    """
    config = question.config(cell, method)
    rules = {"local.lr": keys_of(Local)["lr"]}
    if question.vary in _TUNED and question.vary in config.values:
        make = REGISTRIES[question.vary][config.values[question.vary]["name"]]
        fedavg, defaults = _defaults(FedAvg), _defaults(make)
        for key, hyper in keys_of(make).items():
            as_fedavg = key in fedavg and defaults[key] == fedavg[key]
            if not as_fedavg and hyper.ends != (None, None):
                rules[f"{question.vary}.{key}"] = hyper
    out = dict[str, Ladder]()
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


def held_out(data: FederatedData, fraction: float) -> int:
    """How many rows a validation split of these data has."""
    if data.validation is not None:
        return len(data.validation)
    return sum(math.floor(fraction * size) for size in data.sizes.tolist())


def _scores(runs: Mapping[Point, Sequence[Run | None]]) -> dict[Point, float]:
    """What the choice is made by, the mean over the validation splits, more is better: of each the
    mean of the last tenth; -inf of a point of which a run failed.
    """

    def score(run: Run | None) -> float:
        value = None if run is None else at_end(run, "validation")
        if run is None or value is None or not math.isfinite(value):
            return -math.inf
        return -value if run.metric.higher_is_better is False else value

    return {point: fmean(map(score, splits)) for point, splits in runs.items()}


def curves_of(run: Run) -> Curves:
    """What tells two algorithms apart: losses and the metric, evaluation by evaluation."""
    columns = ("train_loss", "test_loss", run.metric.column)
    return tuple(tuple(measured(run, column)[1].tolist()) for column in columns)
