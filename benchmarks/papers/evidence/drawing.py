"""Panels of lines in the style of `fedloom report`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedloom.report.style import Style, figure, legend_below, line_with_band, plain, shorten

from .numbers import Band

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_WIDTH, _HEIGHT, _WIDEST = 3.3, 2.7, 10.0


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
    rows = -(-len(grid) // across)
    ys = [y] * rows if isinstance(y, Axis) else list(y)
    made = figure(max(5.6, min(_WIDTH * across, _WIDEST)), _HEIGHT * rows)
    cells = made.subplots(rows, across, squeeze=False, sharey="row" if shared else False).ravel()
    legend: dict[str, Any] = {}
    for i, axes in enumerate(cells):
        if i >= len(grid):
            axes.set_visible(False)
            continue
        own = _draw(axes, grid[i], grid[i].x or x, ys[i // across], leftmost=i % across == 0)
        if own_legends:
            lines, names = list(own.values()), list(own)
            below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2), "ncols": 3}
            axes.legend(lines, names, fontsize=7, frameon=False, **below)
        legend |= own
    for i, (axes, panel) in enumerate(zip(cells, grid, strict=False)):
        _limit(axes, panel.x or x, ys[i // across])
    if legend and not own_legends:
        legend_below(made, list(legend.values()), list(legend))
    return made


def _draw(axes: Axes, panel: Panel, x: Axis, y: Axis, leftmost: bool) -> dict[str, Any]:
    from matplotlib.ticker import MaxNLocator

    handles = {}
    for trace in panel.traces:
        band, style = trace.band, trace.style
        heights = ([v * y.factor for v in part] for part in (band.mean, band.low, band.high))
        xs = [v / x.factor for v in band.x]
        line = line_with_band(axes, xs, *heights, style, faint=trace.faint)
        handles[shorten(trace.label, 48)] = line
    plain(axes, x.label, y.label if leftmost else "")
    axes.set_title(panel.title, fontsize=9.5, loc="left")
    if x.log:
        axes.set_xscale("log")
    if y.log:
        axes.set_yscale("log")
    if x.ticks:
        axes.set_xticks(list(x.ticks), list(x.ticks.values()))
        axes.minorticks_off()
    elif x.label == "rounds":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, steps=[1, 2, 5, 10]))
    return handles


def _limit(axes: Axes, x: Axis, y: Axis) -> None:
    """Set the limits that are asked for; a shared axis is not measured again after the first."""
    if (x.low, x.high) != (None, None):
        axes.set_xlim(x.low, x.high)
    if (y.low, y.high) != (None, None):
        axes.set_ylim(y.low, y.high)


def steps(
    grid: Sequence[tuple[str, Sequence[float]]], colours: Sequence[Style], seeds: Sequence[int]
) -> Figure:
    """Histograms side by side of shares in bins of five points, as FIARSE's Figure 2: clients per
    bin, the mean over the seeds. grid: (title, the values of all seeds' clients).
    """
    across = min(4, len(grid))
    rows = -(-len(grid) // across)
    made = figure(max(5.6, 2.8 * across), 2.4 * rows)
    cells = made.subplots(rows, across, squeeze=False, sharex=True, sharey=True).ravel()
    edges = [5.0 * i for i in range(21)]
    for i, axes in enumerate(cells):
        if i >= len(grid):
            axes.set_visible(False)
            continue
        title, values = grid[i]
        weights = [1 / seeds[i]] * len(values)
        shares = [min(100 * v, 99.99) for v in values]  # the last bin holds its upper end
        axes.hist(shares, bins=edges, weights=weights, color=colours[i].colour, alpha=0.85)
        if values:
            axes.axvline(100 * sum(values) / len(values), color="black", lw=1.2)
        plain(axes, "local accuracy (%)", "clients" if i % across == 0 else "")
        axes.set_title(title, fontsize=9.5, loc="left")
        axes.tick_params(labelbottom=True)
    return made


def dots(rows: Sequence[tuple[str, Mapping[str, Iterable[float]]]], x: str) -> Figure:
    """Draw a row of dots for each name: the first series filled, further ones open; the mean of
    each as a bar. rows: (name, {series: values in the axis' unit}), the highest first.
    """
    made = figure(7.2, 1.0 + 0.24 * len(rows))
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
    axes.set_yticks(range(len(rows)), [shorten(name, 40) for name, _ in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    plain(axes, x, "")
    if len(series) > 1:
        legend_below(made, list(handles.values()), list(handles))
    return made
