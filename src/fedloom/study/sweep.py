"""A sweep: values KEY=A,B,C, of a search also ranges KEY=LOW..HIGH, in every combination or as many
as a search by Optuna tries; the rows that come of it, and the best one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import parse_override, resolve
from ..config.labels import folder_name
from ..config.overrides import METRICS
from ..core.curves import last_tenth
from ..core.extras import need
from ..core.parsing import user_path
from ..errors import ConfigError
from ..report.curve_data import mean, measured, sd
from ..report.runs import Run, load_run
from .trial import FAILURE, Trial, check_all, run_trial, state_of, trial_in

Values = dict[str, list[str]]  # {setting: values to try, as they were typed}


def split_values(text: str) -> list[str]:
    """Cut at the commas outside of brackets, braces and quotes.

    >>> split_values("0.1,0.3"), split_values("[64, 64],[128]"), split_values("adam")
    (['0.1', '0.3'], ['[64, 64]', '[128]'], ['adam'])
    """
    parts, depth = [""], 0
    for piece in re.findall(r""""[^"]*"?|'[^']*'?|.""", text, re.DOTALL):
        depth += (piece in "[{") - (piece in "]}")
        if piece == "," and not depth:
            parts.append("")
        else:
            parts[-1] += piece
    return [part.strip() for part in parts]


def values_of(word: str) -> list[str]:
    """What is to be tried of a change key=value; metrics, which may be several, are one value.

    >>> values_of("local.lr=0.1,0.3"), values_of("metrics=auc,f1")
    (['0.1', '0.3'], ['auc,f1'])
    """
    key, _, text = (part.strip() for part in word.partition("="))
    return [text] if key == METRICS else split_values(text)


def several(values: Sequence[str]) -> bool:
    """Whether these are two or more different values."""
    return len(values) > 1 and "" not in values and len(set(values)) == len(values)


def split_space(words: Sequence[str], ranges: bool = False) -> tuple[list[str], Values]:
    """-> the changes that all runs share, and {key: values} to try. ranges: whether a range is
    something to try, as the one value of its key.

    Raises ConfigError for a key that is given twice, for an empty or a repeated value, and for
    seeds, which are not a setting to choose.

    >>> split_space(["local.lr=0.01..1:log", "local.batch=10,20", "rounds=5"], ranges=True)
    (['rounds=5'], {'local.lr': ['0.01..1:log'], 'local.batch': ['10', '20']})
    """
    common, space = list[str](), Values()
    for word in words:
        key, _ = parse_override(word)
        values = values_of(word)
        if len(values) == 1 and not (ranges and ".." in values[0]):
            if re.fullmatch(r"[\d.eE+-]+\.\.[\d.eE+-]+(:log)?", values[0]):
                raise ConfigError(f"'{word}' is a range, which a search tries: give --trials too")
            common.append(word)
            continue
        if key == "seed":
            raise ConfigError(
                f"'{word}': the seed is nothing to choose; give seeds={max(len(values), 2)}"
            )
        if key in space:
            raise ConfigError(f"'{word}': {key} is tried twice; list all its values once")
        if len(values) > 1 and not several(values):
            raise ConfigError(f"'{word}': a value is empty or there twice; give each one once")
        space[key] = values
    return common, space


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, both included; log: each factor is as likely as another."""

    low: float
    high: float
    whole: bool
    log: bool

    @classmethod
    def of(cls, key: str, text: str) -> Range:
        """The range of a setting that is written LOW..HIGH or LOW..HIGH:log. Raises ConfigError.

        >>> Range.of("local.lr", "0.01..1:log")
        Range(low=0.01, high=1.0, whole=False, log=True)
        """
        numbers, _, scale = text.partition(":")
        ends, word = numbers.split(".."), f"'{key}={text}'"
        try:
            low, high = map(float, ends)
        except ValueError:
            raise ConfigError(f"{word}: a range is two numbers, as in local.lr=0.01..1") from None
        if not low < high < float("inf") or scale not in ("", "log"):
            raise ConfigError(f"{word}: a range goes up, as 0.01..1, or 0.01..1:log for factors")
        if scale and low <= 0:
            raise ConfigError(f"{word}: with :log a range begins above 0")
        whole = all(end.strip().lstrip("+-").isdigit() for end in ends)
        return cls(low, high, whole, bool(scale))

    def text(self, value: float) -> str:
        """A number as a setting; with four digits, which suffice to choose by.

        >>> Range(0, 1, False, False).text(0.0123456), Range(1, 9, True, False).text(3.0)
        ('0.01235', '3')
        """
        return str(int(value)) if self.whole else repr(float(f"{value:.4g}"))


VALIDATION = 0.1  # share held out for the choice if the recipe holds out none
Spread = tuple[float, float | None]  # mean and standard deviation; None for one seed


class Sweep:
    """What is tried of a recipe or file, in a folder: runs/sweep-NAME if nothing is said, with the
    parts of the method that the line names behind it.

    words: changes KEY=VALUE, of which those with several values are tried; search: so are ranges.
    seeds: of each combination, counted from the recipe's own. by: "validation" holds out a tenth of
    the training data if the recipe holds out nothing. Raises ConfigError for whatever is wrong.
    """

    def __init__(
        self,
        source: str | Path,
        words: Sequence[str],
        seeds: int = 1,
        out: str | Path | None = None,
        by: str = "validation",
        search: bool = False,
    ) -> None:
        common, self.values = split_space(words, ranges=search)
        self.ranges = {k: Range.of(k, v[0]) for k, v in self.values.items() if len(v) == 1}
        if not self.values:
            some = "several values, as in local.lr=0.03,0.1,0.3"
            if search:
                some = "a range, as in local.lr=0.01..1:log, or several values"
            raise ConfigError(f"nothing to try: give a setting {some}")
        self.example = {
            k: r.text(r.low) if (r := self.ranges.get(k)) else v[0] for k, v in self.values.items()
        }
        first = resolve(source, [*common, *(f"{k}={v}" for k, v in self.example.items())]).values
        fixed = {word.partition("=")[0].strip().removesuffix(".name") for word in common}
        # methods are tuned one after the other
        usual = Path("runs") / f"sweep-{folder_name(first, fixed)}"
        self.source, self.by = source, by
        self.first, self.seeds = int(first["seed"]), seeds
        self.folder = usual if out is None else user_path(out)
        held_out = by == "validation" and not first["evaluate"].get("validation")
        self.common = (*common, *[f"evaluate.validation={VALIDATION}"] * held_out)

    def trials(self, choice: Mapping[str, str]) -> list[Trial]:
        """The runs of a combination, one for each seed."""
        seeds = range(self.first, self.first + self.seeds)
        return [trial_in(self.folder, self.source, self.common, choice, seed) for seed in seeds]

    def grid(self) -> list[Trial]:
        """The runs of every combination, all configurations checked."""
        points = itertools.product(*self.values.values())
        choices = (dict(zip(self.values, point, strict=True)) for point in points)
        return [trial for choice in choices for trial in self.trials(choice)]


# --------------------------------------------------------------------------------- what came of it
@dataclass(frozen=True)
class Row:
    """A combination's results over its finished seeds. of: by "validation" and "test"."""

    choice: Mapping[str, str]
    seeds: int
    of: Mapping[str, Spread | None]
    failures: tuple[str, ...]

    def value(self, by: str) -> float | None:
        """The mean that the choice is made by."""
        spread = self.of[by]
        return None if spread is None else spread[0]


def results(trials: Iterable[Trial]) -> list[Row]:
    """One row per combination, in the order of the trials; means over the seeds that finished."""
    by_choice: dict[tuple[str, ...], list[Trial]] = {}
    for trial in trials:
        by_choice.setdefault(tuple(trial.choice.values()), []).append(trial)
    rows = []
    for group in by_choice.values():
        states = {trial.folder: state_of(trial.folder) for trial in group}
        runs = [load_run(folder) for folder, state in states.items() if state == "finished"]
        failed = [folder / FAILURE for folder, state in states.items() if state == "failed"]
        at_ends = {s: [at_end(run, s) for run in runs] for s in ("validation", "test")}
        spreads = {split: spread(values) for split, values in at_ends.items()}
        why = tuple(file.read_text("utf-8").strip() for file in failed)
        rows.append(Row(group[0].choice, len(runs), spreads, why))
    return rows


def at_end(run: Run, split: str) -> float | None:
    """A run's metric on a split: the mean of the last tenth of its evaluations."""
    return last_tenth(measured(run, f"{split}_{run.metric.name}")[1].tolist())


def spread(values: Sequence[float | None]) -> Spread | None:
    """Over seeds; None if one of them has no value."""
    middle = mean(values)
    return None if middle is None or None in values else (middle, sd(values))


def best_of(rows: Sequence[Row], seeds: int, by: str, higher: bool | None = True) -> Row | None:
    """The best combination, of those whose every seed has finished; None if there is none."""
    whole = [row for row in rows if row.seeds == seeds and row.value(by) is not None]
    pick = max if higher else min
    return pick(whole, key=lambda row: row.value(by) or 0.0) if whole else None


Say = Callable[[int, Mapping[str, str], str], None]


class Search:
    """A search in the folder of a sweep, new or begun. The same command makes the same choices:
    each trial has its own seed and learns what ran before from the folders. count: trials in all.
    Raises ConfigError.
    """

    def __init__(self, sweep: Sweep, count: int) -> None:
        need("optuna", "--trials", "optuna")
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._sweep, self._count = sweep, count
        first = sweep.trials(sweep.example)[:1]
        check_all(first)
        higher = first[0].config.experiment().build().evaluator.curve.higher_is_better
        self._study = optuna.create_study(direction="maximize" if higher else "minimize")

    def run(self, progress: bool, say: Say) -> list[Trial]:
        """Run what is missing -> all runs, each combination once. say: told each trial's state."""
        import optuna

        trials = dict[tuple[str, ...], list[Trial]]()
        for number in range(self._count):
            self._study.sampler = optuna.samplers.TPESampler(seed=self._sweep.first + number)
            trial = self._study.ask()
            choice = {key: self._suggest(trial, key) for key in self._sweep.values}
            group = trials[tuple(choice.values())] = self._sweep.trials(choice)
            state = "finished"
            for one in group:
                state = run_trial(one, progress) if state == "finished" else state
            value = results(group)[0].value(self._sweep.by) if state == "finished" else None
            failed = optuna.trial.TrialState.FAIL if value is None else None
            self._study.tell(trial, value, state=failed)
            say(number + 1, choice, state)
        return [trial for group in trials.values() for trial in group]

    def _suggest(self, trial: Any, key: str) -> str:
        one = self._sweep.ranges.get(key)
        if one is None:
            return str(trial.suggest_categorical(key, self._sweep.values[key]))
        kind, suggest = (int, trial.suggest_int) if one.whole else (float, trial.suggest_float)
        return one.text(suggest(key, kind(one.low), kind(one.high), log=one.log))
