"""Sub-models: accuracy per size at the clients and on the common test set, sizes nobody trained,
what was explored. One table, and pictures with a panel for each size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .load import Floats, Group, Run
from .series import group_curve, last, mean, sd
from .style import Picture, Style, figure, legend_below, plain, shorten
from .tables import MISSING, human_value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["size_cells", "size_pictures", "sizes_of"]

_PANEL, _HEIGHT, _ACROSS = 2.8, 2.5, 4


def sizes_of(groups: Sequence[Group]) -> list[str]:
    """The sizes that were measured in any of the groups, as columns name them, in rising order."""
    found = {
        column.partition("@")[2]
        for group in groups
        for run in group.runs
        for column in run.columns
        if column.startswith(f"{group.metric.column}@")
    }
    return sorted(found - {"mean"}, key=float)


def size_cells(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    """Headings, and for each group a line of local and one of global values per size and on
    average, as the papers' tables have them: means over the seeds, with their deviation.
    """
    sizes = sizes_of(groups)
    if not sizes:
        return [], []
    lines = []
    for group in groups:
        for said, kind in (("local", "local"), ("global", "test")):
            name = f"{kind}_{group.metric.name}"
            values = [[last(run, f"{name}@{s}") for run in group.counted] for s in (*sizes, "mean")]
            if any(v is not None for column in values for v in column):
                cells = [_cell(column, group.metric.unit) for column in values]
                lines.append([group.label, said, *cells])
    return ["algorithm", "measured", *(f"size {s}" for s in sizes), "mean"], lines


def _cell(values: Sequence[float | None], unit: str) -> str:
    return MISSING if mean(values) is None else human_value(mean(values), unit, sd(values))


def size_pictures(groups: Sequence[Group], look: Mapping[str, Style]) -> list[Picture]:
    """Draw what there are data for: the metric by round and size, histograms over the clients of
    each size, sizes that nobody trained, exploration and difference by round and size.
    """
    sizes = sizes_of(groups)
    if not sizes:
        return []
    metric = groups[0].metric
    unit = " (%)" if metric.unit == "share" else ""
    name = metric.name.replace("_", " ")
    made = [
        _by_round(groups, look, sizes, f"test_{metric.name}", f"test {name}{unit}", "rounds"),
        _by_round(groups, look, sizes, f"local_{metric.name}", f"local {name}{unit}", "local"),
        _histograms(groups, look, sizes, f"local {name}{unit}"),
        _unseen(groups, look, f"test {name}{unit}"),
        _by_round(groups, look, sizes, "explored", "explored (%)", "explored"),
        _by_round(groups, look, sizes, "replaced", "replaced by a round (%)", "replaced"),
    ]
    return [picture for picture in made if picture is not None]


def _panels(
    sizes: Sequence[str], draw: Callable[[Any, str], list[tuple[str, object]]], x: str, y: str
) -> tuple[Figure, bool]:
    """A panel for each size; draw(axes, size) gives the labels and handles of what it drew."""
    from matplotlib.ticker import MaxNLocator

    rows = -(-len(sizes) // _ACROSS)
    across = min(len(sizes), _ACROSS)
    made = figure(max(5.6, _PANEL * across), _HEIGHT * rows)
    grid = made.subplots(rows, across, squeeze=False).ravel()
    legend: dict[str, object] = {}
    for axes, size in zip(grid, sizes, strict=False):
        legend |= dict(draw(axes, size))
        plain(axes, x, y if axes is grid[0] else "")
        if x == "rounds":
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
        axes.set_title(f"size {size}", fontsize=9.5, loc="left")
    for axes in grid[len(sizes) :]:
        axes.set_visible(False)
    if legend:
        legend_below(made, list(legend.values()), list(legend))
    return made, bool(legend)


def _by_round(
    groups: Sequence[Group],
    look: Mapping[str, Style],
    sizes: Sequence[str],
    column: str,
    label: str,
    name: str,
) -> Picture | None:
    """One panel for each size, a line with the seeds' band for each group."""
    up, ends = 100.0 if "%" in label else 1.0, []

    def draw(axes: Axes, size: str) -> list[tuple[str, object]]:
        handles: list[tuple[str, object]] = []
        for group in groups:
            if (curve := group_curve(group, f"{column}@{size}")) is None:
                continue
            style = look[group.key]
            (line,) = axes.plot(curve.x, curve.mean * up, style.dash, color=style.colour, lw=1.6)
            if curve.seeds > 1:
                low, high = curve.low * up, curve.high * up
                axes.fill_between(curve.x, low, high, color=style.colour, alpha=0.18, lw=0)
            handles.append((group.label, line))
            ends.append(f"{group.label} at size {size} {curve.mean[-1] * up:.4g}")
        return handles

    made, drawn = _panels(sizes, draw, "rounds", label)
    if not drawn:
        return None
    title = f"{label[0].upper()}{label[1:]} by round and size"
    alt = f"Line charts: {title.lower()}. Last values: {'; '.join(ends)}."
    return Picture(f"sizes-{name}", title, alt, made)


def _histograms(
    groups: Sequence[Group], look: Mapping[str, Style], sizes: Sequence[str], label: str
) -> Picture | None:
    """Of every size the metric at its clients, each with its own sub-model, as a step line."""
    pooled = {(g.key, s): _own(g, s) for g in groups for s in sizes}
    every = np.concatenate([np.zeros(0), *pooled.values()])
    if not every.size:
        return None
    up = 100.0 if "%" in label else 1.0
    bins = np.histogram_bin_edges(every * up, bins=12).tolist()
    ends = []

    def draw(axes: Axes, size: str) -> list[tuple[str, object]]:
        handles: list[tuple[str, object]] = []
        for group in groups:
            values = pooled[group.key, size]
            if values.size:
                style, share = look[group.key], np.full(values.size, 100.0 / values.size)
                heights, _ = np.histogram(values * up, bins, weights=share)
                drawn = axes.stairs(heights, bins, color=style.colour, lw=1.6)
                handles.append((group.label, drawn))
                ends.append(f"{group.label} at size {size} {values.mean() * up:.4g}")
        return handles

    made, _ = _panels(sizes, draw, label, "% of clients")
    title = "Clients of each size with a sub-model of that size"
    alt = f"Histograms: {title.lower()}. Means: {'; '.join(ends)}."
    return Picture("sizes-clients", title, alt, made)


def _own(group: Group, size: str) -> Floats:
    """The values of the clients of a size, of all seeds that count."""
    found = []
    for run in group.counted:
        part = run.clients.get("submodel") or {}
        pairs = zip(part.get("capacities") or (), part.get("values") or (), strict=False)
        found += [v for c, v in pairs if v is not None and f"{c:.6g}" == size]
    return np.array(found, dtype=np.float64)


def _unseen(groups: Sequence[Group], look: Mapping[str, Style], label: str) -> Picture | None:
    """The metric against the size, of sizes trained and not trained."""
    up, ends, handles = 100.0 if "%" in label else 1.0, [], []
    made = figure(5.6, 3.6)
    axes = made.add_subplot()
    for group in groups:
        points: dict[float, list[float]] = {}
        for run in group.counted:
            for size, value in _measured(run).items():
                points.setdefault(size, []).append(value)
        if not points:
            continue
        sizes, style = sorted(points), look[group.key]
        means = [up * float(np.mean(points[s])) for s in sizes]
        (line,) = axes.plot(sizes, means, style.dash, color=style.colour, marker="o", ms=3.5)
        handles.append((shorten(group.label, 48), line))
        words = (f"{size:g} {value:.4g}" for size, value in zip(sizes, means, strict=True))
        ends.append(f"{group.label}: {', '.join(words)}")
    if not handles:
        return None
    axes.set_xscale("log")
    plain(axes, "size: share of the model", label)
    legend_below(made, [h for _, h in handles], [text for text, _ in handles])
    title = "Sizes trained and sizes that nobody trained"
    return Picture("sizes-unseen", title, f"Line chart: {title.lower()}. {'; '.join(ends)}.", made)


def _measured(run: Run) -> dict[float, float]:
    """{size: the metric on the common test set}, where further sizes were asked for."""
    about: Any = run.summary.get("sizes") or {}
    if not about.get("unseen"):
        return {}
    values = {float(s): v for s, v in (about.get("global") or {}).items() if s != "mean"}
    values |= {row["capacity"]: row["global"] for row in about["unseen"]}
    return {s: float(v) for s, v in values.items() if v is not None}
