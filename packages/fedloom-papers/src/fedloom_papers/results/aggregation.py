"""robust.md and private.md: accuracy by share of attackers, and by epsilon."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

from fedloom.config import resolve
from fedloom.report.style import numbered
from fedloom.report.tables import MISSING

from ..figures import curves_side_by_side, one_legend
from ..lines import Line
from ..series import band, points
from .page import Page, Plot, table
from .study import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARES = ("0.1", "0.2", "0.3", "0.4")


def accuracy(study: Study, name: str, row: str) -> float | None:
    """The accuracy at the end of a row's run, in per cent; None without a line."""
    line = study.first(name, row)
    return None if line is None else 100 * [*points(line, "curve").values()][-1]


def _cell(value: float | None) -> str:
    return MISSING if value is None else f"{value:.1f}"


def _drawn(found: dict[str, dict[str, dict[float, float]]], x: str, log: bool = False) -> Figure:
    """A panel for each {title: {curve: {x: per cent}}}."""
    grid = [(title, {n: band([c]) for n, c in curves.items()}) for title, curves in found.items()]
    look = {name: numbered(i) for _, curves in grid for i, name in enumerate(curves)}
    made, axes, drawn = curves_side_by_side(grid, look, x, "test accuracy, %", 2, shared=True)
    for place in axes:
        place.set_xscale("log" if log else "linear")
    one_legend(made, drawn, {})
    return made


def robust(study: Study, words: str) -> Page:
    """A table and a panel for each attack."""
    tables, shown = list[str | Plot](), dict[str, dict[str, dict[float, float]]]()
    for attack in dict.fromkeys(name.rpartition(", ")[0] for name in study.tables if ", " in name):
        names = {0.0: "none"} | {100 * float(s): f"{attack}, {s}" for s in SHARES}
        rows, shown[attack] = [], {}
        for rule in study.tables["none"].rows:
            found = {share: accuracy(study, name, rule) for share, name in names.items()}
            rows.append([rule, *map(_cell, found.values())])
            shown[attack][rule] = {s: v for s, v in found.items() if v is not None}
        heads = ["accuracy, %", *(f"{s:.0f} % hostile" for s in names)]
        tables += [f"## {attack[0].upper()}{attack[1:]}", table(heads, rows)]
    return _page(study, words, partial(_drawn, shown, "hostile clients, %"), tables)


def private(study: Study, words: str) -> Page:
    """One table: epsilon by noise, and the accuracy by clip."""
    noises = [name for name in study.tables if name.startswith("noise, ")]
    clips = [*study.tables[noises[0]].rows]
    rows, curves = [], {clip: dict[float, float]() for clip in clips}
    for name in noises:
        lines = [line for clip in clips if (line := study.first(name, clip))]
        spent = epsilons(lines[0]) if lines else None
        found = {clip: accuracy(study, name, clip) for clip in clips}
        costs = [f"{e:.2f}" for e in spent or ()] or [MISSING] * 2
        rows.append([name.removeprefix("noise, "), *costs, *map(_cell, found.values())])
        for clip, value in found.items():
            if value is not None and spent is not None:
                curves[clip][spent[0]] = value
    heads = ["noise", "epsilon (PLD)", "epsilon (RDP)", *(f"{clip}, accuracy %" for clip in clips)]
    plain = _cell(accuracy(study, "without noise", "mean"))
    parts = [table(heads, rows), f"Without noise and clipping: {plain} %."]
    return _page(study, words, partial(_drawn, {"": curves}, "epsilon", True), parts)


def epsilons(line: Line) -> tuple[float, float]:
    """What a run has spent, by PLD and by RDP; computed where its line does not say it."""
    if "epsilon" not in line:
        aggregation = resolve(line["recipe"], line["changes"]).experiment().plan().aggregation
        state = aggregation.init(torch.zeros(0), 100.0, 0.5)
        line = {**aggregation.summary(state, line["rounds"])}
    return float(line["epsilon_tight"]), float(line["epsilon"])


def _page(
    study: Study, words: str, draw: Callable[[], Figure], parts: Sequence[str | Plot]
) -> Page:
    there = any(study.there(name) for name in study.tables)
    done = sum(len(study.there(name)) for name in study.tables)
    planned = sum(len(one.rows) for one in study.tables.values())
    said = f"- {done} of {planned} planned runs are finished, one seed each."
    shown = [Plot(study.name, study.name, draw), *parts] if there else []
    return Page(study.name, words, ["## What there is", said, *shown])
