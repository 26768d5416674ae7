"""A search for good values by Optuna: each trial is a run as in a grid, and bad ones are stopped
early. The same command makes the same choices, for each trial has its own seed and learns what ran
before from the folders of the runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..core.extras import need
from ..report.curve_data import measured
from ..report.runs import load_run
from ..storage.atomic import write_atomic
from .sweep import Sweep, results
from .trial import PRUNED, Trial, check_all, run_trial, state_of

_UNPRUNED = 4  # trials that are run to their end before any is pruned
Say = Callable[[int, Mapping[str, str], str], None]


class Search:
    """A search in the folder of a sweep, new or begun. count: trials in all.

    Raises ConfigError if Optuna is missing, and for what cannot be run.
    """

    def __init__(self, sweep: Sweep, count: int) -> None:
        need("optuna", "--trials", "optuna")
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._sweep, self._count = sweep, count
        first = sweep.trials(sweep.example)[:1]
        check_all(first)
        loop = first[0].config.experiment().build()
        self._column, self._rounds = f"{sweep.by}_{loop.headline}", first[0].rounds
        self._study = optuna.create_study(
            direction="maximize" if loop.evaluator.curve.higher_is_better else "minimize",
            pruner=optuna.pruners.MedianPruner(_UNPRUNED, n_warmup_steps=self._rounds // 4),
        )

    def run(self, progress: bool, say: Say) -> list[Trial]:
        """Run what is missing -> the runs of all that was tried, each combination once. say: told
        number, choice and state of each trial.
        """
        import optuna

        trials = dict[tuple[str, ...], list[Trial]]()
        for number in range(self._count):
            sampler = optuna.samplers.TPESampler(seed=self._sweep.first + number)
            self._study.sampler = sampler
            trial = self._study.ask()
            choice = {key: self._suggest(trial, key) for key in self._sweep.values}
            group = trials[tuple(choice.values())] = self._sweep.trials(choice)
            say(number + 1, choice, self._run(trial, group, progress))
        return [trial for group in trials.values() for trial in group]

    def _suggest(self, trial: Any, key: str) -> str:
        one = self._sweep.ranges.get(key)
        if one is None:
            return str(trial.suggest_categorical(key, self._sweep.values[key]))
        if one.whole:
            return one.text(trial.suggest_int(key, int(one.low), int(one.high), log=one.log))
        return one.text(trial.suggest_float(key, one.low, one.high, log=one.log))

    def _run(self, trial: Any, group: Sequence[Trial], progress: bool) -> str:
        """Run a trial for every seed -> its state. The first seed alone can be pruned."""
        from optuna import TrialPruned
        from optuna.trial import TrialState

        before = self._before(group[0])
        for number, measure in before.items():
            trial.report(measure, number)

        def watch(row: Mapping[str, Any]) -> None:
            number, value = row["round"], row.get(self._column)
            if value is not None and number not in before:
                trial.report(value, number)
                if number < self._rounds and trial.should_prune():
                    raise TrialPruned(f"after round {number}: worse than the median then")

        state = "finished"
        for index, one in enumerate(group):
            try:
                state = run_trial(one, progress, on_evaluation=[] if index else [watch])
            except TrialPruned as why:
                write_atomic(one.folder / PRUNED, f"{why}\n")
                state = "pruned"
            if state != "finished":
                break
        value = results(group)[0].value(self._sweep.by) if state == "finished" else None
        failed = TrialState.PRUNED if state == "pruned" else TrialState.FAIL
        self._study.tell(trial, value, state=None if value is not None else failed)
        return state

    def _before(self, trial: Trial) -> dict[int, float]:
        """{round: value} of what a run has measured before."""
        if state_of(trial.folder) in ("new", "failed"):
            return {}
        run = load_run(trial.folder)
        rows, values = measured(run, self._column)
        return dict(zip(run.rounds[rows].tolist(), values.tolist(), strict=True))
