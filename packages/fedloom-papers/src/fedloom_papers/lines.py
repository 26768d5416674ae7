"""Lines of evidence: one JSON object per finished run, from which alone tables are made."""

from __future__ import annotations

import datetime
import functools
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedloom._version import __version__
from fedloom.core.commit import own_commit
from fedloom.errors import CheckpointError, DataError
from fedloom.report.curve_data import measured
from fedloom.report.runs import Run, load_run
from fedloom.storage.identity import FREE, flatten

from .entry import STUDIES
from .plan import PaperRun

Line = dict[str, Any]
NAME = "lines.jsonl"
_AGAIN = "remove the line, and the same command makes it again from the run's folder"
_NEEDED = ("digest", "seed", "state", "settings", "version")
_PLACES = 6  # of a value
_POINTS = 200  # of a curve, but for that of the headline metric, which targets are read from
_SIZES = ("test_", "local_", "explored@", "replaced@")  # columns of sub-models


def read(file: Path) -> list[Line]:
    """The lines of a file; none if there is no file.

    A last line without its end is one that is being written, or that a kill cut off, and is left
    out. Raises DataError, with file and line, for any other line that is no JSON object or lacks a
    key.
    """
    if not file.is_file():
        return []
    text = file.read_text(encoding="utf-8")
    whole = text if text.endswith("\n") else text[: text.rfind("\n") + 1]
    out: list[Line] = []
    for number, line in enumerate(whole.splitlines(), start=1):
        where = f"{file}, line {number}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{where} is no JSON ({error.msg}); {_AGAIN}") from error
        if not isinstance(record, dict):
            raise DataError(f"{where} is no object: {line[:60]}; {_AGAIN}")
        if missing := [key for key in _NEEDED if key not in record]:
            raise DataError(f"{where} has no {', '.join(missing)}; {_AGAIN}")
        out.append(record)
    return out


def evidence(folder: Path) -> list[Line]:
    """The lines of a folder of runs, after the older ones of our studies, docs/results/STUDY.jsonl
    beside the folder: those have no digest, and are known by what was typed.
    """
    files = [folder.parent / f"{name}.jsonl" for name in STUDIES]
    return [line for file in (*files, folder / NAME) for line in read(file)]


def append(file: Path, line: Mapping[str, Any]) -> None:
    """Add a line and force it to the disk. A line that a kill cut off is removed first."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab+") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(0)
            whole = log.read().rfind(b"\n") + 1
            if whole < size:
                log.truncate(whole)
            log.write(json.dumps(line).encode() + b"\n")
            log.flush()
            os.fsync(log.fileno())
    except OSError as error:
        raise CheckpointError(
            f"'{file}' cannot be written: {error.strerror or error}; the run is kept, and the same "
            "command adds its line"
        ) from error


def line_of(run: PaperRun, failure: str = "") -> Line:
    """The line of a finished run, from its folder; failure: why a client failed, if one did.

    Values of accuracy are shares; curves are [round, value] with six significant digits.
    """
    line: Line = {
        "paper": run.protocol.recipe.partition("_")[0],
        "recipe": run.recipe,
        "changes": list(run.changes),
        "scale": run.scale,
        "digest": run.digest,
        "seed": run.seed,
        "state": "failed" if failure else "finished",
        "settings": settings_of(run.config.values),
        **code_version(),
        "date": datetime.date.today().isoformat(),
    }
    if failure:
        return line | {"reason": failure}
    loaded = load_run(run.folder)
    summary = loaded.summary
    keys = ("rounds", "parameters", "population", "bytes_up", "bytes_down", "seconds")
    return line | {k: summary[k] for k in keys} | _measured(loaded)


def settings_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration's settings that decide numbers, with dotted keys."""
    return flatten({k: v for k, v in values.items() if k not in FREE})


def _measured(run: Run) -> Line:
    """What a run has measured by round, and at its end."""
    metric, summary = run.metric, run.summary
    columns = {
        "curve": f"test_{metric.name}",
        "validation": f"validation_{metric.name}",
        "train_loss": "train_loss",
        "test_loss": "test_loss",
        "delta_square": "delta_square",
        "residual_square": "residual_square",
        "untrained": "untrained",
    }
    sizes = {c: c for c in run.columns if "@" in c and c.startswith(_SIZES)}
    thin = max(1, len(run.rounds) // _POINTS)
    curves = {
        name: _curve(run, column, 1 if name == "curve" else thin)
        for name, column in (columns | sizes).items()
    }
    clients = run.clients.get("submodel") or run.clients
    return {
        "metric": metric.name,
        "curves": {name: curve for name, curve in curves.items() if curve},
        "seconds_per_round": summary["seconds_per_round"],
        "engine": summary.get("engine", ""),
        "cohort": float(run.columns["cohort"].mean()),
        "sizes": summary.get("sizes", {}),
        "clients": [_short(v) for v in clients.get("values") or []],
    }


def _curve(run: Run, column: str, step: int) -> list[list[float]]:
    """[round, value] where a column was measured and is finite: the last, and every step-th."""
    rows, values = measured(run, column)
    pairs = [(int(run.rounds[i]), float(v)) for i, v in zip(rows, values, strict=True)]
    last = pairs[-1][0] if pairs else 0
    selected = [(t, v) for t, v in pairs if math.isfinite(v) and (t == last or t % step == 0)]
    return [[t, _short(v)] for t, v in selected]


def _short(value: float | None) -> Any:
    return None if value is None else float(f"{value:.{_PLACES}g}")


# -------------------------------------------------------------------------------------- who made it
@functools.cache
def code_version() -> dict[str, str | None]:
    """What a line says of the code that ended its run: fedloom's version and commit. Asked once, so
    before the first run: a run takes long, and files change meanwhile.
    """
    return {"version": __version__, "commit": own_commit()}


# ------------------------------------------------------------------------------- which lines count
def latest(lines: Iterable[Line], runs: Iterable[PaperRun] = ()) -> dict[tuple[str, int], Line]:
    """{(digest, seed): line}, of several of one run the last. runs: to whom older lines, which have
    no digest, may belong; one is used until the same recipe and changes have run again.
    """
    digests = {run_key(run.recipe, run.changes): run.digest for run in runs}
    older, by_run, again = {}, {}, set()
    for line in lines:
        changes = tuple(line.get("changes", ()))
        digest = digests.get(run_key(line.get("recipe", ""), changes), "")
        if line["digest"]:
            by_run[line["digest"], line["seed"]] = line
            again |= {(digest, line["seed"])} if digest == line["digest"] else set()
        elif digest:
            older[digest, line["seed"]] = line
    return by_run | {key: line for key, line in older.items() if key not in again}


# how a run is computed, and what is read from its curve; the seed stands beside them
_APART = {*FREE, "memory", "seed", "evaluate.target"}


@functools.cache
def run_key(recipe: str, changes: tuple[str, ...], without: tuple[str, ...] = ()) -> frozenset[str]:
    """What a run is known by: its recipe and the changes that decide its numbers, but for some.

    >>> sorted(run_key("digits", ("local.lr=1", "local.lr=0.10", "seed=1")))
    ['digits', 'local.lr=0.1']
    """
    values = dict(c.replace(" ", "").split("=", 1) for c in changes)
    settings = {
        f"{key}={_plain(value)}"
        for key, value in values.items()
        if key not in without and not {key, key.partition(".")[0]} & _APART
    }
    return frozenset({recipe, *settings})


def _plain(value: str) -> str:
    """A number as it is shortest: 10 and 10.0 are one setting."""
    try:
        return f"{float(value):.12g}"
    except ValueError:
        return value
