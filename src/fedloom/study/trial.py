"""A run of a study: its settings and folder, what became of it, and how it goes on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from ..config import Config, resolve
from ..data import FederatedData
from ..engines import is_auto
from ..errors import ClientError, ConfigError, FedloomError
from ..storage.atomic import write_atomic
from ..storage.identity import bits_of, digest, run_digest
from ..storage.run_directory import RunDirectory
from ..storage.seal import Seal, is_finished

# in the folder of a run that did not finish, and will not: the reason
FAILURE, PRUNED = "failure.txt", "pruned.txt"
OVER = ("finished", "failed", "pruned")


class Run(Protocol):
    """A trial, or a run of a paper's table. title: for progress; rounds: in all."""

    @property
    def title(self) -> str: ...
    @property
    def rounds(self) -> int: ...
    @property
    def config(self) -> Config: ...
    @property
    def folder(self) -> Path: ...


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
        return f"{self.folder.parent.name}: {as_words({**self.choice, 'seed': str(self.seed)})}"

    @property
    def rounds(self) -> int:
        """How many rounds it has in all."""
        return int(self.config.values["rounds"])


def as_words(choice: Mapping[str, str]) -> str:
    """A choice as it is typed.

    >>> as_words({"local.lr": "0.1", "cohort": "4"})
    'local.lr=0.1 cohort=4'
    """
    return " ".join(f"{key}={value}" for key, value in choice.items())


def trial_in(
    folder: Path, source: str | Path, common: Sequence[str], choice: Mapping[str, str], seed: int
) -> Trial:
    """A trial in a folder below `folder`, named by the tried values and a hash of all settings that
    decide the numbers. shared: changes before the choice. Raises ConfigError.
    """
    pairs = [f"{key}={value}" for key, value in choice.items()]
    config = resolve(source, [*common, *pairs, f"seed={seed}"])
    words = [re.sub(r"[^\w.=+-]+", "-", re.sub(r"^[^=]*\.", "", pair)) for pair in pairs]
    name = f"{'_'.join(words)[:80].strip('-')}-seed{seed}-{run_digest(config.values)[:8]}"
    return Trial(choice, seed, config, folder / name)


class DataCache:
    """The data of the last run, kept for the next one that shares them."""

    def __init__(self) -> None:
        self._key = ""
        self._data: FederatedData | None = None

    def of(self, config: Config) -> FederatedData:
        """The data of a configuration. Raises ConfigError or DataError."""
        values = config.values
        seed = values["seed"] if "tests" in values["data"] else None  # of clients' test sets
        key = digest([values["data"], values["dtype"], seed])
        if key != self._key or self._data is None:
            self._key, self._data = "", None  # the old ones first, for both may not fit
            self._key, self._data = key, config.data()
        return self._data


def check_all(trials: Sequence[Trial], cache: DataCache | None = None) -> None:
    """Build every combination that has not begun, with its data and its model, and train nothing:
    so errors come now and not hours later. Raises ConfigError, naming the combination.
    """
    keys, cache = set[tuple[Any, ...]](), cache or DataCache()
    for trial in trials:
        key = (trial.folder.parent, *trial.choice.values())
        if key in keys or state_of(trial.folder) != "new":
            continue
        keys.add(key)
        try:
            experiment = trial.config.experiment(data=cache.of(trial.config))
            experiment.engine = "serial" if is_auto(experiment.engine) else experiment.engine
            experiment.build()
        except FedloomError as error:
            raise ConfigError(f"{as_words(trial.choice)}: {error}; nothing was run") from error


def state_of(folder: Path) -> str:
    """ "new", "begun", "finished", "failed" or "pruned"."""
    for file, state in ((FAILURE, "failed"), (PRUNED, "pruned")):
        if (folder / file).is_file():
            return state
    if is_finished(folder, Seal(folder).read_object("summary.json")):
        return "finished"
    return "begun" if (folder / "config.toml").is_file() else "new"


def run_trial(trial: Run, progress: bool = False, **more: Any) -> str:
    """Run a trial, continue it, or skip it if it is over -> its state. more: as of
    Config.experiment, such as data that are loaded already.

    A run whose client fails, as with a learning rate that is too high, is a result too: the reason
    stays in its folder, and the others go on. A run that has begun continues in the engine it
    began with. Raises any other error of a run.
    """
    state, config = state_of(trial.folder), trial.config
    if state in OVER:
        return state
    if state == "begun":
        engine = str(RunDirectory(trial.folder).read_config().get("engine", "serial"))
        if bits_of(engine) != bits_of(str(config.values["engine"])):
            config = replace(config, values={**config.values, "engine": engine})
    experiment = config.experiment(**more)
    try:
        go = experiment.resume if state == "begun" else experiment.run
        go(trial.folder, progress=progress)
    except ClientError as error:
        write_atomic(trial.folder / FAILURE, f"{error}\n")
    return state_of(trial.folder)
