"""A table or figure as pictures, from lines alone: curves, histograms of clients, and numbers
beside the paper's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedloom.report.curve_data import mean
from fedloom.report.style import (
    HEIGHT,
    Picture,
    Style,
    is_first,
    legend_below,
    line_with_band,
    named,
    numbered,
    panels,
    plain,
)

from .entry import Protocol, Wanted
from .measure import METRICS, title
from .published_tables import settings_of
from .series import Band, Series
from .table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HISTOGRAM = "client_acc_pct"
_BINS = 20
Handles = dict[str, Any]  # what a legend names


def pictures(found: Table) -> list[Picture]:
    """Every picture of a table for which there are lines: of each kind of curve one, of the
    clients' accuracy one, and one of each number that is printed or no point of a curve.

    Raises ConfigError if matplotlib is missing.
    """
    look = {row.key: numbered(i) for i, row in enumerate(found.plan.rows)}
    wanted = [n.wanted for n in found.numbers]
    kinds = dict.fromkeys(METRICS[w.metric].series for w in wanted)
    curves = _panels if found.entry.panels else _curves
    drawn = [curves(found, one, wanted, look) for one in kinds if one is not None]
    if any(w.metric == _HISTOGRAM for w in wanted):
        drawn.append(_histograms(found, look))
    if not found.entry.own:
        drawn += [_numbers(found, metric, at) for metric, at in _scalars(found)]
    return [picture for picture in drawn if picture is not None]


# ------------------------------------------------------------------------------------------- curves
def _words(found: Table, protocol: Protocol) -> str:
    several = len({p.dataset for p in found.entry.protocols}) < len(found.entry.protocols)
    words = protocol.words if several else ""
    return f"{protocol.dataset}, {words}" if words else protocol.dataset


def _curves(
    found: Table, one: Series, wanted: Sequence[Wanted], look: Mapping[str, Style]
) -> Picture | None:
    """A kind of curve by round: mean over the seeds, and the band of the seeds; a panel for each
    protocol and size of a sub-model ("" without any).
    """
    own = [w for w in wanted if METRICS[w.metric].series == one]
    filled = []
    for protocol in found.entry.protocols:
        sizes = (settings_of(w.at).get("size", "") for w in own if w.protocol is protocol)
        for size in dict.fromkeys(sizes):
            lines = {key: found.lines(protocol, key).values() for key in look}
            curves = {key: one.band([*own], size) for key, own in lines.items()}
            if any(len(points) > 1 for points in curves.values()):
                more = f", size {size}" if size else ""
                filled.append((f"{_words(found, protocol)}{more}", curves))
    if not filled:
        return None
    made, axes, drawn = curves_side_by_side(filled, look, one.words)
    for place in axes:
        place.xaxis.get_major_locator().set_params(integer=True, nbins=5)
    names = {row.key: row.name for row in found.plan.rows}
    one_legend(made, drawn, names)
    alt = _alt(f"{one.words} by round", filled, names)
    return Picture(
        _file(found, one.name or one.column), f"{found.entry.id}: {one.words}", alt, made
    )


def _panels(
    found: Table, one: Series, wanted: Sequence[Wanted], look: Mapping[str, Style]
) -> Picture | None:
    """A kind of curve of many rows: a panel with a legend for each family of rows, and the base in
    each of them.
    """
    (protocol,), base = found.entry.protocols, found.entry.bases[0]
    bands = {key: one.band([*found.lines(protocol, key).values()]) for key in look}
    names = {row.key: row.name for row in found.plan.rows}
    grid, styles = [], {base: Style("#888888", "--")}
    for words, keys in found.entry.panels.items():
        styles |= {key: numbered(i) for i, key in enumerate(keys)}
        own = {key: bands[key] for key in (base, *keys) if bands.get(key)}
        if own.keys() - {base}:
            grid.append((words, own))
    if not grid:
        return None
    up = one.words.replace("moving average", "EMA")
    made, axes, drawn = curves_side_by_side(grid, styles, up, across=2)
    middles = sorted(m for points in bands.values() for _, m, *_ in points[len(points) // 10 :])
    top = max(high for points in bands.values() for *_, high in points)
    for place, handles in zip(axes, drawn, strict=True):
        place.set_ylim(middles[len(middles) // 30] - 2, top + 1)  # not the first, slow rounds
        below: Handles = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2), "ncols": 3}
        shown = [names[key] for key in handles]
        place.legend([*handles.values()], shown, fontsize=7, frameon=False, **below)
    alt = _alt(f"{one.words} by round", grid, names)
    return Picture(_file(found, one.name), f"{found.entry.id}: {one.words}", alt, made)


def curves_side_by_side(
    grid: Sequence[tuple[str, Mapping[str, Band]]],
    look: Mapping[str, Style],
    y: str,
    across: int = 3,
) -> tuple[Figure, list[Any], list[Handles]]:
    """Draw curves by round with their bands, {name: curve} in each panel; empty ones are left out.

    look: each name's style; y: words for the vertical axis. Returns the figure, its axes, and of
    each panel {name: line}; a legend is the caller's.
    """
    made, axes = _axes(len(grid), across)
    drawn: list[Handles] = []
    for place, (words, curves) in zip(axes, grid, strict=True):
        handles = {}
        for name, points in curves.items():
            if points:
                along, middle, low, high = zip(*points, strict=True)
                handles[name] = line_with_band(place, along, middle, low, high, look[name])
        drawn.append(handles)
        plain(place, "round", y if is_first(place) else "")
        named(place, words)
    return made, axes, drawn


# -------------------------------------------------------------------------------------- the clients
def _histograms(found: Table, look: Mapping[str, Style]) -> Picture | None:
    """How many per cent of the clients have which accuracy, as outlines, seeds together."""
    filled = []
    for protocol in found.entry.protocols:
        lines = {key: found.lines(protocol, key).values() for key in look}
        by_row = {
            key: [100 * float(v) for line in own for v in line["clients"] if v is not None]
            for key, own in lines.items()
        }
        if known := {key: v for key, v in by_row.items() if v}:
            filled.append((_words(found, protocol), known))
    if not filled:
        return None
    made, axes = _axes(len(filled))
    drawn: list[Handles] = []
    for place, (words, known) in zip(axes, filled, strict=True):
        together = list(itertools.chain(*known.values()))
        low, high = min(together), max(max(together), min(together) + 1)
        edges = [low + (high - low) * i / _BINS for i in range(_BINS + 1)]
        handles = {}
        for key, values in known.items():
            share = [100 / len(values)] * len(values)
            kind = {"histtype": "step", "lw": 1.6, "ls": look[key].dash}
            _, _, (handles[key], *_) = place.hist(
                values, bins=edges, weights=share, color=look[key].colour, **kind
            )
        drawn.append(handles)
        plain(place, "accuracy of a client, %", "% of clients" if is_first(place) else "")
        named(place, words)
    names = {row.key: row.name for row in found.plan.rows}
    one_legend(made, drawn, names)
    alt = _alt("How many clients have which accuracy", filled, names)
    return Picture(_file(found, "clients"), f"{found.entry.id}: clients", alt, made)


# -------------------------------------------------------------------------------------- the numbers
def _scalars(found: Table) -> list[tuple[str, str]]:
    """The measures of which something is known, that are no curve's, or printed in the paper and
    run at its scale: a reduced one would only show that fewer rounds are fewer.
    """
    beside = found.plan.scale == "paper"
    out = dict.fromkeys(
        (n.wanted.metric, n.wanted.at)
        for n in found.numbers
        if n.values
        and (METRICS[n.wanted.metric].series is None or (beside and n.published is not None))
    )
    return [pair for pair in out if pair[0] != _HISTOGRAM]


def _numbers(found: Table, metric: str, at: str) -> Picture | None:
    """A measure of every row: mean and each seed here, and what the paper prints."""
    grid = []
    for protocol in found.entry.protocols:
        numbers = [
            n
            for n in found.numbers_of(protocol, (metric, at))
            if n.mean is not None and math.isfinite(n.mean)
        ]
        shown = [(n.wanted.row.name, [*n.values.values()], n.published) for n in numbers]
        if shown:
            words = title(metric, at, found.round_of(at, protocol))
            grid.append((_words(found, protocol), words, shown))
    if not grid:
        return None
    made = dots(grid)
    name = "-".join(filter(None, (metric, at.replace("=", "").replace("/", "of"))))
    places = [(words, {row: [value] for row, *value in shown}) for words, _, shown in grid]
    alt = _alt(title(metric, at), places, {row: row for _, _, shown in grid for row, *_ in shown})
    return Picture(_file(found, name), f"{found.entry.id}: {title(metric, at)}", alt, made)


Dots = Sequence[tuple[str, Sequence[float], float | None]]  # name, each seed's, the paper's


def dots(grid: Sequence[tuple[str, str, Dots]]) -> Figure:
    """Draw numbers in rows, the first at the top: each seed's, their mean, and what the paper
    prints. grid: of each panel its title, words for its axis, and its rows.
    """
    most = max(len(rows) for _, _, rows in grid)
    made, axes = panels(len(grid), 4.2, 1.4 + 0.26 * most, 2)
    handles: Handles = {}
    for place, (name, words, rows) in zip(axes, grid, strict=True):
        for y, (_, values, published) in enumerate(reversed(rows)):
            known = [v for v in values if math.isfinite(v)]
            (handles["here, each seed"],) = place.plot(
                known, [y] * len(known), "o", color="#0072B2", alpha=0.35, ms=5, mew=0
            )
            middle = [v for v in [mean(values)] if v is not None]
            (handles["here, mean"],) = place.plot(
                middle, [y] * len(middle), "|", color="#0072B2", ms=13, mew=2
            )
            if published is not None:
                (handles["paper"],) = place.plot(
                    published, y, "D", color="#D55E00", ms=5, mfc="none"
                )
        place.set_yticks(range(len(rows)), [name for name, _, _ in reversed(rows)])
        place.set_ylim(-0.6, len(rows) - 0.4)
        plain(place, words, "")
        named(place, name)
    legend_below(made, [*handles.values()], [*handles])
    return made


# ------------------------------------------------------------------------------------------- common
def _axes(count: int, across: int = 3) -> tuple[Figure, list[Any]]:
    """Axes for curves or histograms: one as a report's, of several three in a row."""
    return panels(count, 3.6, 2.8 if count > 1 else HEIGHT, across)


def _alt(
    what: str, grid: Sequence[tuple[str, Mapping[str, object]]], names: Mapping[str, str]
) -> str:
    """What a picture shows, in words: of which rows, and where."""
    rows = [name for key, name in names.items() if any(own.get(key) for _, own in grid)]
    return f"{what}: {', '.join(rows)}; {'; '.join(words for words, _ in grid)}."


def one_legend(made: Figure, drawn: Sequence[Handles], names: Mapping[str, str]) -> None:
    """Name what was drawn in all panels below them, in the order of names {key: name}."""
    handles = {key: handle for panel in drawn for key, handle in panel.items()}
    shown = [key for key in names if key in handles]
    legend_below(made, [handles[key] for key in shown], [names[key] for key in shown])


def _file(found: Table, what: str) -> str:
    return f"{found.entry.paper}-{found.entry.name}-{what}"
