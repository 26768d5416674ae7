"""Tables and pictures of sub-models: accuracy per size at the clients and on the common test set,
sizes that nobody trained, explored coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .curve_data import group_curve, last, mean, measured, sd
from .runs import Group, Run
from .style import (
    Picture,
    is_first,
    legend_below,
    line_with_band,
    name_panel,
    panels,
    plain,
    style_of,
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
    """Headings, and for each group lines of local and global values per size and on average, of the
    last ten evaluations, of how much a size holds, and of what a step takes.
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
        lines += _further_lines(group, sizes)
        lines += _held_lines(group, sizes) + _cost_lines(group, sizes)
    heads = (f"size {human_size(float(s))}" for s in sizes)
    return ["algorithm", "measured", *heads, "mean"], lines


def _last_ones(run: Run, column: str) -> float | None:
    """The mean of the last ten measured values; None of one alone."""
    values = measured(run, column)[1][-_MANY:]
    return float(values.mean()) if values.size > 1 else None


def _further_lines(group: Group, sizes: Sequence[str]) -> list[list[str]]:
    """The metric on the common test set of each further size, in the last column."""
    values: dict[tuple[float, bool], list[float]] = {}
    for run in group.averaged_runs:
        for row in _of_size(run, "unseen") or ():
            if row["global"] is not None:
                values.setdefault((row["capacity"], row["trained"]), []).append(row["global"])
    return [
        [
            group.label,
            f"global, size {human_size(size)}{'' if trained else ', untrained'}",
            *[MISSING] * len(sizes),
            _cell(numbers, group.metric.unit),
        ]
        for (size, trained), numbers in sorted(values.items())
    ]


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


def _of_size(run: Run, key: str) -> Any:
    """An entry of a run's summary about sizes, mostly {size: numbers}; {} without it."""
    return (run.summary.get("sizes") or {}).get(key) or {}


def _cell(values: Sequence[float | None], unit: str) -> str:
    return MISSING if mean(values) is None else human_value(mean(values), unit, sd(values))


def size_pictures(groups: Sequence[Group]) -> list[Picture]:
    """Draw the available data: the metric, exploration and difference by round and size."""
    sizes, metric = sizes_of(groups), groups[0].metric
    if not sizes:
        return []
    unit, name = " (%)" if metric.unit == "share" else "", metric.name.replace("_", " ")

    def by_round(picture: str, column: str, words: str, unit: str = " (%)") -> Picture | None:
        return _by_round(groups, sizes, column, picture, words, unit)

    pictures = [
        by_round("rounds", f"test_{metric.name}", f"test {name}", unit),
        by_round("local", f"local_{metric.name}", f"local {name}", unit),
        by_round("explored", "explored", "coordinates explored"),
        by_round("replaced", "replaced", "part replaced"),
    ]
    return [picture for picture in pictures if picture is not None]


def _by_round(
    groups: Sequence[Group],
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
            legend[group.label] = line_with_band(axes, curve.x, *heights, style_of(group))
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
