"""The comparison table for other programs: CSV, JSON and LaTeX."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import textwrap
from collections.abc import Sequence
from typing import Any

from .table_text import Column, chosen, columns
from .tables import Row


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
    kept = [{key: _finite(value) for key, value in row.items()} for row in rows]
    return json.dumps(kept, indent=1, ensure_ascii=False, default=str) + "\n"


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_latex(rows: Sequence[Row], names: Sequence[str] | None = None) -> str:
    """Write the table as a tabular of the package booktabs, the best cell of a column bold unless
    all are as good; empty for no rows.

    names: the columns that are wanted, see table_text.chosen; by default at most five, which fit a
    column of 3.4 inches at \\footnotesize: what is tested, rounds and bytes to the target (else the
    bytes in all), and p of the difference from the row that the others are compared with.
    """
    made = columns(rows)
    if not made:
        return ""
    kept = chosen(made, _narrow(made) if names is None else names)
    body = zip(*(_bold(column, rows) for column in kept), strict=True)
    lines = [" & ".join(line) + r" \\" for line in [[_head(c.head) for c in kept], *body]]
    start = rf"\begin{{tabular}}{{@{{}}l{'r' * (len(kept) - 1)}@{{}}}}"
    out = [start, r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"]
    return "\n".join([*out, r"\end{tabular}"]) + "\n"


def _narrow(made: Sequence[Column]) -> list[str]:
    """The names of the columns that a column of a paper has room for."""
    there = [column.name for column in made]
    tested = there[there.index("rounds") + 1]
    cost = "bytes to target" if "bytes to target" in there else "bytes"
    return [tested, *(name for name in ("rounds to target", cost, "p") if name in there)]


def _bold(column: Column, rows: Sequence[Row]) -> list[str]:
    """The cells for LaTeX, the best bold; what is printed alike is as good."""
    whole = [not (column.name.endswith("to target") and row["not_reached"]) for row in rows]
    found = [
        row[column.key] if column.key and fair else None
        for row, fair in zip(rows, whole, strict=True)
    ]
    known = [v for v in found if v is not None and math.isfinite(v)]
    cells = [tex(cell) for cell in column.cells]
    if not known or len(set(cells)) == 1:
        return cells
    first = column.cells[found.index(min(known) if column.low else max(known))]
    return [
        tex(cell, bold=True) if cell == first else plain
        for cell, plain in zip(column.cells, cells, strict=True)
    ]


def _head(text: str) -> str:
    """A heading on as many lines as keep it narrow."""
    lines = r"\\".join(map(tex, textwrap.wrap(text, 10, break_long_words=False)))
    return rf"\shortstack[r]{{{lines}}}" if r"\\" in lines else lines


_SIGNS = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def tex(text: str, bold: bool = False) -> str:
    """Text for LaTeX.

    >>> tex("80.1±0.2"), tex("rounds to 81 %"), tex("a^b"), tex("8±1", bold=True)
    ('$80.1\\\\pm0.2$', 'rounds to 81 \\\\%', 'a\\\\textasciicircum{}b', '$\\\\mathbf{8\\\\pm1}$')
    """
    line = " ".join(text.split())
    escaped = re.sub(r"[%&_#${}\\~^]", lambda sign: _SIGNS.get(sign[0], "\\" + sign[0]), line)
    if "±" not in escaped:
        return rf"\textbf{{{escaped}}}" if bold else escaped
    math_mode = escaped.replace("±", r"\pm")
    return rf"$\mathbf{{{math_mode}}}$" if bold else f"${math_mode}$"
