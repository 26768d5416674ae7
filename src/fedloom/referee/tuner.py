"""Tuning: the settings of every method in every cell, with as many trials on validation splits."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from ..core.curves import last_tenth
from ..core.interrupts import TimeUpError
from ..data import FederatedData
from ..errors import ConfigError
from ..report.curve_data import measured
from ..report.runs import Metric, Run, load_run
from ..sweep import RunTrials, Trial, Watch, check_all, in_jobs, state_of
from .question import Cell, Method, Question
from .tune import Point, Tuned, chosen, proposed, space_of

ROWS, MOST_SPLITS = 500, 10  # splits are added until so many rows are judged by, up to so many
_SHORT, _LEAST = 10.0, 0.01  # seconds of a run: the first is measured again; no run takes less
Place = tuple[Cell, Method]
Curves = tuple[tuple[float, ...], ...]


class Runs:
    """Runs what is missing, `jobs` at once, and keeps what finished. watch: is shown every run.
    What the runs warn of is not said: most of them only try settings.
    """

    def __init__(self, jobs: int, watch: Watch) -> None:
        self.jobs, self._watch, self._work = jobs, watch, RunTrials(warn=False)
        self._kept = dict[Path, Run]()

    def run(self, trials: Iterable[Trial]) -> None:
        """Run what is not over of these. Raises TimeUpError when `watch` does."""
        left = [t for t in trials if state_of(t.folder) not in ("finished", "failed")]
        self._watch.add(left)
        for n, state in in_jobs(self._work, left, left, self.jobs, self._watch):
            self._watch.end(left[n], state)

    def found(self, trial: Trial) -> Run | None:
        """A finished run; None of another one."""
        if trial.folder not in self._kept and state_of(trial.folder) == "finished":
            self._kept[trial.folder] = load_run(trial.folder)
        return self._kept.get(trial.folder)

    def seconds_of(self, first: Trial, second: Trial) -> float:
        """What a run takes, measured by the first one, which may have been stopped before its end;
        by the second if that was short, since it loads what others find.
        """
        found = self._timed(first)
        again = found < _SHORT and state_of(first.folder) == "finished"
        return self._timed(second) if again else found

    def _timed(self, trial: Trial) -> float:
        began = time.monotonic()
        with contextlib.suppress(TimeUpError):
            self.run([trial])
        done = trial.rounds
        if state_of(trial.folder) == "begun":
            done = max(1, load_run(trial.folder).rounds.size)
        each = (time.monotonic() - began) * trial.rounds / done
        return max(each, seconds(self.found(trial)), _LEAST)

    @property
    def cost(self) -> tuple[int, float]:
        """How many runs finished, and their seconds in all."""
        return len(self._kept), sum(map(seconds, self._kept.values()))

    @property
    def metric(self) -> Metric:
        """What is compared. Raises ConfigError if no run has it, or nobody knows what is better."""
        if not self._kept:
            raise ConfigError("no run finished, so that there is nothing to compare")
        metric = next(iter(self._kept.values())).metric
        if metric.higher_is_better is None:
            raise ConfigError(
                f"nothing says whether {metric.name} is better higher or lower; run it with "
                "higher_is_better"
            )
        return metric


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
        at = self.places[0]
        start = {key: ladder.start for key, ladder in self.spaces[at].items()}
        first, second = (self.question.tuning(*at, start, split) for split in (0, 1))
        return self._runs.seconds_of(first, second)

    def wanted(self) -> int:
        """How many splits judge by enough rows, in the cell with the fewest; and no more than hold
        out a row, since shares differ and clients may be small.
        """
        method, fewest, most = self.question.methods[0], ROWS, MOST_SPLITS
        for cell in self.question.cells:
            data = self.question.config(cell, method).data()
            found = [
                held_out(data, trial.config.values["evaluate"]["validation"])
                for trial in (self.question.tuning(cell, method, {}, n) for n in range(MOST_SPLITS))
            ]
            fewest = min(fewest, found[0])
            most = min(most, len([*itertools.takewhile(bool, found)]))
        return max(1, min(most, math.ceil(ROWS / max(1, fewest))))

    def run(self, splits: int, all_of_them: bool = False) -> dict[Place, Tuned]:
        """The settings of each method in each cell, all searches side by side. splits: by how many
        validation splits every trial is judged; all_of_them: judge methods that have nothing to
        tune, too. Raises TimeUpError if time is up.
        """
        tried: dict[Place, dict[Point, list[Run | None]]] = {at: {} for at in self.places}
        while True:
            trials = {
                (at, point): [
                    self.question.tuning(*at, dict(zip(space, point, strict=True)), split)
                    for split in range(splits)
                ]
                for at, space in self.spaces.items()
                for point in proposed(space, _scores(tried[at]), self.question.trials)
                or [()] * (all_of_them and not space and not tried[at])
            }
            if not trials:
                break
            self._runs.run(trial for every in trials.values() for trial in every)
            for (at, point), every in trials.items():
                tried[at][point] = [self._runs.found(trial) for trial in every]
        return {at: self._chosen(at, runs) for at, runs in tried.items()}

    def _chosen(self, at: Place, runs: Mapping[Point, Sequence[Run | None]]) -> Tuned:
        curves = {
            point: tuple(curve for run in splits if run for curve in curves_of(run))
            for point, splits in runs.items()
            if all(splits)
        }
        return chosen(self.spaces[at], _scores(runs), curves)


def held_out(data: FederatedData, share: float) -> int:
    """How many rows a validation split of these data has."""
    if data.validation is not None:
        return len(data.validation)
    return sum(math.floor(share * size) for size in data.sizes.tolist())


def _scores(tried: Mapping[Point, Sequence[Run | None]]) -> dict[Point, float]:
    """What the choice is made by, the mean over the validation splits, more is better: of each the
    mean of the last tenth; -inf of a point of which a run failed.
    """

    def score(run: Run | None) -> float:
        if run is None:
            return -math.inf
        value = last_tenth(measured(run, f"validation_{run.metric.name}")[1].tolist())
        if value is None or not math.isfinite(value):
            return -math.inf
        return -value if run.metric.higher_is_better is False else value

    return {point: fmean(map(score, splits)) for point, splits in tried.items()}


def curves_of(run: Run) -> Curves:
    """What tells two algorithms apart: losses and the metric, evaluation by evaluation."""
    columns = ("train_loss", "test_loss", run.metric.column)
    return tuple(tuple(measured(run, column)[1].tolist()) for column in columns)


def seconds(run: Run | None) -> float:
    """What a run took; 0 of none."""
    return 0.0 if run is None else float(run.summary["seconds"] or 0.0)
