"""Pictures and a table of measures: the columns that a run recorded, and the files that `fedloom
measure` wrote beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedloom.core.parsing import parse_json

from .curve_data import group_curve, mean, sd
from .runs import Group, Run
from .style import (
    Picture,
    Style,
    line_chart,
    name_panel,
    panels,
    style_of,
)
from .tables import human_value

_CURVES = {
    "divergence": "weight divergence of local models",
    "hessian_top": "top eigenvalue of the Hessian",
    "hessian_trace": "trace of the Hessian",
    "surface_rise": "mean rise of the loss on the surface",
    "plane_loss": "mean loss of three local models",
    "plane_distance": "mean distance between three local models",
    "cka": "CKA of local models, mean over the layers",
}
_NORMS = {"delta_square": ("‖Δ‖²", "-"), "residual_square": ("‖e‖²", "--")}  # label, dash
_MOST = 6  # surfaces side by side


def measure_pictures(groups: Sequence[Group]) -> list[Picture]:
    """Draw what was measured: curves by round, norms of error feedback, surfaces."""
    pictures = [_curve(groups, column, label) for column, label in _CURVES.items()]
    pictures += [_norms(groups), _surfaces(groups), _planes(groups)]
    return [picture for picture in pictures if picture is not None]


def measure_cells(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    """Headings and a line per group and number of the files hessian, divergence and cka: the mean
    over the seeds that have it, with their deviation.
    """
    lines = []
    for group in groups:
        by_label: dict[str, list[float]] = {}
        for run in group.averaged_runs:
            for label, value in _numbers(run).items():
                by_label.setdefault(label, []).append(value)
        for label, values in by_label.items():
            cell = human_value(mean(values), "", sd(values))
            lines.append([group.label, label, cell, str(len(values))])
    return ["algorithm", "measured", "value", "seeds"], lines


_NUMBERS = {
    ("hessian", "top"): "top eigenvalue of the Hessian",
    ("hessian", "trace"): "trace of the Hessian",
    ("divergence", "after"): "divergence around the next model",
    ("divergence", "before"): "divergence around the model before",
    ("divergence", "mean"): "divergence around the local models' mean",
}


def _numbers(run: Run) -> dict[str, float]:
    """{label: number} of a run's files."""
    every = {label: file_of(run, file).get(key) for (file, key), label in _NUMBERS.items()}
    layers = file_of(run, "cka").get("layers") or {}
    every |= {f"CKA of local models, {layer}": value for layer, value in layers.items()}
    return {label: float(value) for label, value in every.items() if value is not None}


def file_of(run: Run, name: str) -> dict[str, Any]:
    """The numbers that `fedloom paper measure RUN name` wrote; empty if none can be read."""
    try:
        content = parse_json((run.path / "measures" / f"{name}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _curve(groups: Sequence[Group], column: str, label: str) -> Picture | None:
    curves = [(g.label, style_of(g), curve) for g in groups if (curve := group_curve(g, column))]
    title = f"{label[0].upper()}{label[1:]}"
    return line_chart(f"measures-{column}", title, label, curves) if curves else None


def _norms(groups: Sequence[Group]) -> Picture | None:
    """CFedAvg's Figures 3, 8 and 9: ||delta||^2 and ||e||^2."""
    curves = {
        (group, column): curve
        for group in groups
        for column in _NORMS
        if (curve := group_curve(group, column)) and float(np.nanmax(curve.mean)) > 0
    }
    if not any(column == "residual_square" for _, column in curves):
        return None
    lines = [
        (f"{group.label}, {_NORMS[column][0]}", Style(style_of(group).colour, _NORMS[column][1]), c)
        for (group, column), c in curves.items()
    ]
    title = "Update and error feedback, squared norms"
    return line_chart(
        "measures-residual", title, "squared norm, mean over the clients", lines, log=True
    )


def _surfaces(groups: Sequence[Group]) -> Picture | None:
    """FedSMOO's Figure 3: the loss around the model."""
    grids = _grids(groups, "surface")
    if not grids:
        return None
    fig, cells = _contours(grids)
    for axes in cells:
        axes.plot([0], [0], "+", color="white")
    words = "; ".join(f"{g.label} {s['middle']:.4g} in the middle" for g, s in grids)
    alt = f"Contours of the loss along two filter-normalised directions: {words}."
    return Picture("measures-surface", "Loss around the model", alt, fig)


def _planes(groups: Sequence[Group]) -> Picture | None:
    """FedACG's Figure 2a: the loss on the plane through three local models."""
    grids = _grids(groups, "plane")
    if not grids:
        return None
    fig, cells = _contours(grids)
    reach = max(plane["places"][-1] for _, plane in grids)
    for axes, (_, plane) in zip(cells, grids, strict=True):
        axes.set(xlim=(-reach, reach), ylim=(-reach, reach))  # distances can be compared
        axes.plot(*zip(*plane["at"], strict=True), "o", color="white", markeredgecolor="black")
        axes.plot([0], [0], "+", color="white")
    words = []
    for group, plane in grids:
        losses = ", ".join("none" if v is None else f"{v:.4g}" for v in plane["losses"])
        words.append(f"{group.label} {losses}")
    alt = f"Contours of the loss on the plane through three local models: {'; '.join(words)}."
    return Picture("measures-plane", "Loss between local models (dots) and their mean", alt, fig)


def _grids(groups: Sequence[Group], name: str) -> list[tuple[Group, dict[str, Any]]]:
    """The first groups with a file of losses on a square, and that of their first such seed."""
    pairs = [
        (group, grid)
        for group in groups
        if (grid := next(filter(None, (file_of(r, name) for r in group.averaged_runs)), None))
    ]
    return pairs[:_MOST]


def _contours(surfaces: Sequence[tuple[Group, Mapping[str, Any]]]) -> tuple[Any, list[Any]]:
    """A picture with the losses of each group as a panel, with common levels; and the panels."""
    grids = [np.array(s["loss"], dtype=np.float64) for _, s in surfaces]  # null is NaN
    low = min(float(np.nanmin(g)) for g in grids)
    high = max(float(np.nanmax(g)) for g in grids)
    levels = np.geomspace(max(low, 1e-6), max(high, 1e-6) * 1.0001 + 1e-9, 16)
    fig, cells = panels(len(surfaces), 3.2, 3.0, 3)
    image: Any = None
    for axes, (group, surface), grid in zip(cells, surfaces, grids, strict=True):
        image = axes.contourf(surface["places"], surface["places"], grid.T, levels, cmap="viridis")
        name_panel(axes, group.label)
        axes.set_aspect("equal")
    fig.colorbar(image, ax=cells, label="loss", format="%.2g")
    return fig, cells
