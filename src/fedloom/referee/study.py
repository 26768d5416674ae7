"""A study: methods are tuned with equal effort, then seeds are added to all until it is decided.
All that it knows is in its folder, so the same command resumes after any stop.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from statistics import fmean
from typing import Any

from ..algorithm import FedAvg
from ..config.overrides import REGISTRIES
from ..core.hyper import keys_of
from ..core.interrupts import TimeUpError
from ..core.parsing import parse_json
from ..data import FederatedData
from ..errors import ConfigError, FedloomError
from ..federation.local import Local
from ..report.curve_data import measured, value_of
from ..report.runs import Run
from ..report.statistics import FIRST, Decision, decide, looks
from ..storage.atomic import write_atomic
from ..study import Runs, Trial, check_all, state_of
from ..study.sweep import at_end
from ..study.trial import seconds
from ..study.tune import Batch, Ladder, Point, Tuned, climb, fixed, grid, summarise, tune
from .question import Cell, Method, Question

ROWS, MOST_SPLITS = 500, 10  # splits are added until so many rows are judged by, up to so many
# parts whose options make them better or worse; those of a codec make it smaller
_TUNED = ("algorithm", "objective", "server", "aggregation")
Place = tuple[Cell, Method]
Curves = tuple[tuple[float, ...], ...]


class Tuner:
    """Finds the settings of all methods in all cells. Raises ConfigError."""

    def __init__(self, question: Question, runs: Runs) -> None:
        self.question, self._runs = question, runs
        self.places = [(cell, m) for cell in question.cells for m in question.methods]
        self.spaces = {place: space_of(question, *place) for place in self.places}
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
        """How many splits judge by enough rows; no more than hold out a row in every cell."""
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
    a range. What a user has set is left as it is, and so is a server's rate that is FedAvg's.
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
    free = [key for key in rules if key not in cell.words and key not in method.words]
    now = {key: _at(config.values, key) for key in free}
    return {
        key: Ladder(repr(value), rules[key])
        for key, value in now.items()
        if isinstance(value, float) and value > 0
    }


def _defaults(make: Callable[..., Any]) -> dict[str, Any]:
    return {name: one.default for name, one in signature(make).parameters.items()}


def _at(values: Any, path: str) -> Any:
    for part in path.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


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


PLAN = "plan.json"
POINT = 0.01  # the difference of shares that does not matter, if nobody says another
_SPARE = 0.9  # of the time that is left, what the plan counts with
_TUNING = 0.3  # of the time, what more than one validation split may take
Pair = tuple[Cell, Method, Method]


class Study:
    """A study in its folder, new or begun. minutes: what it may take from now on; runner: runs what
    is missing. Raises ConfigError, also for a folder with another study.
    """

    def __init__(self, question: Question, minutes: float, runner: Runs) -> None:
        self.question, self._minutes, self.runner = question, minutes, runner
        self._until = time.monotonic() + 60 * minutes
        self._trials: dict[tuple[Cell, Method, int], Trial] = {}
        self._tuner = Tuner(question, runner)
        self.tuned: dict[Place, Tuned] = {}
        self._plan = _read_plan(question)
        self.looks: tuple[int, ...] = tuple(self._plan.get("looks", ()))
        self.splits: int = self._plan.get("splits", int(bool(self.looks)))
        self.over = False  # whether time was up before the end of the plan

    # ------------------------------------------------------------------------------------ running
    def run(self) -> None:
        """Run what is missing, until all is decided, the plan is at its end, or time is up. Raises
        ConfigError if the time is too short for one seed of all methods, FedloomError if it is up
        before all methods are tuned.
        """
        try:
            self._refuse_too_little()
            self.tuned = self._tuner.run(self.splits)
            for (cell, method), tuned in self.tuned.items():
                if tuned.trials and tuned.failed == tuned.trials:
                    raise ConfigError(f"{cell.name}: every trial of {method.name} failed")
            self.looks = self.looks or self._plan_looks()
        except TimeUpError:
            raise FedloomError(
                f"the {self._minutes:.3g} minutes ended before every method was tuned and had a "
                "seed; run the same command again to resume"
            ) from None
        try:
            for n in self.looks:
                self.runner.run(self._seeds(self._open(), n))
        except TimeUpError:
            self.over = True

    def _refuse_too_little(self) -> None:
        """Refuse a new study that has too little time, by its first run; choose the splits."""
        if self.looks:
            return
        tuner, (cells, methods) = self._tuner, (self.question.cells, self.question.methods)
        each = tuner.seconds()
        most = 60 * self._minutes * self.runner.jobs / each  # runs that there is time for
        count = tuner.count + len(cells) * len(methods)
        if count > most:
            least = self._minutes * count / most
            raise ConfigError(
                f"{self._minutes:.3g} minutes are too few to tune all methods and run one seed of "
                f"each: {count} runs of {each:.2g} s with --jobs {self.runner.jobs} take about "
                f"{least:.2g} minutes; give --minutes {math.ceil(2 * least)}, or fewer --trials, "
                "methods or cells"
            )
        if not self.splits:
            self.splits = max(1, min(tuner.splits(), int(_TUNING * most / max(1, tuner.count))))
            self._keep(splits=self.splits)

    def _plan_looks(self) -> tuple[int, ...]:
        """The looks of a new study: as many seeds as there is time for after the first of each."""
        first, began = self._seeds(self.question.cells, 1), time.monotonic()
        self.runner.run(first)
        spent = sum(seconds(self.runner.result_of(trial)) for trial in first) / self.runner.jobs
        each = max(time.monotonic() - began, spent, 1e-3)
        more = int(_SPARE * max(0.0, self._until - time.monotonic()) / each)
        seeds = looks(max(FIRST, min(self.question.most, 1 + more)))
        self._keep(splits=self.splits, looks=seeds)
        return seeds

    def _keep(self, **plan: Any) -> None:
        plan["question"] = self.question.digest()
        write_atomic(self.question.out / PLAN, json.dumps(plan) + "\n")

    def _seeds(self, cells: Sequence[Cell], count: int) -> list[Trial]:
        """The runs of so many seeds, every method of a cell with each of them."""
        seeds, methods = range(1, count + 1), self.question.methods
        return [self.trial(cell, m, seed) for seed in seeds for cell in cells for m in methods]

    def _open(self) -> list[Cell]:
        """The cells in which something is undecided that more seeds could decide."""
        decided = self.decisions()

        def waits(cell: Cell) -> bool:
            runs = self.runs(cell)
            return any(
                decided[cell, one, other].verdict == "undecided"
                and None not in [*runs[one], *runs[other]]
                for one, other in self.question.pairs
            )

        return [cell for cell in self.question.cells if waits(cell)]

    # -------------------------------------------------------------------------- what came of it
    def trial(self, cell: Cell, method: Method, seed: int) -> Trial:
        """A run of the comparison; seed: from 1."""
        key = (cell, method, seed)
        if key not in self._trials:
            choice = self.tuned[cell, method].choice
            self._trials[key] = self.question.trial(cell, method, choice, seed)
        return self._trials[key]

    def runs(self, cell: Cell) -> dict[Method, list[Run | None]]:
        """The runs of each method in a cell, as far as all have the seed; None: it failed."""
        out: dict[Method, list[Run | None]] = {method: [] for method in self.question.methods}
        for seed in range(1, self.looks[-1] + 1):
            trials = [self.trial(cell, method, seed) for method in self.question.methods]
            if not {state_of(trial.folder) for trial in trials} <= {"finished", "failed"}:
                break
            for results, trial in zip(out.values(), trials, strict=True):
                results.append(self.runner.result_of(trial))
        return out

    @property
    def delta(self) -> float | None:
        """The difference that does not matter; None if nobody said it."""
        usual = POINT if self.runner.metric.unit == "share" else None
        return usual if self.question.delta is None else self.question.delta

    def decisions(self) -> dict[Pair, Decision]:
        """{(cell, one, other): what is known of one less the other}."""
        gaps: dict[Pair, list[float]] = {}
        for cell in self.question.cells:
            values = {m: [_value(run) for run in runs] for m, runs in self.runs(cell).items()}
            for one, other in self.question.pairs:
                both = zip(values[one], values[other], strict=True)
                gaps[cell, one, other] = [a - b for a, b in both]
        return decide(gaps, self.looks, self.delta)

    def verdict(self, decision: Decision) -> str:
        """What a decision says of the first of a pair: better, worse, no difference, undecided."""
        above, below = "better", "worse"
        if not self.runner.metric.higher_is_better:
            above, below = below, above
        words = {"above": above, "below": below, "within": "no difference"}
        return words.get(decision.verdict, "undecided")


def _read_plan(question: Question) -> dict[str, Any]:
    """The plan of a study that was begun; {} of a new one. Raises ConfigError."""
    file = question.out / PLAN
    if not file.is_file():
        return {}
    plan: dict[str, Any] = parse_json(file.read_text("utf-8"))
    if plan.get("question") != question.digest():
        raise ConfigError(
            f"'{question.out}' holds a study of something else, or a file of yours has changed; "
            "choose another --out"
        )
    return plan


def _value(run: Run | None) -> float:
    value = None if run is None else value_of(run)
    return math.nan if value is None else value
