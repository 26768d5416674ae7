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
    name_panel,
    nth_style,
    panels,
    plain,
)

from .entry import Protocol, Quantity, settings_of
from .measure import METRICS
from .series import Series
from .table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HISTOGRAM = "client_acc_pct"
_BINS = 20
_CURVES = 16  # rows whose curves can be told apart
Handles = dict[str, Any]  # what a legend names


def pictures(table: Table) -> list[Picture]:
    """Every picture of a table for which there are lines: of each kind of curve one, and one of the
    clients' accuracy. Raises ConfigError if matplotlib is missing.
    """
    styles = {row.key: nth_style(i) for i, row in enumerate(table.plan.rows)}
    quantities = [n.quantity for n in table.numbers]
    kinds = dict.fromkeys(METRICS[w.metric].series for w in quantities)
    some = len(styles) <= _CURVES
    all_pictures = [_curves(table, kind, quantities, styles) for kind in kinds if kind and some]
    if any(w.metric == _HISTOGRAM for w in quantities):
        all_pictures.append(_histograms(table, styles))
    return [picture for picture in all_pictures if picture is not None]


# ------------------------------------------------------------------------------------------- curves
def _words(table: Table, protocol: Protocol) -> str:
    several = len({p.dataset for p in table.entry.protocols}) < len(table.entry.protocols)
    words = protocol.words if several else ""
    return f"{protocol.dataset}, {words}" if words else protocol.dataset


def _curves(
    table: Table, series: Series, quantities: Sequence[Quantity], styles: Mapping[str, Style]
) -> Picture | None:
    """A kind of curve by round: mean over the seeds, and the band of the seeds; a panel for each
    protocol and size of a sub-model ("" without any).
    """
    selected = [w for w in quantities if METRICS[w.metric].series == series]
    grid = []
    for protocol in table.entry.protocols:
        sizes = (settings_of(w.at).get("size", "") for w in selected if w.protocol is protocol)
        for size in dict.fromkeys(sizes):
            lines = {key: table.lines(protocol, key).values() for key in styles}
            curves = {key: series.band([*group], size) for key, group in lines.items()}
            if any(len(points) > 1 for points in curves.values()):
                more = f", size {size}" if size else ""
                grid.append((f"{_words(table, protocol)}{more}", curves))
    if not grid:
        return None
    fig, axes = _axes(len(grid))
    handles: Handles = {}
    for ax, (words, curves) in zip(axes, grid, strict=True):
        for key, points in curves.items():
            if points:
                along, middle, low, high = zip(*points, strict=True)
                handles[key] = line_with_band(ax, along, middle, low, high, styles[key])
        plain(ax, "round", series.words if is_first(ax) else "")
        name_panel(ax, words)
        ax.xaxis.get_major_locator().set_params(integer=True, nbins=5)
    names = {row.key: row.name for row in table.plan.rows}
    _one_legend(fig, handles, names)
    alt = _alt(f"{series.words} by round", grid, names)
    return Picture(
        _file(table, series.name or series.column), f"{table.entry.id}: {series.words}", alt, fig
    )


# -------------------------------------------------------------------------------------- the clients
def _histograms(table: Table, styles: Mapping[str, Style]) -> Picture | None:
    """How many per cent of the clients have which accuracy, as outlines, seeds together."""
    grid = []
    for protocol in table.entry.protocols:
        lines = {key: table.lines(protocol, key).values() for key in styles}
        by_row = {
            key: [100 * float(v) for line in row_lines for v in line["clients"] if v is not None]
            for key, row_lines in lines.items()
        }
        if accuracies := {key: v for key, v in by_row.items() if v}:
            grid.append((_words(table, protocol), accuracies))
    if not grid:
        return None
    fig, axes = _axes(len(grid))
    handles: Handles = {}
    for ax, (words, accuracies) in zip(axes, grid, strict=True):
        pooled = list(itertools.chain(*accuracies.values()))
        low, high = min(pooled), max(max(pooled), min(pooled) + 1)
        edges = [low + (high - low) * i / _BINS for i in range(_BINS + 1)]
        for key, values in accuracies.items():
            weights = [100 / len(values)] * len(values)
            kind = {"histtype": "step", "lw": 1.6, "ls": styles[key].dash}
            _, _, (handles[key], *_) = ax.hist(
                values, bins=edges, weights=weights, color=styles[key].colour, **kind
            )
        plain(ax, "accuracy of a client, %", "% of clients" if is_first(ax) else "")
        name_panel(ax, words)
    names = {row.key: row.name for row in table.plan.rows}
    _one_legend(fig, handles, names)
    alt = _alt("How many clients have which accuracy", grid, names)
    return Picture(_file(table, "clients"), f"{table.entry.id}: clients", alt, fig)


# -------------------------------------------------------------------------------------- the numbers
Dots = Sequence[tuple[str, Sequence[float], float | None]]  # name, each seed's, the paper's


def dots(grid: Sequence[tuple[str, str, Dots]]) -> Figure:
    """Draw numbers in rows, the first at the top: each seed's, their mean, and what the paper
    prints. grid: of each panel its title, words for its axis, and its rows.
    """
    most = max(len(rows) for _, _, rows in grid)
    fig, axes = panels(len(grid), 4.2, 1.4 + 0.26 * most, 2)
    handles: Handles = {}
    for ax, (name, words, rows) in zip(axes, grid, strict=True):
        for y, (_, values, published) in enumerate(reversed(rows)):
            finite = [v for v in values if math.isfinite(v)]
            (handles["here, each seed"],) = ax.plot(
                finite, [y] * len(finite), "o", color="#0072B2", alpha=0.35, ms=5, mew=0
            )
            middle = [v for v in [mean(values)] if v is not None]
            (handles["here, mean"],) = ax.plot(
                middle, [y] * len(middle), "|", color="#0072B2", ms=13, mew=2
            )
            if published is not None:
                (handles["paper"],) = ax.plot(published, y, "D", color="#D55E00", ms=5, mfc="none")
        ax.set_yticks(range(len(rows)), [name for name, _, _ in reversed(rows)])
        ax.set_ylim(-0.6, len(rows) - 0.4)
        plain(ax, words, "")
        name_panel(ax, name)
    legend_below(fig, [*handles.values()], [*handles])
    return fig


# ------------------------------------------------------------------------------------------- common
def _axes(count: int) -> tuple[Figure, list[Any]]:
    """Axes for curves or histograms: one as a report's, of several three in a row."""
    return panels(count, 3.6, 2.8 if count > 1 else HEIGHT, 3)


def _alt(
    subject: str, grid: Sequence[tuple[str, Mapping[str, object]]], names: Mapping[str, str]
) -> str:
    """What a picture shows, in words: of which rows, and where."""
    rows = [name for key, name in names.items() if any(panel.get(key) for _, panel in grid)]
    return f"{subject}: {', '.join(rows)}; {'; '.join(words for words, _ in grid)}."


def _one_legend(fig: Figure, handles: Handles, names: Mapping[str, str]) -> None:
    """Name what was drawn in all panels below them, in the order of names {key: name}."""
    keys = [key for key in names if key in handles]
    legend_below(fig, [handles[key] for key in keys], [names[key] for key in keys])


def _file(table: Table, suffix: str) -> str:
    return f"{table.entry.paper}-{table.entry.name}-{suffix}"
