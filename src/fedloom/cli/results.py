"""The results of runs as text: one run's in a few lines, and the comparison of many as a table."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedloom.core.text_table import aligned, escaped_line, width_of
from fedloom.report import human_bytes, human_seconds
from fedloom.report.table_text import Column, columns, select_columns
from fedloom.report.tables import human_size, human_target, human_value, skew_of, skew_words
from fedloom.storage.manifest import read_object

from .printing import folded, page_width, table

if TYPE_CHECKING:
    from fedloom.experiment.result import Result

Line = tuple[str, str]
# columns of the comparison, the first to be left out first
_DROPPABLE = (
    "worst client, .*",
    "EMA last",
    "last",
    "time per round",
    "Gini of sizes",
    "sd between clients",
    "device time",
    "worst tenth",
    "best",
    "rounds",
    "time",
    "label distance",
    "device time to target",
    "time to target",
    "worst client",
    "bytes",
    "seeds",
    "gradients to target",
    "bytes to target",
    "rounds to target",
)


_NAME = 24  # columns for a method's name, for which no other column is left out


def summarise(result: Result) -> str:
    """A finished run in a few aligned lines."""
    s = result.summary
    skew = None if result.path is None else skew_of(read_object(result.path, "partition.json"))
    clients = [] if skew is None else [("clients", skew_words(skew))]
    timed = s["seconds"] is not None  # not if it is a secret
    each = f", {human_seconds(s['seconds_per_round'])} each" if timed else ""
    rounds = ("rounds", f"{s['rounds']}{each}")
    return table([rounds, *_scores(result), *_parts(s), *clients, *_work(s)])


def _scores(result: Result) -> Iterator[Line]:
    """What the model does, and when it reached its target."""
    s = result.summary
    metric, unit = s["metric"]["name"], s["metric"]["unit"]
    if result.own_models:  # what the server's model has, nobody uses
        mean = s.get(f"client_{metric}_mean")
        note = f"{human_value(mean, unit)} mean of the clients, each with its own model"
        yield metric, "not measured: see data.tests" if mean is None else note
    elif s["last"]:
        scores = [f"{human_value(s['last']['value'], unit)} last"]
        if best := s["best"]:
            scores.append(f"{human_value(best['value'], unit)} best (round {best['round']})")
        if s["last_ema"]:
            scores.append(f"{human_value(s['last_ema'], unit)} moving average")
        yield metric, ", ".join(scores)
    unseen = result.history[-1].get(f"unseen_{metric}") if result.history else None
    if unseen is not None:
        yield "unseen", f"{human_value(unseen, unit)} {metric} at the clients that never train"
    if kept := s.get("best_model"):
        yield "best model", f"of round {kept['round']}, by {kept['metric']} ({kept['value']:.4g})"
    if most := s.get("majority"):
        always = f"a model that always says '{most['name']}'"
        yield "majority", f"{human_value(most['share'], unit)}: {always}"
    if not result.own_models and s["target"] is not None and s["rounds_to_target_text"]:
        spent = [human_bytes(s["bytes_to_target"])]
        if s["seconds"] is not None:
            spent.append(human_seconds(s["seconds_to_target"]))
        if "simulated_to_target" in s:
            spent.append(f"device time {human_seconds(s['simulated_to_target'])}")
        reached = f" ({', '.join(spent)})" if s["rounds_to_target"] else ""
        goal = f"to {human_target(s['target'], unit)}"
        yield goal, f"{s['rounds_to_target_text']} rounds{reached}"


def _parts(s: Mapping[str, Any]) -> Iterator[Line]:
    """Every size of a run with sub-models, its values and what it holds; clients with names."""
    sizes, unit = s.get("sizes") or {}, s["metric"]["unit"]
    for size, counts in (sizes.get("held") or {}).items():
        parts = [
            f"{human_value(sizes[kind][size], unit)} {kind}"
            for kind in ("local", "global")
            if size in sizes.get(kind, {})
        ]
        parts.append(f"holds {counts['all']:,} of {s['parameters']:,} parameters")
        if cost := sizes.get("cost", {}).get(size):
            parts.append(f"a step takes {human_bytes(cost['peak'])}")
        yield f"size {human_size(float(size))}", ", ".join(parts)
    start = f"client_{s['metric']['name']}_"
    if name := s.get(f"{start}worst_name"):
        numbers = (s[start + k] for k in ("worst", "tenth", "spread"))
        worst, tenth, spread = (human_value(v, unit) for v in numbers)
        text = f"{name}, {worst}; worst tenth {tenth}, standard deviation {spread}"
        yield "worst client", text


def _work(s: Mapping[str, Any]) -> Iterator[Line]:
    yield "traffic", f"{human_bytes(s['bytes_down'])} down, {human_bytes(s['bytes_up'])} up"
    if s["seconds"] is not None:
        yield "time", f"{human_seconds(s['seconds'])} of training"
    if "simulated_seconds" in s:
        yield "device time", f"{human_seconds(s['simulated_seconds'])}, simulated"
    if ranks := s.get("ranks"):
        keys = ("slowest_seconds", "mean_seconds", "exchange_seconds")
        slowest, mean, exchange = (human_seconds(ranks[key]) for key in keys)
        text = f"training: slowest {slowest}, mean {mean}; exchange {exchange}"
        yield "ranks", f"{ranks['number']}; {text}"


def fitted(
    rows: Sequence[Mapping[str, Any]],
    names: Sequence[str] | None = None,
    space: int | None = None,
) -> str:
    """The comparison, without its less important columns if the page is too narrow for it. names:
    the columns that are wanted, none of which is left out; space: columns of the page.
    """
    space = page_width() if space is None else space
    whole = selected = select_columns(columns([dict(row) for row in rows]), names)
    for name in _DROPPABLE if names is None else ():
        if min(_width(selected[:1]), _NAME) + 2 + _width(selected[1:]) > space:
            selected = [column for column in selected if not re.fullmatch(name, column.name)]
    if not selected:
        return ""
    first, *others = selected
    room = max(space - _width(others) - 2, 10)
    labels = [textwrap.fill(escaped_line(c), room, subsequent_indent="  ") for c in first.cells]
    lines = [*zip(labels, *(column.cells for column in others), strict=True)]
    text = aligned(lines, [column.head for column in selected])
    if not (dropped := len(whole) - len(selected)):
        return text
    note = f"({dropped} more columns: `fedloom compare RUN... --wide`)"
    return f"{text}\n{folded(note, space)}"


def _width(columns: Sequence[Column]) -> int:
    return sum(max(map(width_of, (column.head, *column.cells))) + 2 for column in columns) - 2
