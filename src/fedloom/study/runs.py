"""Many runs, one after the other or several at once, each in a process that keeps its data."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ..core.interrupts import TimeUpError
from ..errors import ConfigError
from ..report.runs import Metric, load_run
from ..report.runs import Run as Result
from .jobs import Jobs, Say, Work
from .trial import FAILURE, OVER, DataCache, Run, Trial, run_trial, state_of

_SHORT, _LEAST = 10.0, 0.01  # seconds of a run: the first is measured again; no run takes less
R = TypeVar("R", bound=Run)


class Observer:
    """What is told how far many runs are; this one does nothing with it. Any may raise
    TimeUpError.
    """

    def add(self, runs: Sequence[Run]) -> None:
        """More runs are to come."""

    def begin(self, run: Run) -> None:
        """A run begins, or goes on."""

    def row(self, run: Run, row: Mapping[str, Any]) -> None:
        """A round is done."""

    def end(self, run: Run, state: str) -> None:
        """A run is over: "finished", "failed", "pruned" or "refused"."""


class Outcome(NamedTuple):
    """What came of a run. why: of a state that is not "finished"; afterwards: what was measured on
    it.
    """

    state: str
    why: str = ""
    afterwards: Mapping[str, float] = {}


class RunTrials:
    """Runs a trial, goes on with it, or skips it if it is over. warn: whether to say what a run
    warns of; it is in its summary.json in any case.
    """

    def __init__(self, warn: bool = True) -> None:
        self.cache, self._warn = DataCache(), warn

    def __call__(self, trial: Run, on_row: Say) -> Outcome:
        """on_row: called with every row of the run."""
        log = logging.getLogger("fedloom")
        level = log.level
        if not self._warn:
            log.setLevel(logging.ERROR)
        try:
            state = run_trial(trial, data=self.cache.of(trial.config), on_round=on_row)
        finally:
            log.setLevel(level)
        failed = state == "failed"
        return Outcome(state, (trial.folder / FAILURE).read_text("utf-8").strip() if failed else "")


def run_all(
    runs: Sequence[R], work: Work, jobs: int = 1, watch: Observer | None = None
) -> Iterator[tuple[R, Outcome]]:
    """(run, what came of it) as they end: in this process, or `jobs` at once. work: as RunTrials.
    Raises what Jobs.run raises.
    """
    watch = watch or Observer()
    watch.add(runs)
    for run, outcome in Jobs(work, jobs).run(runs, watch.begin, watch.row):
        yield run, outcome
        watch.end(run, outcome.state if outcome.state in OVER else "refused")


class Runs:
    """Runs what is missing, `jobs` at once, and keeps what finished. watch: is shown every run.
    What the runs warn of is not said: most of them only try settings.
    """

    def __init__(self, jobs: int, watch: Observer | None = None) -> None:
        self.jobs, self._watch, self._work = jobs, watch, RunTrials(warn=False)
        self._results = dict[Path, Result]()

    def run(self, trials: Iterable[Trial]) -> None:
        """Run what is not over of these. Raises TimeUpError when `watch` does."""
        missing = [trial for trial in trials if state_of(trial.folder) not in OVER]
        for _ in run_all(missing, self._work, self.jobs, self._watch):
            pass

    def result_of(self, trial: Trial) -> Result | None:
        """A finished run; None of another one."""
        if trial.folder not in self._results and state_of(trial.folder) == "finished":
            self._results[trial.folder] = load_run(trial.folder)
        return self._results.get(trial.folder)

    def seconds_of(self, first: Trial, second: Trial) -> float:
        """What a run takes, measured by the first one, which may have been stopped before its end;
        by the second if that was short, since it loads what others find.
        """
        duration = self._timed(first)
        again = duration < _SHORT and state_of(first.folder) == "finished"
        return self._timed(second) if again else duration

    def _timed(self, trial: Trial) -> float:
        began = time.monotonic()
        with contextlib.suppress(TimeUpError):
            self.run([trial])
        rounds = trial.rounds
        if state_of(trial.folder) == "begun":
            rounds = max(1, load_run(trial.folder).rounds.size)
        each = (time.monotonic() - began) * trial.rounds / rounds
        return max(each, seconds(self.result_of(trial)), _LEAST)

    @property
    def cost(self) -> tuple[int, float]:
        """How many runs finished, and their seconds in all."""
        return len(self._results), sum(map(seconds, self._results.values()))

    @property
    def metric(self) -> Metric:
        """What is compared. Raises ConfigError if no run has it, or nobody knows what is better."""
        if not self._results:
            raise ConfigError("no run finished, so that there is nothing to compare")
        metric = next(iter(self._results.values())).metric
        if metric.higher_is_better is None:
            raise ConfigError(
                f"nothing says whether {metric.name} is better higher or lower; run it with "
                "higher_is_better"
            )
        return metric


def seconds(run: Result | None) -> float:
    """What a run took; 0 of none."""
    return 0.0 if run is None else float(run.summary["seconds"] or 0.0)
