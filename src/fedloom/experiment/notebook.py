"""A result as a line of text, and as a small table and curve for a notebook."""

from __future__ import annotations

import html
import math
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
    if s["seconds"] is not None:
        rows.append(("time", f"{s['seconds']:.3g} s"))
    simulated = s.get("simulated_seconds")
    return rows if simulated is None else [*rows, ("device time", f"{simulated:.3g} s")]


def _picture(metric: str, curve: tuple[Sequence[int], Sequence[float]]) -> str:
    """The curve over the rounds as SVG, with its ends in words; nothing of fewer than two finite
    values.
    """
    points = [(r, v) for r, v in zip(*curve, strict=True) if math.isfinite(v)]
    if len(points) < 2:
        return ""
    (first, *_), values = zip(*points, strict=True)
    last, low, high = points[-1][0], min(values), max(values)
    across, up = 400 / max(last - first, 1), 120 / ((high - low) or 1.0)
    line = " ".join(f"{(r - first) * across:.1f},{130 - (v - low) * up:.1f}" for r, v in points)
    label = html.escape(f"{metric} from {in_unit(metric, low)} to {in_unit(metric, high)}")
    return (
        f'<svg width="420" height="160" viewBox="-5 0 420 160" role="img" aria-label="{label}">'
        f'<polyline points="{line}" fill="none" stroke="#1f77b4" stroke-width="2"/>'
        f'<text x="0" y="152" font-size="12" fill="currentColor">{label}, rounds {first} to {last}'
        "</text></svg>"
    )
