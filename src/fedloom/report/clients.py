"""The tables of clients: name, examples and metric of each, the worst first; and of a deployed run
who answered in its rounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedloom.evaluation.declared import unit_of
from fedloom.storage.manifest import check_file

from .curve_data import mean
from .runs import Group, Run, read_rows
from .tables import further, human_value

_Floats = np.ndarray[Any, np.dtype[np.float64]]
SHOWN = 100  # clients of a table; of more, the worst


def client_cells(groups: Sequence[Group]) -> tuple[list[str], list[list[str]], int]:
    """Headings, lines, and how many clients there are: the mean over the seeds of every metric of
    each client, the worst by the headline of the first group first; nothing for clients without
    names, and for groups of other clients. "majority": always saying a client's commonest class.
    """
    measured = [g for g in groups if _clients(g) and _mean_values(g) is not None]
    if not measured:
        return [], [], 0
    first = measured[0]
    clients = _clients(first)
    columns = _columns([group for group in measured if _clients(group) == clients])
    majority = first.averaged_runs[0].partition.get("majority")
    if majority and any("accuracy" in head for head, _, _ in columns):
        columns.append(("majority %", np.array(majority, dtype=np.float64), "share"))
    sign, worst = -1.0 if first.metric.higher_is_better is False else 1.0, columns[0][1]
    order = sorted(range(len(clients)), key=lambda i: (np.isnan(worst[i]), sign * worst[i]))
    lines = []
    for i in order[:SHOWN]:
        name, examples = clients[i]
        numbers = [(float(values[i]), unit) for _, values, unit in columns]
        cells = [human_value(None if np.isnan(v) else v, unit) for v, unit in numbers]
        lines.append([name, f"{examples:,}", *cells])
    return ["client", "examples", *(head for head, _, _ in columns)], lines, len(clients)


def unseen_cells(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    """Headings, and a line for each client that never trained: its rows, mean headlines."""
    values: dict[tuple[str, str], list[float]] = {}  # of a client in a group
    rows: dict[str, int] = {}
    for group in groups:
        for run in group.averaged_runs:
            unseen = run.clients.get("unseen") or {"names": ()}
            for i, name in enumerate(unseen["names"]):
                if (value := unseen["metrics"][group.metric.name][i]) is not None:
                    rows[name] = unseen["rows"][i]
                    values.setdefault((name, group.label), []).append(value)
    shown = [group for group in groups if any(label == group.label for _, label in values)]
    lines = [
        [
            name,
            f"{count:,}",
            *(human_value(mean(values.get((name, g.label), [])), g.metric.unit) for g in shown),
        ]
        for name, count in rows.items()
    ]
    return ["client that never trained", "rows", *(group.label for group in shown)], lines


def _columns(groups: Sequence[Group]) -> list[tuple[str, _Floats, str]]:
    """(heading, value of every client, unit) of all metrics, the headlines first."""
    metrics: list[tuple[Group, str, str, str | None]]
    metrics = [(group, group.metric.name, group.metric.unit, None) for group in groups]
    metrics += [(group, name, unit_of(name), name) for group in groups for name in further(group)]
    columns = []
    for group, name, unit, key in metrics:
        if (values := _mean_values(group, key)) is not None:
            word = f"{name.replace('_', ' ')}{' %' if unit == 'share' else ''}"
            columns.append((f"{group.label}, {word}" if len(groups) > 1 else word, values, unit))
    return columns


def against_alone(groups: Sequence[Group]) -> list[str]:
    """Whether clients fare better than alone, a sentence for each row, if one row is that."""
    layers = ((group, group.runs[0].config.get("private") or {}) for group in groups)
    baseline = next((g for g, one in layers if str(one.get("name")).lower() == "alone"), None)
    if baseline is None or (alone_values := _mean_values(baseline)) is None:
        return []
    metric, out = baseline.metric, []
    sign = -1.0 if metric.higher_is_better is False else 1.0
    for group in groups:
        same = group.metric.name == metric.name
        values = _mean_values(group, None if same else metric.name)
        if group is baseline or values is None or len(values) != len(alone_values):
            continue
        if not all(run.knows_clients for run in group.runs):  # they have no rows of their own
            continue
        both = ~np.isnan(values) & ~np.isnan(alone_values)
        gap = sign * (values - alone_values)[both]
        if not both.any():
            continue
        names = dict(enumerate(name for name, _ in _clients(group)))
        worse = [names.get(int(i), f"client {i}") for i in np.flatnonzero(both)[gap < 0]]
        means = [human_value(float(v[both].mean()), metric.unit) for v in (values, alone_values)]
        text = f"{group.label} is better than alone at {(gap > 0).sum()} of {both.sum()} clients"
        some = ", ".join(worse[:_NAMED]) + (", ..." if len(worse) > _NAMED else "")
        bad = f"; worse at {len(worse)}: {some}" if worse else ""
        out.append(f"{text} ({' against '.join(means)} in the mean of the clients){bad}.")
    return out


_NAMED = 5  # clients that are worse off


def _mean_values(group: Group, metric: str | None = None) -> _Floats | None:
    """Every client's metric (None: the headline), the mean over seeds; None without a value."""
    runs, rows = group.averaged_runs, []
    for run in runs:
        by_metric = run.clients if metric is None else run.clients.get("metrics") or {}
        values = by_metric.get("values" if metric is None else metric) or ()
        if values and _clients_of(run) == _clients_of(runs[0]):
            rows.append([np.nan if value is None else float(value) for value in values])
    if not rows or len({len(row) for row in rows}) > 1 or np.isnan(rows).all():
        return None
    means: _Floats = np.array(rows).mean(axis=0)
    return means


def preparation_lines(groups: Sequence[Group]) -> list[str]:
    """What was done with the columns of the users' tables, a line each."""
    runs = [run for group in groups for run in group.runs]
    parts: list[Any] = [run.partition.get("inputs") or {} for run in runs]
    return list(dict.fromkeys(str(line) for part in parts for line in part.get("prepared", ())))


def _clients(group: Group) -> list[tuple[str, int]]:
    """(name, examples) of every client; nothing if they have no names."""
    return _clients_of(group.averaged_runs[0]) if group.averaged_runs else []


def _clients_of(run: Run) -> list[tuple[str, int]]:
    names, sizes = names_of(run), run.partition.get("sizes") or ()
    return list(zip(names, map(int, sizes), strict=True)) if len(names) == len(sizes) else []


# ------------------------------------------------------------------ who answered in a deployed run
_HEADS = {  # what a row names: the column
    "answered": "counted",
    "lost": "no answer",
    "late": "late",
    "refused": "refused",
    "spare": "not needed",
    "unused": "round had too few",
}
_REASONS = 5  # of one client


class Attendance(NamedTuple):
    """The table; which sites take part no more, and why updates were refused, a line each."""

    heads: list[str]
    lines: list[list[str]]
    left: list[str]
    why: list[str]


def attendance(path: Path, names: Sequence[str] = ()) -> Attendance | None:
    """How often each client was asked and what came of it; None of a run that was simulated."""
    check_file(path, "clients.jsonl")
    rounds = read_rows(path / "clients.jsonl")
    draws = [draw for row in rounds for draw in (*row.get("redrawn", ()), row)]
    if not draws:
        return None
    times = Counter(i for draw in draws for i in draw["asked"])
    outcomes = Counter(pair for draw in draws for pair in _outcomes(draw))
    refusals = Counter(
        (i, draw["refused"].get(str(i), "no reason"))
        for draw in draws
        for i, kind in _outcomes(draw)
        if kind == "refused"
    ).most_common()
    kinds = [kind for kind in _HEADS if kind == "answered" or any(k == kind for _, k in outcomes)]
    clients = sorted({*times, *range(len(names))})
    labels = {i: f"{i} {names[i]}" if i < len(names) and names[i] else str(i) for i in clients}
    lines = [
        [labels[i], f"{times[i]:,}", *(f"{outcomes[i, kind]:,}" for kind in kinds)] for i in clients
    ]
    why = [
        f"{labels[i]}: {count} x {reason}"
        for i in clients
        for reason, count in [(r, n) for (j, r), n in refusals if j == i][:_REASONS]
    ]
    heads = ["client", "asked", *(_HEADS[kind] for kind in kinds)]
    return Attendance(heads, lines, [*_left(rounds, labels)], why)


def _left(rounds: Sequence[Mapping[str, Any]], labels: Mapping[int, str]) -> Iterator[str]:
    """Who took part until when, of those who are not there in the last round. labels: by client."""
    if (present := rounds[-1].get("there")) is None:  # nobody came or left
        return
    for i in labels.keys() - {*present}:
        until = max((row["round"] for row in rounds if i in row.get("there", labels)), default=0)
        yield (
            f"{labels[i]}: taken out after round {until}"
            if until
            else f"{labels[i]}: has taken part in no round"
        )


def names_of(run: Run) -> list[str]:
    """The clients' names, as clients.toml has them; nothing if it has none."""
    names = run.partition.get("client_names") or ()
    return [] if "every" in run.partition else list(map(str, names))


def _outcomes(draw: Mapping[str, Any]) -> set[tuple[int, str]]:
    """(client, what came of asking it) of a draw."""
    kinds = {i: kind for kind in _HEADS if kind != "refused" for i in draw.get(kind, ())}
    return {(i, kinds.get(i, "refused")) for i in draw["asked"]}
