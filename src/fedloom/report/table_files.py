"""The comparison table for other programs: CSV, JSON and LaTeX."""

from __future__ import annotations

import csv
import io
import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import replace

from pydantic_core import to_json

from .table_text import Column, columns, select_columns
from .tables import MISSING, Row


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
    """Write the table as `tabular` does; empty for no rows.

    names: the columns that are wanted, see table_text.select_columns; by default at most five,
    which fit a column of 3.4 inches at \\footnotesize: what is tested, rounds and bytes to the
    target (else the bytes in all), and p of the difference from the row that the others are
    compared with; one more where rows differ in what was measured.
    """
    all_columns = columns(rows)
    if not all_columns:
        return ""
    selected = select_columns(all_columns, _narrow(all_columns) if names is None else names)
    base = next((row["against"] for row in rows if row.get("against")), "")
    return tabular(selected, base)


def tabular(columns: Sequence[Column], base: str = "") -> str:
    """Write columns as a tabular of the package booktabs, narrow enough for a column of a paper.

    The best cell of a column is bold unless all are printed alike. A comment below it says which
    row p is against (base).
    """
    columns = [_without_sign(column) for column in columns]
    body = zip(
        *([_folded(c, "l", _NAME) for c in columns[0].cells], *map(_marked, columns[1:])),
        strict=True,
    )
    heads = [_folded(column.head, "r", _HEAD) for column in columns]
    gaps = rf"*{{{len(columns) - 1}}}{{@{{\hspace{{6pt}}}}r}}"
    start = rf"\begin{{tabular}}{{@{{}}l{gaps}@{{}}}}"
    lines = [" & ".join(line) + r" \\" for line in [heads, *body]]
    out = [start, r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"]
    out.append(r"\end{tabular}")
    if base and any(column.name.split()[-1] == "p" for column in columns):
        out.append(f"% p: of the difference from {' '.join(base.split())}, by Holm")
    return "\n".join(out) + "\n"


def _narrow(columns: Sequence[Column]) -> list[str]:
    """The names of the columns that a column of a paper has room for."""
    names = [column.name for column in columns]
    tested = names[names.index("rounds") + 1]
    cost = "bytes to target" if "bytes to target" in names else "bytes"
    narrow = ("measured", tested, "rounds to target", cost, "p")
    return [name for name in narrow if name in names]


def _without_sign(column: Column) -> Column:
    """A column of shares has its per cent in the heading alone."""
    filled = [cell for cell in column.cells if cell != MISSING]
    if not filled or not all(cell.endswith(" %") for cell in filled):
        return column
    name, comma, rest = column.head.partition(",")
    cells = [cell.removesuffix(" %") for cell in column.cells]
    return replace(column, head=f"{name} (%){comma}{rest}", cells=cells)


def _marked(column: Column) -> list[str]:
    """The cells for LaTeX, the best bold; what is printed alike is as good."""
    finite = [v for v in column.values if v is not None and math.isfinite(v)]
    if not finite or len(set(column.cells)) == 1:
        return [tex(cell) for cell in column.cells]
    best = column.cells[column.values.index(min(finite) if column.low else max(finite))]
    return [tex(cell, bold=cell == best) for cell in column.cells]


_HEAD, _NAME = 9, 14  # letters in a line of a heading, and of a row's name


def _folded(text: str, side: str, width: int) -> str:
    """A heading or a name on as many lines as keep it narrow."""
    lines = r"\\".join(map(tex, textwrap.wrap(text, width, break_long_words=False)))
    return rf"\shortstack[{side}]{{{lines}}}" if r"\\" in lines else lines


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
