"""Runs as a data frame."""

from __future__ import annotations

import glob
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedloom.core.curves import Value
from fedloom.core.extras import need
from fedloom.core.parsing import user_path
from fedloom.errors import CheckpointError
from fedloom.storage.identity import flatten

from .curve_data import tested_rows
from .runs import Run, load_run

if TYPE_CHECKING:
    import pandas

Paths = str | PathLike[str]


def load_runs(runs: Paths | Iterable[Paths], value: Value = "last-tenth") -> pandas.DataFrame:
    """One data frame of many runs: a row for each round of each run.

    runs: run directories or folders of them, as paths or patterns such as "runs/*". Columns: run
    (the directory), label, algorithm, seed and finished; then those of rounds.jsonl, missing where
    a round has none; tested, what `fedloom compare --value` would compare if the run had ended
    there; then every setting as setting.KEY. value: see core.curves.VALUES. Raises CheckpointError
    if there is no run, and ConfigError if a run has no such value.
    """
    pandas = need("pandas", "a data frame", "report")
    frames = [_frame(load_run(path), value) for path in find_runs(runs)]
    nonempty = [frame for frame in frames if len(frame)] or frames[:1]
    table = pandas.concat(nonempty, ignore_index=True)
    settings = [column for column in table.columns if column.startswith("setting.")]
    return table[[column for column in table.columns if column not in settings] + settings]


def _frame(run: Run, value: Value) -> pandas.DataFrame:
    import pandas

    ids: dict[str, Any] = {"run": str(run.path), "label": run.label, "algorithm": run.algorithm}
    ids |= {"seed": run.seed, "finished": run.finished}
    rounds: dict[str, Any] = {n: values for n, values in run.columns.items() if n not in ids}
    rounds["round"] = run.rounds
    rounds["tested"] = pandas.Series(tested_rows(run, value), range(len(run.rounds)), dtype=float)
    flat = flatten(run.config).items()
    settings = {f"setting.{key}": str(v) if isinstance(v, list) else v for key, v in flat}
    return pandas.DataFrame({**ids, **rounds, **settings}, index=range(len(run.rounds)))


def find_runs(patterns: Paths | Iterable[Paths]) -> list[Path]:
    """Run directories of paths, patterns and folders of runs. Raises CheckpointError."""
    runs: list[Path] = []
    for one in [patterns] if isinstance(patterns, str | PathLike) else patterns:
        path = user_path(one)
        places = [path] if path.exists() else [Path(p) for p in sorted(glob.glob(str(path)))]
        inside = [
            file.parent
            for place in places
            for file in ([*place.glob("config.toml")] or sorted(place.glob("*/config.toml")))
        ]
        if not inside:
            why = "has no config.toml, nor has a folder in it" if places else "does not exist"
            raise CheckpointError(
                f"'{one}' {why}; give folders that `fedloom run` wrote (see `fedloom list runs`)"
            )
        runs += inside
    return list(dict.fromkeys(runs))
