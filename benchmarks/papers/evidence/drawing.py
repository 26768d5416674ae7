"""Panels of lines in the style of `fedloom report`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedloom.report import style
from fedloom.report.style import Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Band:
    """Several seeds' curves: at each x that all of them have, the mean, the lowest and highest."""

    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    seeds: int


def band(curves: Sequence[Mapping[Any, float]]) -> Band | None:
    """Seeds together; None if they share no x.

    >>> band([{1: 0.0, 2: 1.0}, {2: 3.0}])
    Band(x=(2,), mean=(2.0,), low=(1.0,), high=(3.0,), seeds=2)
    """
    curves = [c for c in curves if c]
    shared = sorted(set.intersection(*(set(c) for c in curves))) if curves else []
    if not shared:
        return None
    rows = [[c[x] for c in curves] for x in shared]
    means = tuple(math.fsum(r) / len(r) for r in rows)
    return Band(tuple(shared), means, tuple(map(min, rows)), tuple(map(max, rows)), len(curves))


@dataclass(frozen=True)
class Trace:
    """A line with its seeds' band; `faint`: in the background, for comparison."""

    label: str
    band: Band
    style: Style
    faint: bool = False


@dataclass(frozen=True)
class Axis:
    """What an axis shows, by which factor values are scaled, its limits, kind and ticks."""

    label: str
    factor: float = 1.0
    low: float | None = None
    high: float | None = None
    log: bool = False
    ticks: Mapping[float, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Panel:
    """One panel's title and traces, and its own horizontal axis where it has one."""

    title: str
    traces: Sequence[Trace]
    x: Axis | None = None


def panels(
    grid: Sequence[Panel],
    x: Axis,
    y: Axis | Sequence[Axis],
    across: int,
    own_legends: bool = False,
    shared: bool = True,
) -> Figure:
    """Draw panels in rows of `across`, which share their vertical axis unless `shared` is false.

    y: one for all, or one for each row. One legend below, or with `own_legends` one in every panel.
    Raises ConfigError if matplotlib is missing.
    """
    across = min(across, len(grid))
    rows = "row" if shared else False
    made, cells = style.panels(len(grid), min(3.3, 10 / across), 2.7, across, rows)
    legend: dict[str, Any] = {}
    for i, (axes, panel) in enumerate(zip(cells, grid, strict=True)):
        lines = _draw(axes, panel, panel.x or x, y if isinstance(y, Axis) else y[i // across])
        if own_legends:
            below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2), "ncols": 3}
            axes.legend(list(lines.values()), list(lines), fontsize=7, frameon=False, **below)
        legend |= lines
    if legend and not own_legends:
        style.legend_below(made, list(legend.values()), list(legend))
    return made


def _draw(axes: Axes, panel: Panel, x: Axis, y: Axis) -> dict[str, Any]:
    """Draw the traces of a panel -> {label: its line}."""
    from matplotlib.ticker import MaxNLocator

    handles = {}
    for trace in panel.traces:
        band = trace.band
        heights = ([v * y.factor for v in part] for part in (band.mean, band.low, band.high))
        xs = [v / x.factor for v in band.x]
        line = style.line_with_band(axes, xs, *heights, trace.style, faint=trace.faint)
        handles[style.shorten(trace.label, 48)] = line
    style.plain(axes, x.label, y.label if style.is_first(axes) else "")
    style.named(axes, panel.title)
    axes.set(xscale="log" if x.log else "linear", yscale="log" if y.log else "linear")
    if x.ticks:
        axes.set_xticks(list(x.ticks), list(x.ticks.values()))
        axes.minorticks_off()
    elif x.label == "rounds":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, steps=[1, 2, 5, 10]))
    if x.low is not None:
        axes.set_xlim(x.low)
    if y.low is not None:
        axes.set_ylim(y.low, y.high)
    return handles


def steps(
    grid: Sequence[tuple[str, Sequence[float]]], colours: Sequence[Style], seeds: Sequence[int]
) -> Figure:
    """Histograms side by side of shares in bins of five points, as FIARSE's Figure 2: clients per
    bin, the mean over the seeds. grid: (title, the values of all seeds' clients).
    """
    made, cells = style.panels(len(grid), 2.8, 2.4, shared=True)
    edges = [5.0 * i for i in range(21)]
    for i, (axes, (title, values)) in enumerate(zip(cells, grid, strict=True)):
        weights = [1 / seeds[i]] * len(values)
        shares = [min(100 * v, 99.99) for v in values]  # the last bin holds its upper end
        axes.hist(shares, bins=edges, weights=weights, color=colours[i].colour, alpha=0.85)
        if values:
            axes.axvline(100 * sum(values) / len(values), color="black", lw=1.2)
        style.plain(axes, "local accuracy (%)", "clients" if style.is_first(axes) else "")
        style.named(axes, title)
    return made


def dots(rows: Sequence[tuple[str, Mapping[str, Iterable[float]]]], x: str) -> Figure:
    """Draw a row of dots for each name: the first series filled, further ones open; the mean of
    each as a bar. rows: (name, {series: values in the axis' unit}), the highest first.
    """
    made = style.figure(7.2, 1.0 + 0.24 * len(rows))
    axes = made.add_subplot()
    series = list(dict.fromkeys(name for _, cells in rows for name in cells))
    looks = [("#0072B2", "o"), ("#D55E00", "D")]
    handles: dict[str, Any] = {}
    for at, (_, cells) in enumerate(rows):
        for name, values in cells.items():
            colour, mark = looks[series.index(name) % len(looks)]
            found = list(values)
            if not found:
                continue
            handles[name] = axes.scatter(
                found, [at] * len(found), s=16, marker=mark, color=colour, alpha=0.65, lw=0
            )
            middle = sum(found) / len(found)
            axes.plot([middle] * 2, [at - 0.32, at + 0.32], color=colour, lw=2.0)
    axes.set_yticks(range(len(rows)), [style.shorten(name, 40) for name, _ in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    style.plain(axes, x, "")
    if len(series) > 1:
        style.legend_below(made, list(handles.values()), list(handles))
    return made
