"""A search for good values by Optuna: each trial is a run as in a grid, bad ones are stopped early,
and what was tried is kept in the sweep's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..core.extras import need
from ..errors import ConfigError
from ..storage.atomic import write_atomic
from ..storage.identity import digest
from .sweep import Sweep, results
from .trial import PRUNED, Trial, check_all, run_trial

_FILE = "optuna.log"  # what was tried, in the sweep's folder
_UNPRUNED = 4  # trials that are run to their end before any is pruned
Say = Callable[[int, Mapping[str, str], str], None]


class _Pruned(Exception):  # noqa: N818 # no error: it ends one run, and the search goes on
    """A run is stopped, as it is worse than the median of those before it at that round."""


class Search:
    """A search in the folder of a sweep, new or begun. count: trials in all.

    Raises ConfigError if Optuna is missing, for what cannot be run, and for a folder with a search
    of other settings.
    """

    def __init__(self, sweep: Sweep, count: int) -> None:
        need("optuna", "--trials", "optuna")
        self._sweep, self._count = sweep, count
        first = sweep.trials(sweep.example)[:1]
        check_all(first)
        loop = first[0].config.experiment().build()
        self._column, self._rounds = f"{sweep.by}_{loop.headline}", first[0].rounds
        self._study = self._opened(
            "maximize" if loop.evaluator.curve.higher_is_better else "minimize"
        )

    def _opened(self, direction: str) -> Any:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sweep = self._sweep
        sweep.folder.mkdir(parents=True, exist_ok=True)
        study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(sweep.folder / _FILE))),
            study_name="sweep",
            direction=direction,
            load_if_exists=True,
            pruner=optuna.pruners.MedianPruner(_UNPRUNED, n_warmup_steps=self._rounds // 4),
        )
        space = dict(sweep.values) | {key: vars(one) for key, one in sweep.ranges.items()}
        asked = digest([str(sweep.source), sweep.shared, sweep.seeds, space, sweep.by])
        if study.user_attrs.setdefault("asked", asked) != asked:
            raise ConfigError(
                f"'{sweep.folder}' holds a search with other settings; choose another --out"
            )
        study.set_user_attr("asked", asked)
        for trial in study.get_trials(states=[optuna.trial.TrialState.RUNNING]):  # it was stopped
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
            study.enqueue_trial(trial.params)
        return study

    def run(self, progress: bool, say: Say) -> None:
        """Run what is missing. say: told number, choice and state of each trial that has ended."""
        import optuna

        while (done := len(self._ended())) < self._count:
            # of each trial's own seed, so that a search that was stopped tries what it would have
            self._study.sampler = optuna.samplers.TPESampler(seed=self._sweep.first + done)
            trial = self._study.ask()
            choice = {key: self._suggested(trial, key) for key in self._sweep.values}
            trial.set_user_attr("choice", choice)
            say(done + 1, choice, self._run(trial, choice, progress))

    def _suggested(self, trial: Any, key: str) -> str:
        one = self._sweep.ranges.get(key)
        if one is None:
            return str(trial.suggest_categorical(key, self._sweep.values[key]))
        if one.whole:
            return one.text(trial.suggest_int(key, int(one.low), int(one.high), log=one.log))
        return one.text(trial.suggest_float(key, one.low, one.high, log=one.log))

    def _run(self, trial: Any, choice: Mapping[str, str], progress: bool) -> str:
        """Run a trial for every seed -> its state. The first seed alone can be pruned."""
        from optuna.trial import TrialState

        own, state = self._sweep.trials(choice), "finished"

        def watch(row: Mapping[str, Any]) -> None:
            if row.get(self._column) is not None:
                trial.report(row[self._column], row["round"])
                if row["round"] < self._rounds and trial.should_prune():
                    raise _Pruned(f"after round {row['round']}: worse than the median then")

        for place, one in enumerate(own):
            try:
                state = run_trial(one, progress, on_evaluation=[] if place else [watch])
            except _Pruned as why:
                write_atomic(one.folder / PRUNED, f"{why}\n")
                state = "pruned"
            if state != "finished":
                break
        value = results(own)[0].value(self._sweep.by) if state == "finished" else None
        failed = TrialState.PRUNED if state == "pruned" else TrialState.FAIL
        trial.set_user_attr("ended", True)
        self._study.tell(trial, value, state=None if value is not None else failed)
        return state

    def _ended(self) -> list[Any]:
        return [t for t in self._study.get_trials(deepcopy=False) if t.user_attrs.get("ended")]

    def trials(self) -> list[Trial]:
        """The runs of every trial that has ended, each combination once."""
        choices = {tuple(c.items()): c for c in (t.user_attrs["choice"] for t in self._ended())}
        return [trial for choice in choices.values() for trial in self._sweep.trials(choice)]
