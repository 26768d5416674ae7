"""A search for good values by Optuna: each trial is a run as in a grid, bad ones are stopped early,
and what was tried is kept in the sweep's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import parse_override
from ..config.overrides import canonical
from ..core.extras import need
from ..errors import ConfigError
from ..storage.atomic import write_atomic
from ..storage.identity import digest
from .grid import PRUNED, Base, Trial, check_all, refuse_axis, results, run_trial, values_of

_FILE = "optuna.log"  # what was tried, in the sweep's folder
_UNPRUNED = 4  # trials that are run to their end before any is pruned
Say = Callable[[int, Mapping[str, str], str], None]


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, both included; log: each factor is as likely as another."""

    low: float
    high: float
    whole: bool
    log: bool

    def text(self, value: float) -> str:
        """A number as a setting; with four digits, which suffice to choose by.

        >>> Range(0, 1, False, False).text(0.0123456), Range(1, 9, True, False).text(3.0)
        ('0.01235', '3')
        """
        return str(int(value)) if self.whole else repr(float(f"{value:.4g}"))


Space = dict[str, Range | list[str]]


def split_space(words: Sequence[str]) -> tuple[list[str], Space]:
    """-> the changes that all runs share, and {key: its range or values}.

    Raises ConfigError for what is no range, and without anything to try.

    >>> split_space(["local.lr=0.01..1:log", "local.batch=10,20", "rounds=5"])[1]["local.batch"]
    ['10', '20']
    """
    shared, space = [], Space()
    for word in canonical(words):
        key, _ = parse_override(word)
        text = word.partition("=")[2].strip()
        values = values_of(word)
        if len(values) == 1 and ".." not in text:
            shared.append(word)
            continue
        refuse_axis(word, key, values, space)
        space[key] = values if len(values) > 1 else _range(word, text)
    if not space:
        raise ConfigError(
            "nothing to try: give a setting a range, as in local.lr=0.01..1:log, or several values"
        )
    return shared, space


def _range(word: str, text: str) -> Range:
    text, _, scale = text.partition(":")
    ends = text.split("..")
    try:
        low, high = map(float, ends)
    except ValueError:
        raise ConfigError(f"'{word}': a range is two numbers, as in local.lr=0.01..1") from None
    whole = all(end.strip().lstrip("+-").isdigit() for end in ends)
    if not low < high < float("inf") or scale not in ("", "log"):
        raise ConfigError(f"'{word}': a range goes up, as 0.01..1, or 0.01..1:log for factors")
    if scale and low <= 0:
        raise ConfigError(f"'{word}': with :log a range begins above 0")
    return Range(low, high, whole, bool(scale))


class _Pruned(Exception):  # noqa: N818 # no error: it ends one run, and the search goes on
    """A run is stopped, as it is worse than the median of those before it at that round."""


class Search:
    """A search in the folder of its sweep, new or begun. count: trials in all.

    Raises ConfigError if Optuna is missing, for what cannot be run, and for a folder with a search
    of other settings.
    """

    def __init__(
        self,
        source: str | Path,
        words: Sequence[str],
        count: int,
        seeds: int = 1,
        out: str | Path | None = None,
        by: str = "validation",
    ) -> None:
        need("optuna", "--trials", "optuna")
        shared, self._space = split_space(words)
        example = {
            k: v.text(v.low) if isinstance(v, Range) else v[0] for k, v in self._space.items()
        }
        self._base = Base.of(source, shared, example, seeds, out, by)
        self._count, self._by = count, by
        first = self._base.trials(example)[:1]
        check_all(first)
        loop = first[0].config.experiment().build()
        self._metric, self._rounds = loop.headline, int(first[0].config.values["rounds"])
        self._study = self._opened(
            "maximize" if loop.evaluator.curve.higher_is_better else "minimize"
        )

    @property
    def folder(self) -> Path:
        """Where the sweep's runs and its study are kept."""
        return self._base.folder

    def _opened(self, direction: str) -> Any:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.folder.mkdir(parents=True, exist_ok=True)
        study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(self.folder / _FILE))),
            study_name="sweep",
            direction=direction,
            load_if_exists=True,
            pruner=optuna.pruners.MedianPruner(_UNPRUNED, n_warmup_steps=self._rounds // 4),
        )
        space = {k: vars(v) if isinstance(v, Range) else v for k, v in self._space.items()}
        asked = digest(
            [str(self._base.source), self._base.shared, self._base.seeds, space, self._by]
        )
        if study.user_attrs.setdefault("asked", asked) != asked:
            raise ConfigError(
                f"'{self.folder}' holds a search with other settings; choose another --out"
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
            self._study.sampler = optuna.samplers.TPESampler(seed=self._base.first + done)
            trial = self._study.ask()
            choice = {key: self._suggested(trial, key) for key in self._space}
            trial.set_user_attr("choice", choice)
            say(done + 1, choice, self._run(trial, choice, progress))

    def _suggested(self, trial: Any, key: str) -> str:
        space = self._space[key]
        if not isinstance(space, Range):
            return str(trial.suggest_categorical(key, space))
        if space.whole:
            return space.text(
                trial.suggest_int(key, int(space.low), int(space.high), log=space.log)
            )
        return space.text(trial.suggest_float(key, space.low, space.high, log=space.log))

    def _run(self, trial: Any, choice: Mapping[str, str], progress: bool) -> str:
        """Run a trial for every seed -> its state. The first seed alone can be pruned."""
        from optuna.trial import TrialState

        own, state = self._base.trials(choice), "finished"
        column = f"{'validation' if self._by == 'validation' else 'test'}_{self._metric}"

        def watch(row: Mapping[str, Any]) -> None:
            if row.get(column) is not None:
                trial.report(row[column], row["round"])
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
        value = results(own)[0].value(self._by) if state == "finished" else None
        failed = TrialState.PRUNED if state == "pruned" else TrialState.FAIL
        trial.set_user_attr("ended", True)
        self._study.tell(trial, value, state=None if value is not None else failed)
        return state

    def _ended(self) -> list[Any]:
        return [t for t in self._study.get_trials(deepcopy=False) if t.user_attrs.get("ended")]

    def trials(self) -> list[Trial]:
        """The runs of every trial that has ended, each combination once."""
        choices = {tuple(c.items()): c for c in (t.user_attrs["choice"] for t in self._ended())}
        return [trial for choice in choices.values() for trial in self._base.trials(choice)]
