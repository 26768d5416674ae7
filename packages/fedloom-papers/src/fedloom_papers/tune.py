"""A paper's grids: every point at one seed, and the best of each row and protocol for all seeds.

Halving (fedloom.study.tune) spares most of that.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedloom.study.tune import Batch, best_point, halving, tune

from .entry import Entry, Protocol, Row
from .lines import Line, evidence
from .plan import Plan, plan
from .table import table

Point = tuple[tuple[str, float], ...]  # settings and their values


@dataclass(frozen=True)
class Choice:
    """The best point of a row's grid in a protocol: {setting: value}; edge: the settings whose best
    value is the grid's least or largest, so that a better one may lie outside; scores: what each
    point that finished has.
    """

    protocol: str
    row: str
    point: Mapping[str, float]
    edge: tuple[str, ...]
    scores: tuple[tuple[float, Mapping[str, float]], ...] = ()

    @property
    def words(self) -> str:
        """As it is printed."""
        settings = (
            f"{key}={value:g}" + (" (at the grid's edge)" if key in self.edge else "")
            for key, value in self.point.items()
        )
        return f"{self.row} in {self.protocol}: {', '.join(settings)}"


def grid_of(row: Row, protocol: Protocol) -> Mapping[str, tuple[float, ...]]:
    """What the paper tries of a row in a protocol; nothing for a row that is not tuned."""
    return {k: protocol.grid.get(k, v) for k, v in row.grid.items() if protocol.grid.get(k, v)}


def points(row: Row, protocol: Protocol) -> list[Point]:
    """Every combination of a row's grid; none for a row that is not tuned."""
    grid = grid_of(row, protocol)
    values = itertools.product(*grid.values()) if grid else ()
    return [tuple(zip(grid, point, strict=True)) for point in values]


def grid_plans(
    entry: Entry, scale: str, out: Path, rows: Sequence[Row], more: Sequence[str]
) -> list[Plan]:
    """The runs of all grids at the first seed, a plan for each protocol. more: changes of every
    run, with a study's own for such runs.
    """
    plans = []
    for protocol in entry.protocols:
        rows_at_points = tuple(_row_at(row, p) for row in rows for p in points(row, protocol))
        grid_protocol = replace(entry.grid_protocol or protocol, name=protocol.name)
        whole = replace(
            entry,
            rows=rows_at_points,
            protocols=(grid_protocol,),
            tables=(),
            measures=(" ".join(_score(entry, protocol)),),
            claims=(),
        )
        if rows_at_points:
            plans.append(plan(whole, scale, out, more=more))
    return plans


def _score(entry: Entry, protocol: Protocol) -> tuple[str, str]:
    """What is tuned for: held-out accuracy if some data are held out; else the table's first
    measure if it is an accuracy, else the accuracy at the end: so a figure of losses has the points
    of the table beside it.
    """
    if entry.tuning:
        return ("validation_pct", "")
    metric, at = entry.headline(protocol)
    return (metric, at) if "acc_" in metric else ("test_acc_pct", "")


def _row_at(row: Row, point: Point) -> Row:
    """A row at a point, whatever it has elsewhere for the same settings."""
    on = {
        key: " ".join(w for w in words.split() if w.partition("=")[0] not in dict(point))
        for key, words in row.on.items()
    }
    words = _words(dict(point))
    return replace(row, label=f"{row.name} {words}", changes=f"{row.changes} {words}", on=on)


def _words(point: Mapping[str, float]) -> str:
    return " ".join(f"{key}={value!r}" for key, value in point.items())


def halving_plan(
    entry: Entry,
    rows: Sequence[Row],
    grid: Plan,
    out: Path,
    more: Sequence[str],
    run: Callable[[Plan], Sequence[Line]],
) -> Plan:
    """The runs of a grid that successive halving takes to the end: a ninth of each row's points,
    and at least two; a row none of whose short runs finished has none. run: called with the runs of
    a rung, in order, before what it left is chosen; it returns all lines there are then.
    """
    protocol = grid.entry.protocols[0]
    finalists: dict[str, Sequence[Point]] = {}

    def at(by_row: Mapping[str, Sequence[Point]], changes: Sequence[str]) -> Plan:
        left = tuple(_row_at(row, point) for row in rows for point in by_row.get(row.key, ()))
        return plan(replace(grid.entry, rows=left), grid.scale, out, more=changes)

    def run_short(batches: Mapping[str, Batch[Point]]) -> dict[str, dict[Point, float]]:
        finalists.update({key: batch.points for key, batch in batches.items() if batch.part == 1})
        short = {key: batch.points for key, batch in batches.items() if batch.part > 1}
        if not short:
            return {}
        part = max(batch.part for batch in batches.values())  # all rows are at the same rung
        changes = [word for word in more if not word.startswith("rounds=")]
        rung = at(short, [*changes, f"rounds={math.ceil(grid.runs[0].rounds / part)}"])
        lines = run(rung)
        return {row.key: _scores(row, rung, lines) for row in rows if row.key in short}

    tune({row.key: halving(points(row, protocol)) for row in rows}, run_short)
    return at(finalists, more)


def _scores(row: Row, grid: Plan, lines: Sequence[Line]) -> dict[Point, float]:
    """{a point of the row: what is tuned for, more is better} of the runs that finished."""
    means = {n.quantity.row.key: n.mean for n in table(grid, lines).numbers}
    every = points(row, grid.entry.protocols[0])
    scores = {point: means.get(_row_at(row, point).key) for point in every}
    return {p: v for p, v in scores.items() if v is not None and math.isfinite(v)}


def choose(rows: Sequence[Row], grids: Iterable[Plan], lines: Sequence[Line]) -> list[Choice]:
    """The best point of each row and protocol, by what its grid is tuned for: as a rule what the
    table measures on the test set, the papers' way. Rows without a finished run are left out.
    """
    out = []
    for grid in grids:
        protocol = grid.entry.protocols[0]
        for row in rows:
            if by_point := _scores(row, grid, lines):
                point, values = dict(best_point(by_point)), grid_of(row, protocol)
                edge = tuple(k for k, v in point.items() if v in (min(values[k]), max(values[k])))
                scores = tuple((value, dict(p)) for p, value in by_point.items())
                out.append(Choice(protocol.name, row.key, point, edge, scores))
    return out


def with_best_points(entry: Entry, choices: Iterable[Choice]) -> Entry:
    """The entry with each row at its best point, protocol by protocol."""
    return with_points(entry, {(c.row, c.protocol): _words(c.point) for c in choices})


def with_points(entry: Entry, words: Mapping[tuple[str, str], str]) -> Entry:
    """The entry with these settings {(row, protocol): words} for those that its rows have there."""

    def at(row: Row) -> Row:
        keys = (row.key, row.key.lower())
        settings = {p: setting for (key, p), setting in words.items() if key in keys}
        return replace(row, on={**row.on, **settings})

    return replace(entry, rows=tuple(at(row) for row in entry.rows))


def at_best_points(
    plan: Plan, out: Path, more: Sequence[str], halve: bool, run: Callable[[Plan], object]
) -> tuple[Entry, list[Choice]]:
    """Run the grids of a plan's rows at the first seed -> its table with each row at its best
    point, and these points. run: runs what a plan lacks; lines are read from `out` after it.
    """

    def lines_after(short: Plan) -> list[Line]:
        run(short)
        return evidence(out)

    entry, grids = plan.entry, []
    more = [*entry.tuning.split(), *more]
    for grid in grid_plans(entry, plan.scale, out, plan.rows, more):
        if halve:
            grid = halving_plan(entry, plan.rows, grid, out, more, lines_after)
        run(grid)
        grids.append(grid)
    choices = choose(plan.rows, grids, evidence(out))
    return with_best_points(entry, choices), choices
