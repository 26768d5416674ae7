"""A result as a line of text, and as a small table and curve for a notebook."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from typing import Any

from ..server.progress import in_bytes, in_unit

_CLIENTS = 5  # of the table, the worst


def line(summary: Mapping[str, Any]) -> str:
    """A finished run in one line."""
    rows = [f"{key} {value}" if key != "run" else value for key, value in _facts(summary)]
    return f"<Result {rows[0]}: {', '.join(rows[1:])}>"


def page(
    summary: Mapping[str, Any],
    clients: Sequence[Mapping[str, Any]],
    curve: tuple[Sequence[int], Sequence[float]],
) -> str:
    """The same as HTML, with the clients that fare worst, if they have names, and the curve."""
    metric = summary["metric"]["name"]
    rows = _facts(summary)
    if f"client_{metric}_worst_name" in summary:
        rows += [
            (
                f"client {row['client']}",
                f"{in_unit(metric, row[metric])}, {row['examples']} examples",
            )
            for row in clients[:_CLIENTS]
            if row[metric] is not None
        ]
    cells = "".join(
        f"<tr><th style='text-align:left'>{html.escape(key)}</th>"
        f"<td style='text-align:left'>{html.escape(value)}</td></tr>"
        for key, value in rows
    )
    return f"<table>{cells}</table>{_picture(metric, curve)}"


def _facts(s: Mapping[str, Any]) -> list[tuple[str, str]]:
    metric = s["metric"]["name"]
    rows = [("run", str(s["label"])), ("rounds", str(s["rounds"]))]
    for word in ("last", "best"):
        if s[word]:
            value = in_unit(metric, s[word]["value"])
            rows.append((f"{word} {metric}", f"{value} (round {s[word]['round']})"))
    if s["target"] is not None and s["rounds_to_target_text"]:
        rows.append((f"rounds to {in_unit(metric, s['target'])}", s["rounds_to_target_text"]))
    rows.append(("traffic", in_bytes(s["bytes_down"] + s["bytes_up"])))
    return [*rows, ("time", f"{s['seconds']:.3g} s")]


def _picture(metric: str, curve: tuple[Sequence[int], Sequence[float]]) -> str:
    """The curve over the rounds; nothing of fewer than two values, or without matplotlib."""
    rounds, values = curve
    if len(values) < 2:
        return ""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return ""
    figure = Figure(figsize=(5, 2.6), layout="constrained")
    axes = figure.subplots()
    axes.plot(rounds, values)
    axes.set_xlabel("round")
    axes.set_ylabel(metric.replace("_", " "))
    axes.grid(True, alpha=0.3)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100)
    data = base64.b64encode(file.getvalue()).decode()
    alt = f"{metric} over the rounds, {values[0]:.4g} to {values[-1]:.4g}"
    return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{data}">'
