"""The results of runs as text: one run's in a few lines, and the comparison of many as a table."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedloom.core.text_table import aligned, one_line, width_of
from fedloom.report import human_bytes, human_seconds
from fedloom.report.table_text import Column, columns, select_columns
from fedloom.report.tables import human_size, human_target, human_value, skew_of, skew_words
from fedloom.storage.seal import Seal

from .printing import folded, page_width, table

if TYPE_CHECKING:
    from fedloom.experiment.result import Result

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
    metric, unit = s["metric"]["name"], s["metric"]["unit"]
    each, timed = s["seconds_per_round"], s["seconds"] is not None  # not if it is a secret
    lines = [
        ("rounds", f"{s['rounds']}, {human_seconds(each)} each" if timed else str(s["rounds"]))
    ]
    if result.own_models:  # what the server's model has, nobody uses
        mean = s.get(f"client_{metric}_mean")
        note = f"{human_value(mean, unit)} mean of the clients, each with its own model"
        lines.append((metric, "not measured: see data.tests" if mean is None else note))
    elif s["last"]:
        last = f"{human_value(s['last']['value'], unit)} last"
        best = ""
        if s["best"]:
            best = f"{human_value(s['best']['value'], unit)} best (round {s['best']['round']})"
        average = f"{human_value(s['last_ema'], unit)} moving average"
        lines.append(
            (metric, ", ".join(filter(None, [last, best, average if s["last_ema"] else ""])))
        )
    lines += _more(result, metric, unit)
    if most := s.get("majority"):
        always = f"a model that always says '{most['name']}'"
        lines.append(("majority", f"{human_value(most['share'], unit)}: {always}"))
    if not result.own_models and s["target"] is not None and s["rounds_to_target_text"]:
        cost = human_bytes(s["bytes_to_target"])
        spent = [cost, *([human_seconds(s["seconds_to_target"])] if timed else [])]
        if "simulated_to_target" in s:
            spent.append(f"device time {human_seconds(s['simulated_to_target'])}")
        reached = f" ({', '.join(spent)})"
        goal = f"to {human_target(s['target'], unit)}"
        text = s["rounds_to_target_text"]
        lines.append((goal, f"{text} rounds{reached if s['rounds_to_target'] else ''}"))
    lines += _by_size(s, unit) + _by_client(s, unit) + _clients(result.path)
    traffic = f"{human_bytes(s['bytes_down'])} down, {human_bytes(s['bytes_up'])} up"
    lines.append(("traffic", traffic))
    if timed:
        lines.append(("time", f"{human_seconds(s['seconds'])} of training"))
    if "simulated_seconds" in s:
        lines.append(("device time", f"{human_seconds(s['simulated_seconds'])}, simulated"))
    if ranks := s.get("ranks"):
        slowest, mean = (
            human_seconds(ranks["slowest_seconds"]),
            human_seconds(ranks["mean_seconds"]),
        )
        note = f"{ranks['number']}; training: slowest {slowest}, mean {mean}; exchange "
        lines.append(("ranks", note + human_seconds(ranks["exchange_seconds"])))
    return table(lines)


def _more(result: Result, metric: str, unit: str) -> list[tuple[str, str]]:
    lines, best = [], result.summary.get("best_model")
    unseen = result.history[-1].get(f"unseen_{metric}") if result.history else None
    if unseen is not None:
        text = f"{human_value(unseen, unit)} {metric} at the clients that never train"
        lines.append(("unseen", text))
    if best is not None:
        text = f"of round {best['round']}, by {best['metric']} ({best['value']:.4g})"
        lines.append(("best model", text))
    return lines


def _clients(run: Path | None) -> list[tuple[str, str]]:
    """A line that says how unequal the clients' data are, of a run with a folder."""
    skew = None if run is None else skew_of(Seal(run).read_object("partition.json"))
    return [] if skew is None else [("clients", skew_words(skew))]


def _by_size(s: Mapping[str, Any], unit: str) -> list[tuple[str, str]]:
    """A line for every size of a run with sub-models: its values, and what it holds."""
    sizes, lines = s.get("sizes") or {}, []
    for size, counts in (sizes.get("held") or {}).items():
        parts = [
            f"{human_value(sizes[kind][size], unit)} {kind}"
            for kind in ("local", "global")
            if size in sizes.get(kind, {})
        ]
        parts.append(f"holds {counts['all']:,} of {s['parameters']:,} parameters")
        if cost := sizes.get("cost", {}).get(size):
            parts.append(f"a step takes {human_bytes(cost['peak'])}")
        lines.append((f"size {human_size(float(size))}", ", ".join(parts)))
    return lines


def _by_client(s: Mapping[str, Any], unit: str) -> list[tuple[str, str]]:
    start = f"client_{s['metric']['name']}_"
    if f"{start}worst_name" not in s:
        return []
    worst, tenth, spread = (human_value(s[start + k], unit) for k in ("worst", "tenth", "spread"))
    text = f"{s[start + 'worst_name']}, {worst}; worst tenth {tenth}"
    return [("worst client", f"{text}, standard deviation {spread}")]


def fitted(
    rows: Sequence[Mapping[str, Any]],
    names: Sequence[str] | None = None,
    space: int | None = None,
) -> str:
    """The comparison, without its less important columns if the page is too narrow for it; a name
    that is too long goes on in the next line.

    names: the columns that are wanted, none of which is left out; space: columns of the page; None:
    `page_width`.
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
    labels = [textwrap.fill(one_line(c), room, subsequent_indent="  ") for c in first.cells]
    lines = [*zip(labels, *(column.cells for column in others), strict=True)]
    text = aligned(lines, [column.head for column in selected])
    if not (dropped := len(whole) - len(selected)):
        return text
    note = f"({dropped} more columns: `fedloom compare RUN... --wide`)"
    return f"{text}\n{folded(note, space)}"


def _width(columns: Sequence[Column]) -> int:
    return sum(max(map(width_of, (column.head, *column.cells))) + 2 for column in columns) - 2
