"""The comparison table for other programs: CSV, JSON and LaTeX."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Sequence
from typing import Any

from .tables import Row, table_cells


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


def as_latex(rows: Sequence[Row]) -> str:
    """Write the table as a tabular of the package booktabs; empty for no rows."""
    heads, lines = table_cells(rows)
    if not heads:
        return ""
    head, *body = (" & ".join(map(tex, line)) + r" \\" for line in [heads, *lines])
    start = rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}"
    out = [start, r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]
    return "\n".join(out) + "\n"


_SIGNS = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def tex(text: str) -> str:
    """Text for LaTeX.

    >>> tex("80.1±0.2"), tex("rounds to 81 %"), tex("a^b")
    ('$80.1\\\\pm0.2$', 'rounds to 81 \\\\%', 'a\\\\textasciicircum{}b')
    """
    line = " ".join(text.split())
    escaped = re.sub(r"[%&_#${}\\~^]", lambda sign: _SIGNS.get(sign[0], "\\" + sign[0]), line)
    return f"${escaped.replace('±', chr(92) + 'pm')}$" if "±" in escaped else escaped
