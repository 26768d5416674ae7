"""A study: methods are tuned with equal effort, then seeds are added to all until it is decided.

All that it knows is in its folder: finished runs, and plan.json, which is written before the first
look at a comparison and never changes. So the same command goes on after any stop.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ..core.curves import last_tenth
from ..core.interrupts import TimeUpError
from ..core.parsing import parse_json
from ..errors import ConfigError, FedloomError
from ..report.curve_data import measured, value_of
from ..report.runs import Metric, Run, load_run
from ..report.sequential import FIRST, Decision, decide, looks
from ..storage.atomic import write_atomic
from ..sweep import RunTrials, Trial, Watch, check_all, in_jobs, state_of
from .question import Cell, Method, Question
from .tune import Point, Tuned, chosen, proposed, space_of

PLAN = "plan.json"
POINT = 0.01  # the difference of shares that does not matter, if nobody says another
_SPARE = 0.9  # of the time that is left, what the plan counts with
_ALIKE = 1e-5  # relative: curves closer than that are of one algorithm
Place = tuple[Cell, Method]
Pair = tuple[Cell, Method, Method]
Curves = tuple[tuple[float, ...], ...]


class Study:
    """A study in its folder, new or begun. minutes: what it may take from now on.

    Raises ConfigError for what cannot be run, and for a folder with another study.
    """

    def __init__(self, question: Question, minutes: float, jobs: int, watch: Watch) -> None:
        self.question, self._minutes, self._jobs, self._watch = question, minutes, jobs, watch
        self._until = time.monotonic() + 60 * minutes
        self._work, self._runs = RunTrials(), dict[Path, Run]()
        self._trials: dict[tuple[Cell, Method, int], Trial] = {}
        self.places = [(cell, m) for cell in question.cells for m in question.methods]
        self.spaces = {place: space_of(question, *place) for place in self.places}
        for key in question.tune:
            if not any(key in space for space in self.spaces.values()):
                raise ConfigError(f"--tune {key}: no method has this setting free to be tuned")
        self.tuned: dict[Place, Tuned] = {}
        self.looks = _kept_plan(question)
        self.over = False  # whether time was up before the end of the plan
        check_all([question.trial(*place, {}, 0) for place in self.places])

    # ------------------------------------------------------------------------------------ running
    def run(self) -> None:
        """Run what is missing, until all is decided, the plan is at its end, or time is up. Raises
        ConfigError if the time is too short for one seed of all methods, FedloomError if it is up
        before all methods are tuned.
        """
        try:
            self._refuse_too_little()
            self._tune()
            self.looks = self.looks or self._plan()
        except TimeUpError:
            raise FedloomError(
                f"the {self._minutes:g} minutes ended before every method was tuned and had a "
                "seed; the same command goes on"
            ) from None
        try:
            for n in self.looks:
                self._run(self._seeds(self._open(), n))
        except TimeUpError:
            self.over = True

    def _refuse_too_little(self) -> None:
        """Measure the first run of a new study, and say what the least study takes, if that is too
        much.
        """
        if self.looks:
            return
        at, began = self.places[0], time.monotonic()
        start = {key: ladder.start for key, ladder in self.spaces[at].items()}
        first = self.question.trial(*at, start, 0)
        with contextlib.suppress(TimeUpError):
            self._run([first])
        done = first.rounds
        if state_of(first.folder) == "begun":
            done = max(1, load_run(first.folder).rounds.size)
        each = (time.monotonic() - began) * first.rounds / done
        each = max(each, _seconds(self._found(first)))
        count = sum(map(bool, self.spaces.values())) * self.question.trials + len(self.places)
        least = count * each / self._jobs / 60
        if least > self._minutes:
            raise ConfigError(
                f"{self._minutes:g} minutes are too few to tune all methods and run one seed of "
                f"each: {count} runs of {each:.2g} s with --jobs {self._jobs} take about "
                f"{least:.2g} minutes; give --minutes {math.ceil(2 * least)}, or fewer --trials, "
                "methods or cells"
            )

    def _run(self, trials: Iterable[Trial]) -> None:
        """Run what is not over of these."""
        left = [t for t in trials if state_of(t.folder) not in ("finished", "failed")]
        self._watch.add(left)
        for n, state in in_jobs(self._work, left, left, self._jobs, self._watch):
            self._watch.end(left[n], state)

    def _found(self, trial: Trial) -> Run | None:
        """A finished run; None of another one."""
        if trial.folder not in self._runs and state_of(trial.folder) == "finished":
            self._runs[trial.folder] = load_run(trial.folder)
        return self._runs.get(trial.folder)

    def _tune(self) -> None:
        """Find the settings of each method in each cell, all searches side by side."""
        tried: dict[Place, dict[Point, Run | None]] = {at: {} for at in self.places}
        while True:
            trials = {
                (at, point): self.question.trial(*at, dict(zip(space, point, strict=True)), 0)
                for at, space in self.spaces.items()
                for point in proposed(space, _scores(tried[at]), self.question.trials)
            }
            if not trials:
                break
            self._run(trials.values())
            for (at, point), trial in trials.items():
                tried[at][point] = self._found(trial)
        for at, runs in tried.items():
            if runs and not any(runs.values()):
                raise ConfigError(f"{at[0].name}: every trial of {at[1].name} failed")
            curves = {point: curves_of(run) for point, run in runs.items() if run is not None}
            self.tuned[at] = chosen(self.spaces[at], _scores(runs), curves)

    def _plan(self) -> tuple[int, ...]:
        """The looks of a new study: as many seeds as there is time for after the first of each."""
        first, began = self._seeds(self.question.cells, 1), time.monotonic()
        self._run(first)
        spent = sum(_seconds(self._found(trial)) for trial in first) / self._jobs
        each = max(time.monotonic() - began, spent, 1e-3)
        more = int(_SPARE * max(0.0, self._until - time.monotonic()) / each)
        found = looks(max(FIRST, min(self.question.most, 1 + more)))
        plan = {"question": self.question.digest(), "looks": found}
        write_atomic(self.question.out / PLAN, json.dumps(plan) + "\n")
        return found

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
        """The runs of each method in a cell, seed by seed as far as every method has one; None of
        one that failed.
        """
        out: dict[Method, list[Run | None]] = {method: [] for method in self.question.methods}
        for seed in range(1, self.looks[-1] + 1):
            trials = [self.trial(cell, method, seed) for method in self.question.methods]
            if not {state_of(trial.folder) for trial in trials} <= {"finished", "failed"}:
                break
            for own, trial in zip(out.values(), trials, strict=True):
                own.append(self._found(trial))
        return out

    @property
    def cost(self) -> tuple[int, float]:
        """How many runs finished, and their seconds in all."""
        return len(self._runs), sum(map(_seconds, self._runs.values()))

    @property
    def metric(self) -> Metric:
        """What is compared. Raises ConfigError if no run has it, or nobody knows what is better."""
        if not self._runs:
            raise ConfigError("no run finished, so that there is nothing to compare")
        metric = next(iter(self._runs.values())).metric
        if metric.higher_is_better is None:
            raise ConfigError(
                f"nothing says whether {metric.name} is better higher or lower; run it with "
                "higher_is_better"
            )
        return metric

    @property
    def delta(self) -> float | None:
        """The difference that does not matter; None if nobody said it."""
        usual = POINT if self.metric.unit == "share" else None
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

    def alike(self) -> list[tuple[str, str]]:
        """The pairs of methods whose curves agree in every cell and seed."""
        every = [[*self.runs(cell).items()] for cell in self.question.cells]
        pairs = zip(*(itertools.combinations(cell, 2) for cell in every), strict=True)
        return [
            (cells[0][0][0].name, cells[0][1][0].name)
            for cells in pairs
            if all(_agree(one, other) for (_, one), (_, other) in cells)
        ]


def _kept_plan(question: Question) -> tuple[int, ...]:
    """The looks of a study that was begun; () of a new one. Raises ConfigError."""
    file = question.out / PLAN
    if not file.is_file():
        return ()
    kept = parse_json(file.read_text("utf-8"))
    if kept.get("question") != question.digest():
        raise ConfigError(
            f"'{question.out}' holds a study of something else, or a file of yours has changed; "
            "choose another --out"
        )
    return tuple(kept["looks"])


def _seconds(run: Run | None) -> float:
    return 0.0 if run is None else float(run.summary["seconds"] or 0.0)


def _scores(tried: Mapping[Point, Run | None]) -> dict[Point, float]:
    """What the choice is made by, of the validation split, more is better: the mean of the last
    tenth; -inf of a run that failed.
    """

    def score(run: Run | None) -> float:
        if run is None:
            return -math.inf
        value = last_tenth(measured(run, f"validation_{run.metric.name}")[1].tolist())
        if value is None or not math.isfinite(value):
            return -math.inf
        return -value if run.metric.higher_is_better is False else value

    return {point: score(run) for point, run in tried.items()}


def curves_of(run: Run) -> Curves:
    """What tells two algorithms apart: losses and the metric, evaluation by evaluation."""
    columns = ("train_loss", "test_loss", run.metric.column)
    return tuple(tuple(measured(run, column)[1].tolist()) for column in columns)


def _value(run: Run | None) -> float:
    found = None if run is None else value_of(run)
    return math.nan if found is None else found


def _agree(one: Sequence[Run | None], other: Sequence[Run | None]) -> bool:
    """Whether the curves of two methods agree, seed by seed, but for rounding."""

    def same(a: Run | None, b: Run | None) -> bool:
        if a is None or b is None:
            return False
        pairs = zip(curves_of(a), curves_of(b), strict=True)
        return all(len(x) == len(y) and np.allclose(x, y, _ALIKE, 0.0, True) for x, y in pairs)

    return bool(one) and all(same(a, b) for a, b in zip(one, other, strict=True))
