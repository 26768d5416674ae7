"""precision.md: accuracy with products in bfloat16 beside float32."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fedloom.report.style import numbered

from ..figures import curves_side_by_side, one_legend
from ..series import band, points
from .claims import Reader, claims
from .page import Page, Plot, claims_table, seeds_cell, table
from .study import Study, late

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _drawn(study: Study) -> Figure:
    rows = [*study.words["rows"]["precision"]]
    grid = []
    for name, one in study.tables.items():
        runs = {row: study.finished(name, row).values() for row in rows}
        curves = {
            row: [{t: 100 * v for t, v in points(x, "curve").items()} for x in lines]
            for row, lines in runs.items()
        }
        grid.append((one.title, {row: band(found) for row, found in curves.items() if found}))
    look = {row: numbered(i) for i, row in enumerate(rows)}
    made, _, drawn = curves_side_by_side(grid, look, "round", "test accuracy, %", 2)
    one_legend(made, drawn, {})
    return made


def make(study: Study, words: str) -> Page:
    """A table of both, and whether they are within a point of each other."""
    lines = []
    for name, one in study.tables.items():
        for row in one.rows:
            runs = study.finished(name, row).values()
            lines.append([one.title, row, f"{len(runs)}", seeds_cell([*map(late, runs)])])
    head = ["task", "local.precision", "seeds", "accuracy, %"]
    parts: list[str | Plot] = ["## What there is", study.state(), table(head, lines, texts=2)]
    reader = Reader(study, "", lambda line, measure: late(line), study.finished)
    alt = "Test accuracy by round in float32 and in bfloat16, mean and range of five seeds"
    plot = Plot(f"{study.name}-rounds", alt, partial(_drawn, study))
    return Page(study.name, words, [*parts, claims_table(claims(reader)), plot])
