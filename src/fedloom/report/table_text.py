"""The comparison as a table: its columns by name; as text, Markdown, CSV, JSON and LaTeX."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic_core import to_json

from fedloom.core.curves import Value
from fedloom.core.text_table import aligned, escaped_line
from fedloom.errors import ConfigError, did_you_mean
from fedloom.evaluation.declared import unit_of

from .statistics import difference_text, p_text
from .tables import (
    CLIENTS,
    MISSING,
    Row,
    fixed,
    human_bytes,
    human_seconds,
    human_target,
    human_value,
    skews_differ,
)

# what is tested, as a column's heading
TESTED_HEADS: Mapping[Value, str] = {
    "last-tenth": "last tenth",
    "last": "last",
    "ema": "EMA last",
    "best-of-validation": "at best validation",
}
# of the metric beside what is tested: the name, the row's key
_OTHERS = {"last": "last_mean", "best": "best_mean", "EMA last": "ema_mean"}
_FURTHER = re.compile(r"client_(.+)_worst")  # the key of a further metric


@dataclass(frozen=True)
class Column:
    """name: how one asks for it; head: what stands above it; cells: a text for each row.

    values: the numbers that say which row is best, None for a row that cannot be; empty if no row
    is best. low: whether low is good. hidden: the column is left out unless it is asked for.
    """

    name: str
    head: str
    cells: list[str]
    values: Sequence[float | None] = ()
    low: bool = True
    hidden: bool = False


def columns(rows: Sequence[Row]) -> list[Column]:
    """All columns in which a row has something."""
    if not rows:
        return []
    metrics = {(row["metric"], row.get("higher_is_better")) for row in rows}
    metric, high = next(iter(metrics)) if len(metrics) == 1 else ("metric", None)
    tested = TESTED_HEADS[rows[0]["value"]]

    def measured(name: str, head: str, key: str, spread: str | None = None) -> Column:
        cells = [_value(row, key, spread) for row in rows]
        values = [] if high is None else [row[key] for row in rows]
        return Column(name, head, cells, values, not high)

    labels = [f"{row['label']} ({row['state']})" if row["state"] else row["label"] for row in rows]
    every = [
        Column("algorithm", "algorithm", labels),
        # what each row has measured, where rows differ in it
        *[Column("measured", "measured", [row["metric"] for row in rows])] * (len(metrics) > 1),
        Column("seeds", "seeds", [str(row["seeds"]) for row in rows]),
        Column("rounds", "rounds", [str(row["rounds"]) for row in rows]),
        measured(metric, f"{metric}, {tested}", "value_mean", "value_sd"),
    ]
    every += [
        measured(name, f"{metric}, {name}", key) for name, key in _OTHERS.items() if name != tested
    ]
    every += [
        Column(head, head, [_value(row, f"client_{name}") for row in rows])
        for name, head in CLIENTS.items()
    ]
    every.append(
        Column("unseen", f"{metric}, unseen", [_value(row, "unseen_mean") for row in rows])
    )
    every += [*_further(rows), *_skews(rows), *_costs(rows), *_tests(rows)]
    return [column for column in every if any(cell != MISSING for cell in column.cells)]


def _further(rows: Sequence[Row]) -> list[Column]:
    """The worst client by each further metric that runs measured at their clients."""
    metrics = {key: match[1] for key in rows[0] if (match := _FURTHER.fullmatch(key))}
    return [
        Column(head, head, [human_value(row[key], unit_of(name)) for row in rows])
        for key, name in metrics.items()
        for head in (f"worst client, {name}",)
    ]


def _costs(rows: Sequence[Row]) -> list[Column]:
    """What a row took; one of which a seed missed the target is never the best on the way there."""
    goals = {human_target(row["target"], row["unit"]) for row in rows if row["target"] is not None}
    goal = goals.pop() if len(goals) == 1 else "target"
    costs = []
    for name, (key, text) in _COSTS.items():
        if key == "rounds_to_target":
            cells = [_rounds_text(row) for row in rows]
        else:
            cells = [text(row[key]) for row in rows]
        missed = [name.endswith("target") and row["not_reached"] for row in rows]
        values = [None if m else row[key] for m, row in zip(missed, rows, strict=True)]
        hidden = name == "gradients to target" and _pay_alike(rows)
        costs.append(Column(name, name.replace("target", goal), cells, values, hidden=hidden))
    return costs


def _pay_alike(rows: Sequence[Row]) -> bool:
    """Whether rows compute as many gradients a round, within a hundredth: rounds say it then."""
    each = [
        row["gradients_to_target"] / row["rounds_to_target"]
        for row in rows
        if row["gradients_to_target"] and row["rounds_to_target"]
    ]
    return not each or max(each) <= 1.01 * min(each)


def _count(n: float | None) -> str:
    return MISSING if n is None else f"{n:,.0f}"


_COSTS: Mapping[str, tuple[str, Callable[[float | None], str]]] = {  # name: the row's key, as text
    "rounds to target": ("rounds_to_target", _count),
    "bytes to target": ("bytes_to_target", human_bytes),
    "gradients to target": ("gradients_to_target", _count),
    "time to target": ("seconds_to_target", human_seconds),
    "device time to target": ("simulated_to_target", human_seconds),
    "bytes": ("bytes", human_bytes),
    "time per round": ("seconds_per_round", human_seconds),
    "time": ("seconds", human_seconds),
    "device time": ("simulated_seconds", human_seconds),
}


def _tests(rows: Sequence[Row]) -> list[Column]:
    """The difference from the row that all are compared with, and its p."""
    if not any(row.get("against") for row in rows):
        return []
    base = next(row["against"] for row in rows if row.get("against"))
    gaps = [interval(row, "difference") for row in rows]
    p = [p_text(row["p"] if row["p_holm"] is None else row["p_holm"]) for row in rows]
    # the lines below a printed table have the two
    return [
        Column("difference", f"less {base}", gaps, hidden=True),
        Column("p", "p (Holm)", p, hidden=True),
    ]


def interval(row: Row, key: str) -> str:
    """A difference and its interval: "+0.84 (-0.36 to +2.04)"; of one pair the difference alone."""
    if row[key] is None:
        return MISSING
    middle, low, high = (
        difference_text(row[k], row["unit"]) if math.isfinite(row[k]) else ""
        for k in (key, f"{key}_low", f"{key}_high")
    )
    return f"{middle} ({low} to {high})" if low and high else middle


def select_columns(columns: Sequence[Column], names: Iterable[str] | None) -> list[Column]:
    """The algorithm and the columns with these names or headings, in their order; without names
    all that need not be asked for. Raises ConfigError for a name that the table has not.
    """
    if names is None:
        return [column for column in columns if not column.hidden]
    by_name = {c.head: c for c in columns} | {c.name: c for c in columns}
    selected: dict[str, Column] = {}
    for name in ["algorithm", *names]:
        if name not in by_name:
            raise ConfigError(
                f"--columns has '{name}', which this table has not; "
                f"{did_you_mean(name, [column.name for column in columns])}"
            )
        selected[by_name[name].name] = by_name[name]
    return list(selected.values())


def table_cells(
    rows: Sequence[Row], names: Iterable[str] | None = None
) -> tuple[list[str], list[list[str]]]:
    """Give the headings and the cells as text. names: see `select_columns`."""
    if not rows:
        return [], []
    selected = select_columns(columns(rows), names)
    return [c.head for c in selected], [
        list(line) for line in zip(*(c.cells for c in selected), strict=True)
    ]


def as_text(rows: Sequence[Row], names: Iterable[str] | None = None) -> str:
    """Write the table with aligned columns; empty for no rows. names: see `select_columns`."""
    heads, lines = table_cells(rows, names)
    return f"{aligned([[*map(escaped_line, line)] for line in lines], heads)}\n" if heads else ""


def as_markdown(rows: Sequence[Row], names: Iterable[str] | None = None) -> str:
    """Write the table as Markdown with pipes; empty for no rows. names: see `select_columns`."""
    heads, lines = table_cells(rows, names)
    return f"{markdown(heads, lines)}\n" if heads else ""


def markdown(heads: Sequence[str], lines: Iterable[Sequence[str]], marks: str = "--:") -> str:
    """Headings and cells as a table with pipes. marks: how columns but the first align."""
    cells = [[_markdown(cell) for cell in line] for line in [heads, *lines]]
    cells.insert(1, [":--", *[marks] * (len(heads) - 1)])
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _skews(rows: Sequence[Row]) -> list[Column]:
    """How unequal the clients' data are: the columns in which the rows differ."""
    columns = []
    for head, name in (("label distance", "label_distance"), ("Gini of sizes", "size_gini")):
        cells = [MISSING if row[name] is None else fixed(row[name], 2) for row in rows]
        columns += [Column(head, head, cells)] if skews_differ([row[name] for row in rows]) else []
    return columns


def _rounds_text(row: Row) -> str:
    """ "63", "63 (2/3)" if only two of three seeds reached it, "100+" if none did in 100."""
    if row["target"] is None:
        return MISSING
    if row["rounds_to_target"] is None:
        return f"{row['rounds']}+"
    text = f"{row['rounds_to_target']:.1f}".removesuffix(".0")
    return text if not row["not_reached"] else f"{text} ({row['reached']}/{row['seeds']})"


def _value(row: Row, key: str, spread: str | None = None) -> str:
    return human_value(row[key], row["unit"], row[spread] if spread else None)


def _markdown(text: str) -> str:
    return escaped_line(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def as_csv(rows: Sequence[Row]) -> str:
    """Write every column with raw numbers (bytes, seconds, metric's unit); empty for no rows."""
    if not rows:
        return ""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def as_json(rows: Sequence[Row]) -> str:
    """Write the same as a list of objects; what is missing or not finite is null.

    >>> as_json([{"label": "FedAvg", "last_mean": float("nan")}])
    '[\\n {\\n  "label": "FedAvg",\\n  "last_mean": null\\n }\\n]\\n'
    """
    return to_json(rows, indent=1, inf_nan_mode="null", fallback=str).decode() + "\n"


def as_latex(rows: Sequence[Row], names: Sequence[str] | None = None) -> str:
    """Write the table as a tabular of the package booktabs, the best cell of a column bold unless
    all are printed alike; empty for no rows. names: see `select_columns`; by default a few.
    """
    all_columns = columns(rows)
    if not all_columns:
        return ""
    selected = select_columns(all_columns, _narrow(all_columns) if names is None else names)
    heads = [tex(column.head) for column in selected]
    body = zip([tex(c) for c in selected[0].cells], *map(_marked, selected[1:]), strict=True)
    first, *lines = (" & ".join(line) + r" \\" for line in (heads, *body))
    start = rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}"
    out = [start, r"\toprule", first, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}"]
    return "\n".join(out) + "\n"


def _narrow(columns: Sequence[Column]) -> list[str]:
    """The names of the columns that a page of a paper has room for."""
    names = [column.name for column in columns]
    tested = names[names.index("rounds") + 1]
    cost = "bytes to target" if "bytes to target" in names else "bytes"
    narrow = ("measured", tested, "rounds to target", cost, "p")
    return [name for name in narrow if name in names]


def _marked(column: Column) -> list[str]:
    """The cells for LaTeX, the best bold; what is printed alike is as good."""
    finite = [v for v in column.values if v is not None and math.isfinite(v)]
    if not finite or len(set(column.cells)) == 1:
        return [tex(cell) for cell in column.cells]
    best = column.cells[column.values.index(min(finite) if column.low else max(finite))]
    return [tex(cell, bold=cell == best) for cell in column.cells]


_SIGNS = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",  # as they are, LaTeX's own font prints other signs for these
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}


def tex(text: str, bold: bool = False) -> str:
    """Text for LaTeX.

    >>> tex("80.1±0.2"), tex("rounds to 81 %"), tex("a^b"), tex("8±1", bold=True)
    ('$80.1\\\\pm0.2$', 'rounds to 81 \\\\%', 'a\\\\textasciicircum{}b', '$\\\\mathbf{8\\\\pm1}$')
    """
    line = " ".join(text.split())
    escaped = re.sub(r"[%&_#${}\\~^<>|]", lambda sign: _SIGNS.get(sign[0], "\\" + sign[0]), line)
    if "±" not in escaped:
        return rf"\textbf{{{escaped}}}" if bold else escaped
    math_mode = escaped.replace("±", r"\pm")
    return rf"$\mathbf{{{math_mode}}}$" if bold else f"${math_mode}$"
