"""Read run directories, finished or not, and group runs that differ only in the seed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedloom.core.parsing import parse_json, parse_toml, user_path
from fedloom.errors import CheckpointError, ConfigError
from fedloom.evaluation.declared import higher_is_better
from fedloom.storage.identity import comparable, deciding, flatten, group_of, varies
from fedloom.storage.manifest import (
    check_log,
    has_begun,
    is_finished,
    read_file,
    read_object,
    unreadable,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_SHARES = ("accuracy", "balanced_accuracy", "f1", "error")


@dataclass(frozen=True)
class Metric:
    """The headline metric of a run; a unit of "share" is shown in per cent.

    of_clients: it is the mean over clients, each on its own test rows with the model that it uses;
    else that of the server's model on the common test set. of_sites: that is where nodes measure,
    and the value is the mean of theirs, weighted by rows (an AUC of all rows needs all scores).
    """

    name: str
    higher_is_better: bool | None  # None: nobody knows
    unit: str
    of_clients: bool = False
    of_sites: bool = False

    @property
    def title(self) -> str:
        """What is measured, in words."""
        if self.of_clients:
            return f"mean client {self.name}"
        return f"mean site {self.name}" if self.of_sites else self.name

    @property
    def column(self) -> str:
        """The measured value's column in the rows."""
        return f"client_{self.name}_mean" if self.of_clients else f"test_{self.name}"

    @property
    def ema_column(self) -> str:
        """The column of the exponential moving average, which the papers compare."""
        return f"{self.column}_ema"

    def reached(self, values: Floats, target: float) -> NDArray[np.bool_]:
        """For each value, whether it reaches the target (never for NaN)."""
        if self.higher_is_better is None:
            raise ConfigError(
                f"nothing says whether the metric '{self.name}' is better higher or lower, which a "
                "target needs; run it with higher_is_better=True or False"
            )
        return values >= target if self.higher_is_better else values <= target


@dataclass(frozen=True, eq=False)
class Run:
    """One run directory.

    `columns` has one float64 array per numeric key of rounds.jsonl, of length T = finished rounds,
    NaN where a row lacks the key; `present` says which rows have it (a NaN there was measured).
    own_models: clients use models of their own (`private`, Ditto, fine-tuned), not the server's.
    """

    path: Path
    name: str
    label: str
    algorithm: str
    seed: int
    group: str
    metric: Metric
    planned: int
    finished: bool
    config: Mapping[str, Any]
    config_text: str
    summary: Mapping[str, Any]
    columns: Mapping[str, Floats]
    present: Mapping[str, NDArray[np.bool_]]
    ledger: Mapping[str, Any]
    partition: Mapping[str, Any]
    clients: Mapping[str, Any]
    environment: Mapping[str, Any]
    own_models: bool = False

    @cached_property
    def rounds(self) -> Ints:
        """Numbers of the finished rounds, from 1, ascending (T)."""
        return self._or_zero("round").astype(np.int64)

    @cached_property
    def bytes(self) -> Ints:
        """Bytes sent up and down until each round's end, all clients together (T)."""
        both = self._or_zero("bytes_down") + self._or_zero("bytes_up")
        return np.cumsum(both.astype(np.int64))

    @cached_property
    def gradients(self) -> Ints:
        """Gradients of a batch computed until each round's end, all clients together (T)."""
        return np.cumsum(self._or_zero("gradients").astype(np.int64))

    @cached_property
    def seconds(self) -> Floats:
        """Wall time until each round's end (T); zeros where it is a secret. Evaluation is left out,
        but not of a deployed run: there it is all time that passed.
        """
        return np.cumsum(self._or_zero("seconds"))

    @property
    def deployed(self) -> bool:
        """Whether its clients were elsewhere, as far as the folder says who answered."""
        return (self.path / "clients.jsonl").is_file()

    @cached_property
    def simulated(self) -> Floats:
        """Simulated seconds until each round's end; zeros without a device profile (T)."""
        return np.cumsum(self._or_zero("simulated_seconds"))

    def total(self, name: Literal["bytes", "seconds", "simulated"]) -> float | None:
        """What was spent in all; None without a round, and of time that nothing measured."""
        whole = float(getattr(self, name)[-1]) if self.rounds.size else None
        return whole if name == "bytes" else whole or None

    @property
    def at_clients(self) -> Run:
        """The same run, measured at its clients: see Metric."""
        return replace(self, metric=replace(self.metric, of_clients=True))

    @property
    def knows_clients(self) -> bool:
        """False if it was evaluated on the common test set alone."""
        return (
            f"test_{self.metric.name}" not in self.columns
            or self.at_clients.metric.column in self.columns
        )

    @property
    def target(self) -> float | None:
        """The target the run was given, in the metric's unit, if any."""
        return _number(self.summary.get("target", _table(self.config, "evaluate").get("target")))

    def _or_zero(self, column: str) -> Floats:
        values = self.columns.get(column)
        if values is None:
            values = np.zeros(len(self.columns["round"]))
        return np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that differ only in the seed, one of each. repeated: runs left out because another of
    the same seed is there; place: among the groups, from 0.
    """

    key: str
    label: str
    runs: tuple[Run, ...]
    repeated: int = 0
    place: int = 0

    @property
    def metric(self) -> Metric:
        """The metric of the runs."""
        return self.runs[0].metric

    @property
    def averaged_runs(self) -> tuple[Run, ...]:
        """The runs that means are over: the finished ones; if there are none, all with rounds."""
        finished = tuple(run for run in self.runs if run.finished)
        return finished or tuple(run for run in self.runs if run.rounds.size)

    @property
    def unfinished(self) -> int:
        """How many of the runs have not finished."""
        return sum(not run.finished for run in self.runs)

    @property
    def state(self) -> str:
        """A remark on unfinished and on repeated runs, empty if there are none."""
        same = f"{self.repeated} of a seed already there left out" if self.repeated else ""
        return ", ".join(filter(None, (self._progress, same)))

    @property
    def _progress(self) -> str:
        if not self.unfinished:
            return ""
        if self.unfinished < len(self.runs):
            return f"{self.unfinished} unfinished left out"
        last_round = max(int(run.rounds[-1]) if run.rounds.size else 0 for run in self.runs)
        return f"unfinished: {last_round} of {self.runs[0].planned} rounds"


def load_run(path: str | Path) -> Run:
    """Read a run directory; files that a killed run had not yet written are left empty. Raises
    CheckpointError if there is none, or one of its files is corrupt or was altered.
    """
    path = user_path(path)
    text, config = _read_config(path)
    summary = read_object(path, "summary.json")
    check_log(path)
    rows = read_rows(path / "rounds.jsonl")
    columns, present = _columns(rows)
    algorithm = str(summary.get("algorithm") or _table(config, "algorithm").get("name") or "?")
    rounds = int(columns["round"][-1]) if rows else 0
    clients, partition = read_object(path, "clients.json"), read_object(path, "partition.json")
    basis = str(clients.get("basis"))
    run = Run(
        path=path,
        name=str(summary.get("name") or config.get("name") or path.resolve().name),
        label=str(summary.get("label") or config.get("label") or algorithm),
        algorithm=algorithm,
        seed=int(_number(summary.get("seed", config.get("seed"))) or 0),
        group=group_of(config),
        metric=_metric(summary, columns, partition.get("site_means") or ()),
        planned=int(_number(config.get("rounds", summary.get("rounds"))) or rounds),
        finished=is_finished(path, summary),
        config=comparable(config),
        config_text=text,
        summary=summary,
        columns=columns,
        present=present,
        ledger=read_object(path, "ledger.json"),
        partition=partition,
        clients=clients,
        environment=read_object(path, "environment.json"),
        own_models=bool(config.get("private")) or basis.endswith(" models"),
    )
    if not run.own_models:
        return run
    run = run.at_clients
    if "fine-tuned" in basis:  # after the last round alone; rows have the models before it
        last = np.arange(run.rounds.size) == run.rounds.size - 1
        value = _number(summary.get(run.metric.column))
        columns[run.metric.column] = np.where(last, np.nan if value is None else value, np.nan)
        present[run.metric.column] = last
    return run


def group_runs(runs: Iterable[Run]) -> list[Group]:
    """Put runs that differ only in the seed together, groups in the order first seen. Of several
    runs of one seed the one with the most rounds counts, the last given of equals. Groups with the
    same label get the settings in which they differ added to it.

    Where clients of a run use models of their own, every run is measured at its clients (see
    Metric), if all of them were; else those runs alone are, and no test takes them for the others.
    """
    every = list(runs)
    if any(run.own_models for run in every) and all(run.knows_clients for run in every):
        every = [run.at_clients for run in every]
    members: dict[str, list[Run]] = {}
    for run in every:
        members.setdefault(run.group, []).append(run)
    return _distinct([_group(*one, place) for place, one in enumerate(members.items())])


def _group(key: str, runs: Sequence[Run], place: int) -> Group:
    by_seed: dict[int, Run] = {}
    for run in runs:
        other = by_seed.get(run.seed)
        if other is None or _rank(run) >= _rank(other):
            by_seed[run.seed] = run
    unique = tuple(by_seed.values())
    # a summary's label, which is written properly, before a bare name
    label = next((run.label for run in unique if run.summary.get("label")), unique[0].label)
    return Group(key, label, unique, len(runs) - len(unique), place)


def _rank(run: Run) -> tuple[bool, int]:
    return run.finished, run.rounds.size


def show_value(value: Any) -> str:
    """Write a setting as TOML would, strings without quotes.

    >>> show_value(True), show_value("mlp"), show_value([1, 0.5])
    ('true', 'mlp', '[1, 0.5]')
    """
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def _read_config(path: Path) -> tuple[str, dict[str, Any]]:
    file = path / "config.toml"
    if not file.is_file():
        raise _no_run(path, "it has no config.toml")
    try:
        text = read_file(path, file.name).decode()
        config = parse_toml(text)
    except (OSError, ValueError) as error:
        raise unreadable(file, error) from error
    if "algorithm" not in config:
        raise _no_run(path, "its config.toml has no [algorithm]")
    if not has_begun(path):
        raise _no_run(path, "it has settings, and nothing that a run writes")
    return text, config


def _no_run(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"'{path}' is not a run directory: {why}; give a folder that 'fedloom run' wrote"
    )


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Read a JSON line a round; the last may be cut, the last of a round counts."""
    if not file.is_file():
        return []
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise unreadable(file, error) from error
    rows: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
            rows[int(row["round"])] = row
        except (ValueError, TypeError, KeyError) as error:
            if number == len(lines):  # no newline after it: the run was killed while writing
                break
            raise unreadable(file, error, f" at line {number}") from error
    return [rows[number] for number in sorted(rows)]


def _columns(
    rows: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, Floats], dict[str, NDArray[np.bool_]]]:
    names = dict.fromkeys(key for row in rows for key in row)
    columns: dict[str, Floats] = {"round": np.zeros(0)}
    present: dict[str, NDArray[np.bool_]] = {"round": np.zeros(0, dtype=bool)}
    for name in names:
        values = [row.get(name) for row in rows]
        if any(isinstance(value, str | list | dict) for value in values):
            continue
        columns[name] = np.array([np.nan if v is None else float(v) for v in values])
        present[name] = np.array([name in row for row in rows], dtype=bool)
    return columns, present


def _metric(
    summary: Mapping[str, Any], columns: Mapping[str, Floats], site_means: Sequence[str]
) -> Metric:
    declared = _table(summary, "metric")
    name = declared.get("name")
    if not name:
        measured = (key.removeprefix("test_") for key in columns if key.startswith("test_"))
        names = [key for key in measured if not key.endswith("_ema")]
        name = next((key for key in names if key != "loss"), names[0] if names else None)
    name = str(name or "accuracy")
    return Metric(
        name,
        declared["higher_is_better"] if "higher_is_better" in declared else higher_is_better(name),
        str(declared.get("unit") or ("share" if name in _SHARES else "")),
        of_sites=name in site_means,
    )


def _distinct(groups: Sequence[Group]) -> list[Group]:
    """Add to labels that occur twice the settings in which those groups differ, at most three."""
    count = Counter(group.label for group in groups)
    labels = []
    for group in groups:
        same = [other for other in groups if other.label == group.label]
        labels.append(f"{group.label} ({_difference(group, same)})" if len(same) > 1 else "")
    again = Counter(labels)
    fresh = []
    for number, (group, label) in enumerate(zip(groups, labels, strict=True), start=1):
        if count[group.label] > 1:
            unique = label if again[label] == 1 else f"{label[:-1]}, {number})"
            group = replace(group, label=unique)
        fresh.append(group)
    return fresh


def _difference(group: Group, same: Sequence[Group]) -> str:
    flats = [flatten(deciding(other.runs[0].config)) for other in same]
    settings = flatten(deciding(group.runs[0].config))
    if len({other.runs[0].config.get("source") for other in same}) > 1:  # parts in other words
        return "from Python" if group.runs[0].config.get("source") == "python" else "from a file"
    keys = [
        key
        for key in dict.fromkeys(key for flat in flats for key in flat)
        if not varies(key) and len({show_value(flat.get(key)) for flat in flats}) > 1
    ]
    keys.sort(key=lambda key: not key.startswith("algorithm."))
    named = {key.rpartition(".")[0] for key in keys if key.endswith(".name")}
    keys = [k for k in keys if k.endswith(".name") or k.rpartition(".")[0] not in named]
    tails = Counter(key.rpartition(".")[2] for key in keys)
    parts = []
    for key in keys[:3]:
        table, _, tail = key.rpartition(".")
        name = table if tail == "name" else tail if tails[tail] == 1 else key
        parts.append(f"{name} {show_value(settings[key])}" if key in settings else f"no {name}")
    parts += [f"{len(keys) - 3} more"] if len(keys) > 3 else []
    return ", ".join(parts) or "same settings"


def _table(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = config.get(key)
    return value if isinstance(value, Mapping) else {"name": value}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
