"""Line pictures: the metric against rounds, bytes and time, and the losses against rounds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedloom.core.curves import VALUE_WORDS, Value, tenth_of

from .charts import (
    clients_chart,
    ledger_chart,
    measure_pictures,
    partition_charts,
    reliability_chart,
)
from .curve_data import Axis, Curve, group_curve, mean, value_of
from .runs import Floats, Group, Metric
from .style import (
    HEIGHT,
    WIDTH,
    Picture,
    Style,
    figure,
    finish,
    last_values,
    legend_below,
    line_chart,
    line_with_band,
    save_pictures,
    spans_widely,
    style_of,
)
from .submodels import size_pictures
from .tables import human_target, human_value

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_TIMES = ((1.0, "s"), (60.0, "min"), (3600.0, "h"))
_SCALES: Mapping[Axis, tuple[tuple[float, str], ...]] = {
    "round": ((1, "rounds"),),
    "bytes": tuple(
        (1024.0**power, f"bytes sent up and down ({unit})")
        for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB"))
    ),
    "seconds": tuple((size, f"wall time without evaluation ({unit})") for size, unit in _TIMES),
    "simulated": tuple((size, f"simulated time ({unit})") for size, unit in _TIMES),
}


def save_curves(
    groups: Sequence[Group],
    folder: str | Path,
    target: float | None = None,
    kinds: Sequence[str] = ("png",),
    value: Value = "last-tenth",
) -> list[Path]:
    """Draw every picture there are data for and write them into a folder.

    target (the metric's unit) draws a line; kinds: pdf, svg, png; value: of each run the one that
    is tested, which is marked.  Returns the files: <metric>_by_round, _by_bytes, _by_seconds,
    _by_simulated (where devices were described), train_loss, test_loss, partition, clients,
    reliability, ledger, of sub-models sizes-*, and measures-*. Raises ConfigError if matplotlib is
    missing.
    """
    return save_pictures(all_pictures(groups, target, value), folder, kinds)


def all_pictures(
    groups: Sequence[Group], target: float | None = None, value: Value = "last-tenth"
) -> list[Picture]:
    """Draw every picture there are data for, in the order in which a page shows them."""
    pictures = metric_curves(groups, target, value)
    pictures += loss_curves(groups)
    pictures += partition_charts(groups)
    pictures += [picture] if (picture := clients_chart(groups)) else []
    pictures += [picture] if (picture := reliability_chart(groups)) else []
    pictures += [picture] if (picture := ledger_chart(groups)) else []
    pictures += size_pictures(groups)
    pictures += measure_pictures(groups)
    return pictures


def metric_curves(
    groups: Sequence[Group],
    target: float | None = None,
    value: Value = "last-tenth",
) -> list[Picture]:
    """Each metric against rounds, bytes, seconds and simulated seconds."""
    pictures = []
    for metric in dict.fromkeys(group.metric for group in groups):
        members = [group for group in groups if group.metric == metric]
        goals = {r.target for group in members for r in group.runs if r.target is not None}
        common = goals.pop() if len(goals) == 1 else None
        goal = common if target is None else target
        for axis in ("round", "bytes", "seconds", "simulated"):
            picture = _metric_curve(members, metric, axis, goal, value)
            pictures += [picture] if picture else []
    return pictures


def loss_curves(groups: Sequence[Group]) -> list[Picture]:
    """Draw train and test loss against rounds; logarithmic where one spans a factor of 50."""
    pictures = []
    for which in ("train", "test"):
        # where clients use models of their own, the common one's test loss says nothing of them
        candidates = [g for g in groups if which == "train" or not g.runs[0].own_models]
        curves = [(g, c) for g in candidates if (c := group_curve(g, f"{which}_loss"))]
        if not curves or any(f"{which}_loss" == g.metric.column for g, _ in curves):
            continue  # not measured, or drawn already as the metric
        lines = [(group.label, style_of(group), curve) for group, curve in curves]
        title, log = f"{which.capitalize()} loss against rounds", spans_widely(c for _, c in curves)
        pictures.append(line_chart(f"{which}_loss", title, f"{which} loss", lines, log))
    return pictures


def _metric_curve(
    groups: Sequence[Group],
    metric: Metric,
    axis: Axis,
    target: float | None,
    value: Value,
) -> Picture | None:
    curves = [(g, c) for g in groups if (c := group_curve(g, metric.column, axis))]
    if axis == "simulated":  # zeros where devices were not described
        curves = [(g, c) for g, c in curves if c.x[-1] > 0]
    if not curves:
        return None
    high = max(float(curve.x.max()) for _, curve in curves)
    if axis != "round" and high <= 0:
        return None  # nothing was counted
    scale, x_label = _scale(axis, high)
    if any(run.deployed for group, _ in curves for run in group.runs):  # there all time counts
        x_label = x_label.replace(" without evaluation", "")
    up = 100.0 if metric.unit == "share" else 1.0
    fig = figure(WIDTH, HEIGHT)
    axes = fig.add_subplot()
    handles = [
        line_with_band(axes, c.x / scale, c.mean * up, c.low * up, c.high * up, style_of(g))
        for g, c in curves
    ]
    by_label = [(group.label, curve) for group, curve in curves]
    labels = [label for label, _ in by_label]
    tested = {g.key: mean([value_of(run, value) for run in g.averaged_runs]) for g, _ in curves}
    for group, curve in curves:
        _mark(axes, curve.x / scale, tested[group.key], up, value, style_of(group))
    if len(curves) == 1 and (smooth := group_curve(curves[0][0], metric.ema_column, axis)):
        handles += axes.plot(smooth.x / scale, smooth.mean * up, "--", color="#D55E00", lw=1.6)
        labels.append("EMA")
    if target is not None:
        handles.append(axes.axhline(target * up, color="#666666", lw=1.0, ls=(0, (1, 2))))
        labels.append(f"target {human_target(target, metric.unit)}")
    if metric.higher_is_better is False and spans_widely(c for _, c in curves):
        axes.set_yscale("log")
        bounds = None
    else:
        bounds = _late_bounds([c for _, c in curves], metric.higher_is_better, target)
    notes = [f"thick: {VALUE_WORDS[value]}, which is tested"]
    notes += ["the first values lie outside"] if bounds else []
    unit = "%" if metric.unit == "share" else metric.unit
    test = "test " if metric.title == metric.name else ""
    name = f"{test}{metric.title.replace('_', ' ')}"
    finish(axes, x_label, f"{name} ({unit})" if unit else name, by_label, notes)
    if bounds:
        axes.set_ylim(*(bound * up for bound in bounds))
    legend_below(fig, handles, labels)
    names = {"round": "rounds", "bytes": "bytes", "seconds": "time", "simulated": "simulated time"}
    against = names[axis]
    title = f"{name[0].upper()}{name[1:]} against {against}"
    safe = re.sub(r"[^A-Za-z0-9-]+", "_", metric.title).strip("_") or "metric"
    values = "; ".join(f"{g.label} {human_value(tested[g.key], metric.unit)}" for g, _ in curves)
    ends = f"{last_values(by_label, metric.unit)} Tested ({VALUE_WORDS[value]}): {values}."
    return Picture(f"{safe}_by_{axis}", title, f"Line chart: {title.lower()}. {ends}", fig)


def _mark(
    axes: Axes, x: Floats, height: float | None, up: float, value: Value, style: Style
) -> None:
    """The tested value at a line's end: a bar as wide as what it is the mean of, or a dot."""
    if height is None or not np.isfinite(height):
        return
    many = tenth_of(len(x)) if value == "last-tenth" else 1
    if many > 1:
        axes.plot([x[-many], x[-1]], [height * up] * 2, color=style.colour, lw=4.5, alpha=0.55)
    else:
        axes.plot([x[-1]], [height * up], "o", color=style.colour, ms=5.5, alpha=0.55)


def _scale(axis: Axis, high: float) -> tuple[float, str]:
    """Choose the largest unit in which the axis still reaches 1."""
    fitting = [(size, label) for size, label in _SCALES[axis] if high >= size]
    return fitting[-1] if fitting else _SCALES[axis][0]


def _late_bounds(
    curves: Sequence[Curve], higher_is_better: bool | None, target: float | None
) -> tuple[float, float] | None:
    """Bounds without the first, slow rounds where these take half of the axis; else None."""
    if higher_is_better is None or min(len(curve.x) for curve in curves) < 10:
        return None
    late = np.concatenate([curve.mean[len(curve.x) // 5 :] for curve in curves])
    every = np.concatenate([curve.mean for curve in curves])
    if not np.isfinite(every).all():
        return None
    low, high = float(late.min()), float(late.max())
    if not 0 < high - low <= 0.5 * float(every.max() - every.min()):
        return None
    values = [low, high] if target is None else [low, high, target]
    margin = 0.1 * (high - low)
    return min(values) - margin, max(values) + margin
