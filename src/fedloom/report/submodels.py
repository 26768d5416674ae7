"""Tables and pictures of sub-models: accuracy per size at the clients and on the common test set,
sizes that nobody trained, explored coordinates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .curve_data import group_curve, last, mean, measured, sd
from .runs import Group, Run
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
    runs = [(run.summary, _of_size(run, "held")) for run in group.averaged_runs]
    counted, whole = [], []
    for size in sizes:
        held = [(summary, by_size[size]) for summary, by_size in runs if size in by_size]
        counted.append(_cell([h["counted"] / h["of"] for _, h in held], "share"))
        whole.append(_cell([h["all"] / summary["parameters"] for summary, h in held], "share"))
    if {*whole} == {MISSING}:
        return []
    lines = [[group.label, "held, of all parameters", *whole, MISSING]]
    if counted != whole:
        lines.insert(0, [group.label, "held, of what counts", *counted, MISSING])
    return lines


def _cost_lines(group: Group, sizes: Sequence[str]) -> list[list[str]]:
    """The time and the memory of a local step of every size, as measured after the run."""
    costs = [_of_size(run, "cost") for run in group.averaged_runs]
    lines = []
    for label, key, text in (
        ("time of a step", "seconds", human_seconds),
        ("memory of a step", "peak", human_bytes),
    ):
        cells = [text(mean([cost.get(size, {}).get(key) for cost in costs])) for size in sizes]
        if {*cells} != {MISSING}:
            lines.append([group.label, label, *cells, MISSING])
    return lines


def _of_size(run: Run, key: str) -> Mapping[str, Any]:
    """{size: an entry of a run's summary}."""
    return (run.summary.get("sizes") or {}).get(key) or {}


def _cell(values: Sequence[float | None], unit: str) -> str:
    return MISSING if mean(values) is None else human_value(mean(values), unit, sd(values))


def size_pictures(groups: Sequence[Group], look: Mapping[str, Style]) -> list[Picture]:
    """Draw the available data: the metric, exploration and difference by round and size, and the
    metric of sizes that nobody trained.
    """
    sizes, metric = sizes_of(groups), groups[0].metric
    if not sizes:
        return []
    unit, name = " (%)" if metric.unit == "share" else "", metric.name.replace("_", " ")

    def by_round(picture: str, column: str, words: str, unit: str = " (%)") -> Picture | None:
        return _by_round(groups, look, sizes, column, picture, words, unit)

    pictures = [
        by_round("rounds", f"test_{metric.name}", f"test {name}", unit),
        by_round("local", f"local_{metric.name}", f"local {name}", unit),
        _unseen(groups, look, f"test {name}{unit}"),
        by_round("explored", "explored", "coordinates explored"),
        by_round("replaced", "replaced", "part replaced"),
    ]
    return [picture for picture in pictures if picture is not None]


def _by_round(
    groups: Sequence[Group],
    look: Mapping[str, Style],
    sizes: Sequence[str],
    column: str,
    name: str,
    words: str,
    unit: str,
) -> Picture | None:
    """One panel for each size, a line with the seeds' band for each group."""
    up, ends, legend = 100.0 if unit else 1.0, [], {}
    of_part = name == column  # a share of each size's own part: heights cannot be compared
    fig, grid = panels(len(sizes), sharey=not of_part)
    for axes, size in zip(grid, sizes, strict=True):
        size_now = f"size {human_size(float(size))}"
        for group in groups:
            if (curve := group_curve(group, f"{column}@{size}")) is None:
                continue
            heights = (curve.mean * up, curve.low * up, curve.high * up)
            legend[group.label] = line_with_band(axes, curve.x, *heights, look[group.key])
            ends.append(f"{group.label} at {size_now} {curve.mean[-1] * up:.4g}")
        if of_part and axes.lines:
            _within_percent(axes)
        plain(axes, "rounds", f"{words}{unit}" if is_first(axes) else "")
        axes.locator_params(axis="x", integer=True, nbins=5)
        name_panel(axes, size_now)
    if not legend:
        return None
    legend_below(fig, list(legend.values()), list(legend))
    title = f"{words[0].upper()}{words[1:]}, by round and size"
    alt = f"Line charts: {title.lower()}{unit}. Last values: {'; '.join(ends)}."
    return Picture(f"sizes-{name}", title, alt, fig)


def _within_percent(axes: Axes) -> None:
    """Limit an axis of shares to 0 and 100; a constant one has the full range."""
    low, high = axes.dataLim.intervaly
    if high - low < 1e-9:
        axes.set_ylim(-2, 102)
    else:
        below, above = axes.get_ylim()
        axes.set_ylim(max(below, -0.02 * high), min(above, 100 + 0.04 * (100 - low)))


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
