"""The picture of a study: differences with their intervals, a row for each comparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .style import Picture, figure, nth_style, plain, shorten


def forest(study: Mapping[str, Any]) -> Picture:
    """Draw what a referee found (`referee.page.as_json`): a dot and an interval for each rival in
    each cell, candidate less rival; the band holds differences that do not matter.

    Raises ConfigError if matplotlib is missing.
    """
    rows = [(cell["name"], one) for cell in study["cells"] for one in cell["comparisons"]]
    factor = 100 if study["unit"] == "share" else 1
    fig = figure(7.0, 1.2 + 0.28 * len(rows))
    axes = fig.add_subplot()
    axes.axvline(0, color="black", linewidth=0.8)
    if study["delta"] is not None:
        axes.axvspan(-factor * study["delta"], factor * study["delta"], color="0.9")
    looks = {name: nth_style(i) for i, name in enumerate(study["against"])}
    for place, (_, one) in enumerate(rows):
        if one["difference"] is None:
            continue
        look = looks[one["against"]]
        if one["low"] is not None and one["high"] is not None:
            ends = [factor * one["low"], factor * one["high"]]
            axes.plot(ends, [place, place], color=look.colour, linewidth=1.5)
        axes.plot([factor * one["difference"]], [place], look.mark, color=look.colour)
    axes.set_yticks(range(len(rows)), [shorten(f"{c}, {o['against']}", 44) for c, o in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    unit = "points of " if factor == 100 else ""
    plain(axes, f"{study['method']} less the rival, {unit}{study['metric']}", "")
    text = "; ".join(f"{cell}, {one['against']}: {one['verdict']}" for cell, one in rows)
    return Picture("referee", "Differences", f"Intervals of differences. {text}.", fig)
