"""Tables and pictures of sub-models: accuracy per size at the clients and on the common test set,
sizes that nobody trained, explored coordinates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .curve_data import group_curve, last, mean, measured, sd
from .runs import Floats, Group, Run
from .style import (
    Picture,
    Style,
    figure,
    is_first,
    legend_below,
    line_with_band,
    name_panel,
    panels,
    plain,
    shorten,
)
from .tables import MISSING, human_bytes, human_seconds, human_size, human_value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_MANY = 10  # evaluations at the end whose mean is given beside the last one


def sizes_of(groups: Sequence[Group]) -> list[str]:
    """The sizes that were measured in any of the groups, as in column names, increasing."""
    sizes = {
        column.partition("@")[2]
        for group in groups
        for run in group.runs
        for column in run.columns
        if column.startswith(f"{group.metric.column}@")
    }
    return sorted(sizes - {"mean"}, key=float)


def size_cells(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    """Headings, and for each group a line of local and one of global values per size and on
    average, as the papers' tables have them: means over the seeds, with their deviation. Then the
    same of the mean of the last ten evaluations, how much of the model every size holds, and what
    a local step takes.
    """
    sizes = sizes_of(groups)
    if not sizes:
        return [], []
    lines = []
    for group in groups:
        for value, more in ((last, ""), (_last_ones, f", mean of last {_MANY}")):
            for label, kind in (("local", "local"), ("global", "test")):
                name = f"{kind}_{group.metric.name}"
                values = [[value(run, f"{name}@{s}") for run in group.averaged_runs] for s in sizes]
                values.append([value(run, f"{name}@mean") for run in group.averaged_runs])
                if any(v is not None for column in values for v in column):
                    cells = [_cell(column, group.metric.unit) for column in values]
                    lines.append([group.label, f"{label}{more}", *cells])
        lines += _held_lines(group, sizes) + _cost_lines(group, sizes)
    heads = (f"size {human_size(float(s))}" for s in sizes)
    return ["algorithm", "measured", *heads, "mean"], lines


def _last_ones(run: Run, column: str) -> float | None:
    """The mean of the last ten measured values; None of one alone."""
    values = measured(run, column)[1][-_MANY:]
    return float(values.mean()) if values.size > 1 else None


def _held_lines(group: Group, sizes: Sequence[str]) -> list[list[str]]:
    """How much every size holds: of what its capacity is a share of, and of all parameters."""
    of_counted: list[list[float]] = [[] for _ in sizes]
    of_all: list[list[float]] = [[] for _ in sizes]
    for run in group.averaged_runs:
        by_size: Any = (run.summary.get("sizes") or {}).get("held") or {}
        for i, size in enumerate(sizes):
            if size in by_size:
                of_counted[i].append(by_size[size]["counted"] / by_size[size]["of"])
                of_all[i].append(by_size[size]["all"] / int(run.summary["parameters"]))
    both = (("held, of what counts", of_counted), ("held, of all parameters", of_all))
    lines = [[group.label, label, *(_cell(v, "share") for v in of), MISSING] for label, of in both]
    if not any(of_all):
        return []
    return lines[1:] if lines[0][2:] == lines[1][2:] else lines


def _cost_lines(group: Group, sizes: Sequence[str]) -> list[list[str]]:
    """The time and the memory of a local step of every size, as measured after the run."""
    costs = [(run.summary.get("sizes") or {}).get("cost") or {} for run in group.averaged_runs]
    lines = []
    for label, key, text in (
        ("time of a step", "seconds", human_seconds),
        ("memory of a step", "peak", human_bytes),
    ):
        values = [mean([cost.get(size, {}).get(key) for cost in costs]) for size in sizes]
        if any(v is not None for v in values):
            lines.append([group.label, label, *map(text, values), MISSING])
    return lines


def _cell(values: Sequence[float | None], unit: str) -> str:
    return MISSING if mean(values) is None else human_value(mean(values), unit, sd(values))


def size_pictures(groups: Sequence[Group], look: Mapping[str, Style]) -> list[Picture]:
    """Draw the available data: the metric by round and size, histograms over the clients of each
    size, sizes that nobody trained, exploration and difference by round and size.
    """
    sizes = sizes_of(groups)
    if not sizes:
        return []
    metric = groups[0].metric
    unit = " (%)" if metric.unit == "share" else ""
    name = metric.name.replace("_", " ")
    test, local = _Quantity(f"test {name}", unit), _Quantity(f"local {name}", unit)
    explored = _Quantity("coordinates explored", " (%)", of_part=True)
    replaced = _Quantity("part replaced", " (%)", of_part=True)
    pictures = [
        _by_round(groups, look, sizes, f"test_{metric.name}", test, "rounds"),
        _by_round(groups, look, sizes, f"local_{metric.name}", local, "local"),
        _histograms(groups, look, sizes, local.label),
        _unseen(groups, look, test.label),
        _by_round(groups, look, sizes, "explored", explored, "explored"),
        _by_round(groups, look, sizes, "replaced", replaced, "replaced"),
    ]
    return [picture for picture in pictures if picture is not None]


class _Quantity(NamedTuple):
    """The quantity of a picture. of_part: a share of each size's own sub-model, so that heights of
    different sizes cannot be compared.
    """

    words: str
    unit: str
    of_part: bool = False

    @property
    def label(self) -> str:
        """The label of the axis."""
        return f"{self.words}{self.unit}"


def _panels(
    sizes: Sequence[str],
    draw: Callable[[Any, str], list[tuple[str, object]]],
    x: str,
    y: str,
    sharey: bool = True,
) -> tuple[Figure, bool]:
    """A panel for each size; draw(axes, size) returns the labels and handles of its lines. sharey:
    all have the same vertical scale.
    """
    fig, grid = panels(len(sizes), sharey=sharey)
    legend: dict[str, object] = {}
    for axes, size in zip(grid, sizes, strict=True):
        legend |= dict(draw(axes, size))
        plain(axes, x, y if is_first(axes) else "")
        if x == "rounds":
            axes.locator_params(axis="x", integer=True, nbins=5)
        name_panel(axes, f"size {human_size(float(size))}")
    if legend:
        legend_below(fig, list(legend.values()), list(legend))
    return fig, bool(legend)


def _by_round(
    groups: Sequence[Group],
    look: Mapping[str, Style],
    sizes: Sequence[str],
    column: str,
    quantity: _Quantity,
    name: str,
) -> Picture | None:
    """One panel for each size, a line with the seeds' band for each group."""
    up, ends = 100.0 if quantity.unit else 1.0, []

    def draw(axes: Axes, size: str) -> list[tuple[str, object]]:
        handles: list[tuple[str, object]] = []
        for group in groups:
            if (curve := group_curve(group, f"{column}@{size}")) is None:
                continue
            heights = (curve.mean * up, curve.low * up, curve.high * up)
            line = line_with_band(axes, curve.x, *heights, look[group.key])
            handles.append((group.label, line))
            size_now = human_size(float(size))
            ends.append(f"{group.label} at size {size_now} {curve.mean[-1] * up:.4g}")
        if quantity.of_part and handles:
            _within_percent(axes)
        return handles

    fig, has_lines = _panels(sizes, draw, "rounds", quantity.label, sharey=not quantity.of_part)
    if not has_lines:
        return None
    title = f"{quantity.words[0].upper()}{quantity.words[1:]}, by round and size"
    alt = f"Line charts: {title.lower()}{quantity.unit}. Last values: {'; '.join(ends)}."
    return Picture(f"sizes-{name}", title, alt, fig)


def _within_percent(axes: Axes) -> None:
    """Limit an axis of shares to 0 and 100; a constant one has the full range."""
    low, high = axes.dataLim.intervaly
    if high - low < 1e-9:
        axes.set_ylim(-2, 102)
    else:
        below, above = axes.get_ylim()
        axes.set_ylim(max(below, -0.02 * high), min(above, 100 + 0.04 * (100 - low)))


def _histograms(
    groups: Sequence[Group], look: Mapping[str, Style], sizes: Sequence[str], label: str
) -> Picture | None:
    """Of every size the metric at its clients, each with its own sub-model, as a step line."""
    pooled = {(g.key, s): _client_values(g, s) for g in groups for s in sizes}
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
                style, weights = look[group.key], np.full(values.size, 100.0 / values.size)
                heights, _ = np.histogram(values * up, bins, weights=weights)
                line = axes.stairs(heights, bins, color=style.colour, lw=1.6)
                handles.append((group.label, line))
                size_now = human_size(float(size))
                ends.append(f"{group.label} at size {size_now} {values.mean() * up:.4g}")
        return handles

    fig, _ = _panels(sizes, draw, label, "% of clients")
    title = "Clients of each size with a sub-model of that size"
    alt = f"Histograms: {title.lower()}. Means: {'; '.join(ends)}."
    return Picture("sizes-clients", title, alt, fig)


def _client_values(group: Group, size: str) -> Floats:
    """The values of the clients of a size, of all seeds that count."""
    values = []
    for run in group.averaged_runs:
        part = run.clients.get("submodel") or {}
        pairs = zip(part.get("capacities") or (), part.get("values") or (), strict=False)
        values += [v for c, v in pairs if v is not None and f"{c:.6g}" == size]
    return np.array(values, dtype=np.float64)


def _unseen(groups: Sequence[Group], look: Mapping[str, Style], label: str) -> Picture | None:
    """The metric against the size: full marks for trained sizes, hollow ones for others."""
    up, ends, handles = 100.0 if "%" in label else 1.0, [], []
    fig = figure(5.6, 3.6)
    axes = fig.add_subplot()
    for group in groups:
        points: dict[float, list[float]] = {}
        trained: set[float] = set()
        for run in group.averaged_runs:
            for size, value, by_somebody in _measured(run):
                points.setdefault(size, []).append(value)
                trained |= {size} if by_somebody else set()
        if not points:
            continue
        sizes, style = sorted(points), look[group.key]
        means = np.array([up * float(np.mean(points[s])) for s in sizes])
        (line,) = axes.plot(
            sizes, means, style.dash, color=style.colour, marker="o", ms=4.5, mfc="white"
        )
        full = np.array([s in trained for s in sizes])
        axes.plot(np.array(sizes)[full], means[full], "o", color=style.colour, ms=4.5)
        handles.append((shorten(group.label, 48), line))
        words = (f"{human_size(s)} {value:.4g}" for s, value in zip(sizes, means, strict=True))
        ends.append(f"{group.label}: {', '.join(words)}")
    if not handles:
        return None
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda share, _: human_size(share))
    plain(axes, "size: share of the model (full mark: trained)", label)
    legend_below(fig, [h for _, h in handles], [text for text, _ in handles])
    title = "Sizes trained and sizes that nobody trained"
    return Picture("sizes-unseen", title, f"Line chart: {title.lower()}. {'; '.join(ends)}.", fig)


def _measured(run: Run) -> list[tuple[float, float, bool]]:
    """(size, the metric on the common test set, whether a client had that size), where further
    sizes were asked for.
    """
    sizes: Any = run.summary.get("sizes") or {}
    if not sizes.get("unseen"):
        return []
    values = {float(s): (v, True) for s, v in (sizes.get("global") or {}).items() if s != "mean"}
    values |= {row["capacity"]: (row["global"], row["trained"]) for row in sizes["unseen"]}
    return [(s, float(v), trained) for s, (v, trained) in values.items() if v is not None]
