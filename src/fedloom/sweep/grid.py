"""The runs of a sweep, of which every combination of values is one."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..config import Config, parse_override, resolve
from ..config.labels import folder_name
from ..config.overrides import METRICS, canonical
from ..config.sources import load
from ..core.curves import last_tenth
from ..core.user_paths import user_path
from ..data import FederatedData
from ..engines import is_auto
from ..errors import ClientError, ConfigError, FedloomError
from ..report.curve_data import mean, measured, sd
from ..report.runs import Run, load_run
from ..storage.atomic import make_folder, write_atomic
from ..storage.identity import FREE, bits_of, digest, run_digest
from ..storage.run_directory import RunDirectory
from ..storage.seal import Seal, ended

VALIDATION = 0.1  # share held out for the choice if the recipe holds out none
# in the folder of a run that did not finish, and will not: the reason
FAILURE, PRUNED = "failure.txt", "pruned.txt"
_SWEEP = "sweep.json"  # in a sweep's folder: what its runs share


@dataclass(frozen=True, eq=False)
class Trial:
    """One run. choice: {setting: its value, as it was typed}."""

    choice: Mapping[str, str]
    seed: int
    config: Config
    folder: Path

    @property
    def title(self) -> str:
        """What it is, for progress."""
        words = [f"{key}={value}" for key, value in self.choice.items()]
        return f"{self.folder.parent.name}: {' '.join([*words, f'seed={self.seed}'])}"

    @property
    def rounds(self) -> int:
        """How many rounds it has in all."""
        return int(self.config.values["rounds"])


@dataclass(frozen=True)
class Row:
    """A combination's results over its finished seeds: mean and standard deviation (None for one
    seed) of the metric on the validation split and on the test set, of both the mean of the last
    tenth of evaluations.
    """

    choice: Mapping[str, str]
    seeds: int
    validation: tuple[float, float | None] | None
    test: tuple[float, float | None] | None
    failures: tuple[str, ...]
    pruned: bool = False

    def value(self, by: str) -> float | None:
        """The mean that the choice is made by."""
        found = self.validation if by == "validation" else self.test
        return None if found is None else found[0]


# ------------------------------------------------------------------------------------ what to run
def split_values(text: str) -> list[str]:
    """Cut at the commas outside of brackets, braces and quotes.

    >>> split_values("0.1,0.3"), split_values("[64, 64],[128]"), split_values("adam")
    (['0.1', '0.3'], ['[64, 64]', '[128]'], ['adam'])
    """
    parts, depth, quote, start = [], 0, "", 0
    for at, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        elif sign in "[{":
            depth += 1
        elif sign in "]}":
            depth -= 1
        elif sign == "," and not depth:
            parts.append(text[start:at])
            start = at + 1
    return [part.strip() for part in [*parts, text[start:]]]


def values_of(word: str) -> list[str]:
    """What is to be tried of a change key=value; metrics, which may be several, are one value.

    >>> values_of("local.lr=0.1,0.3"), values_of("metrics=auc,f1")
    (['0.1', '0.3'], ['auc,f1'])
    """
    key, _, text = (part.strip() for part in word.partition("="))
    return [text] if key == METRICS else split_values(text)


def split_grid(words: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """-> the changes that all runs share, and {key: values} to try.

    Raises ConfigError for a key that is given twice, for an empty or a repeated value, and for
    seeds, which are not a setting to choose.
    """
    shared, axes = list[str](), dict[str, list[str]]()
    for word in canonical(words):
        key, _ = parse_override(word)
        values = values_of(word)
        if len(values) == 1:
            if re.fullmatch(r"[\d.eE+-]+\.\.[\d.eE+-]+(:log)?", values[0]):
                raise ConfigError(f"'{word}' is a range, which a search tries: give --trials too")
            shared.append(word)
            continue
        refuse_axis(word, key, values, axes)
        axes[key] = values
    return shared, axes


def refuse_axis(word: str, key: str, values: Sequence[str], tried: Collection[str]) -> None:
    """Raise ConfigError for a key that is no choice or tried already, and for values that are empty
    or repeated.
    """
    if key == "seed":
        raise ConfigError(
            f"'{word}': the seed is nothing to choose; give seeds={max(len(values), 2)}"
        )
    if key in tried:
        raise ConfigError(f"'{word}': {key} is tried twice; list all its values once")
    if "" in values or len(set(values)) < len(values):
        raise ConfigError(f"'{word}': a value is empty or there twice; give each one once")


def plan(
    source: str | Path,
    words: Sequence[str],
    seeds: int = 1,
    out: str | Path | None = None,
    by: str = "validation",
) -> list[Trial]:
    """Every run of a sweep, all configurations checked. Seeds count from the recipe's own; out is
    runs/sweep-NAME if nothing is said, with the parts of the method that the line names behind it.

    by: "validation" holds out a tenth of the training data if the recipe holds out nothing.
    Raises ConfigError for whatever is wrong with any of them.
    """
    shared, axes = split_grid(words)
    if not axes:
        raise ConfigError(
            "nothing to try: give a setting several values, as in local.lr=0.03,0.1,0.3"
        )
    base = Base.of(source, shared, {k: v[0] for k, v in axes.items()}, seeds, out, by)
    choices = (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))
    return [trial for choice in choices for trial in base.trials(choice)]


@dataclass(frozen=True, eq=False)
class Base:
    """What the combinations of a sweep share. first: the seed of each one's first run."""

    source: str | Path
    shared: tuple[str, ...]
    folder: Path
    first: int
    seeds: int

    @classmethod
    def of(
        cls,
        source: str | Path,
        shared: Sequence[str],
        example: Mapping[str, str],
        seeds: int,
        out: str | Path | None,
        by: str,
    ) -> Base:
        """example: one combination, to see what the recipe says for itself."""
        first = resolve(source, [*shared, *(f"{k}={v}" for k, v in example.items())]).values
        fixed = {word.partition("=")[0].strip().removesuffix(".name") for word in shared}
        # methods are tuned one after the other
        name = f"sweep-{folder_name(first, fixed)}"
        folder = user_path(out) if out is not None else Path("runs") / name
        if by == "validation" and not first["evaluate"].get("validation"):
            shared = [*shared, f"evaluate.validation={VALIDATION}"]
        return cls(source, tuple(shared), folder, int(first["seed"]), seeds)

    def trials(self, choice: Mapping[str, str]) -> list[Trial]:
        """The runs of a combination, one for each seed."""
        changes = [*self.shared, *(f"{key}={value}" for key, value in choice.items())]
        out = []
        for seed in range(self.first, self.first + self.seeds):
            config = resolve(self.source, [*changes, f"seed={seed}"])
            out.append(Trial(choice, seed, config, self.folder / _name(choice, seed, config)))
        return out


class KeptData:
    """The data of the last run, kept for the next one that shares them."""

    def __init__(self) -> None:
        self._key = ""
        self._data: FederatedData | None = None

    def of(self, config: Config) -> FederatedData:
        """The data of a configuration. Raises ConfigError or DataError."""
        values = config.values
        drawn = values["seed"] if "tests" in values["data"] else None  # of clients' test sets
        key = digest([values["data"], values["dtype"], drawn])
        if key != self._key or self._data is None:
            self._key, self._data = "", None  # the old ones first, for both may not fit
            self._key, self._data = key, config.data()
        return self._data


def check_all(trials: Sequence[Trial], kept: KeptData | None = None) -> None:
    """Build every combination that has not begun, with its data and its model, and train nothing,
    so that errors come now and not hours later. kept: data that a check before may have loaded.

    Raises ConfigError, naming the combination.
    """
    seen, kept = set[tuple[Any, ...]](), kept or KeptData()
    for trial in trials:
        key = (trial.folder.parent, *trial.choice.values())
        if key in seen or state_of(trial.folder) != "new":
            continue
        seen.add(key)
        try:
            experiment = trial.config.experiment(data=kept.of(trial.config))
            experiment.engine = "serial" if is_auto(experiment.engine) else experiment.engine
            experiment.build()
        except FedloomError as error:
            words = " ".join(f"{k}={v}" for k, v in trial.choice.items())
            raise ConfigError(f"{words}: {error}; nothing was run") from error


def claim(folder: Path, source: str | Path, words: Sequence[str], by: str) -> None:
    """Note in a sweep's folder what its runs share. Raises ConfigError for a folder with a sweep of
    other settings, whose runs would stand among these.
    """
    shared = [word for word in split_grid(words)[0] if word.partition("=")[0].strip() != "seed"]
    shared = sorted(w for w in shared if re.split(r"[.=]", w)[0].strip() not in FREE)
    mine = {"by": by, "settings": digest(load(source)[0]), "changes": shared}
    file = folder / _SWEEP
    before = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else mine
    if before != mine:
        other = sorted({*before.get("changes", ())} ^ {*shared})
        said = ", ".join(other) or ("--by" if before.get("by") != by else str(source))
        raise ConfigError(
            f"'{folder}' holds a sweep with other settings ({said} differs); give another --out"
        )
    make_folder(folder)
    write_atomic(file, json.dumps(mine))


def _name(choice: Mapping[str, str], seed: int, config: Config) -> str:
    """A folder's name: the tried values, and the hash of all settings that decide the numbers."""
    words = [re.sub(r"[^\w.=+-]+", "-", f"{k.split('.')[-1]}={v}") for k, v in choice.items()]
    return f"{'_'.join(words)[:80].strip('-')}-seed{seed}-{run_digest(config.values)[:8]}"


# ------------------------------------------------------------------------------------------ to run
def state_of(folder: Path) -> str:
    """ "new", "begun", "finished", "failed" or "pruned"."""
    for file, state in ((FAILURE, "failed"), (PRUNED, "pruned")):
        if (folder / file).is_file():
            return state
    if ended(folder, Seal(folder).read_object("summary.json")):
        return "finished"
    return "begun" if (folder / "config.toml").is_file() else "new"


def run_trial(trial: Trial, progress: bool = False, **more: Any) -> str:
    """Run a trial, continue it, or skip it if it is finished, failed or pruned -> its state. more:
    as of Config.experiment, such as data that are loaded already.

    A run whose client fails, as with a learning rate that is too high, is a result too: the reason
    stays in its folder, and the sweep goes on. A run that has begun continues in the engine it
    began with. Raises any other error of a run.
    """
    state = state_of(trial.folder)
    if state in ("finished", "failed", "pruned"):
        return state
    experiment = trial.config.experiment(**more)
    try:
        if state == "begun":
            own = str(RunDirectory(trial.folder).read_config().get("engine", "serial"))
            if bits_of(own) != bits_of(str(trial.config.values["engine"])):
                values = {**trial.config.values, "engine": own}
                experiment = replace(trial.config, values=values).experiment(**more)
            experiment.resume(trial.folder, progress=progress)
        else:
            experiment.run(trial.folder, progress=progress)
    except ClientError as error:
        write_atomic(trial.folder / FAILURE, f"{error}\n")
    return state_of(trial.folder)


# --------------------------------------------------------------------------------- what came of it
def results(trials: Sequence[Trial]) -> list[Row]:
    """One row per combination, in the order of the trials; means over the seeds that finished."""
    rows = []
    by_choice: dict[tuple[str, ...], list[Trial]] = {}
    for trial in trials:
        by_choice.setdefault(tuple(trial.choice.values()), []).append(trial)
    for group in by_choice.values():
        done = [load_run(t.folder) for t in group if state_of(t.folder) == "finished"]
        failed = [t.folder / FAILURE for t in group if state_of(t.folder) == "failed"]
        rows.append(
            Row(
                group[0].choice,
                len(done),
                _mean([_lately(run, "validation") for run in done]),
                _mean([_lately(run, "test") for run in done]),
                tuple(file.read_text(encoding="utf-8").strip() for file in failed),
                any(state_of(t.folder) == "pruned" for t in group),
            )
        )
    return rows


def _lately(run: Run, split: str) -> float | None:
    """A run's metric on a split: the mean of the last tenth of its evaluations."""
    return last_tenth(measured(run, f"{split}_{run.metric.name}")[1].tolist())


def _mean(values: Sequence[float | None]) -> tuple[float, float | None] | None:
    """Mean and standard deviation over seeds; None if one of them has no value."""
    middle = mean(values)
    return None if middle is None or None in values else (middle, sd(values))


def best_of(rows: Sequence[Row], seeds: int, by: str, higher: bool | None = True) -> Row | None:
    """The best combination, of those whose every seed has finished; None if there is none."""
    whole = [row for row in rows if row.seeds == seeds and row.value(by) is not None]
    pick = max if higher else min
    return pick(whole, key=lambda row: row.value(by) or 0.0) if whole else None
