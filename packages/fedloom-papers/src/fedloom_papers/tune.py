"""A paper's grids: every point at one seed, and the best of each row and protocol for all seeds.

Halving spares most of that: every point gets a ninth of the rounds first, the best third of a row's
points a third, and only the best ninth of them the whole (successive halving; Jamieson and
Talwalkar, AISTATS 2016, Algorithm 1; Li et al., Hyperband, JMLR 2018, with their eta = 3).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .entry import Entry, Protocol, Row
from .lines import Line, evidence
from .plan import Plan, plan
from .table import table

Point = dict[str, float]
ETA = 3  # of halving: of ETA points one gets ETA times the rounds
RUNGS = (ETA**2, ETA)  # 1 / 9 of the rounds, and 1 / 3, before all of them
_LEAST = 2  # points of a row that are always run to the end


@dataclass(frozen=True)
class Choice:
    """The best point of a row's grid in a protocol: {setting: value}; edge: the settings whose best
    value is the grid's least or largest, so that a better one may lie outside; scores: what each
    point that finished has.
    """

    protocol: str
    row: str
    point: Point
    edge: tuple[str, ...]
    scores: tuple[tuple[float, Point], ...] = ()

    @property
    def words(self) -> str:
        """As it is printed."""
        said = (
            f"{key}={value:g}" + (" (at the grid's edge)" if key in self.edge else "")
            for key, value in self.point.items()
        )
        return f"{self.row} in {self.protocol}: {', '.join(said)}"


def grid_of(row: Row, protocol: Protocol) -> Mapping[str, tuple[float, ...]]:
    """What the paper tries of a row in a protocol; nothing for a row that is not tuned."""
    return {k: protocol.grid.get(k, v) for k, v in row.grid.items() if protocol.grid.get(k, v)}


def points(row: Row, protocol: Protocol) -> list[Point]:
    """Every combination of a row's grid; none for a row that is not tuned."""
    grid = grid_of(row, protocol)
    values = itertools.product(*grid.values()) if grid else ()
    return [dict(zip(grid, point, strict=True)) for point in values]


def grid_plans(
    entry: Entry, scale: str, out: Path, rows: Sequence[Row], more: Sequence[str]
) -> list[Plan]:
    """The runs of all grids at the first seed, a plan for each protocol. more: changes of every
    run, with a study's own for such runs.
    """
    plans = []
    for protocol in entry.protocols:
        tried = tuple(_tried(row, p) for row in rows for p in points(row, protocol))
        place = replace(entry.tried_in or protocol, name=protocol.name)
        whole = replace(
            entry,
            rows=tried,
            protocols=(place,),
            tables=(),
            measures=(" ".join(_score(entry, protocol)),),
            claims=(),
        )
        if tried:
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


def _tried(row: Row, point: Point) -> Row:
    """A row at a point, whatever it has elsewhere for the same settings."""
    on = {
        place: " ".join(w for w in words.split() if w.partition("=")[0] not in point)
        for place, words in row.on.items()
    }
    words = _words(point)
    return replace(row, label=f"{row.name} {words}", changes=f"{row.changes} {words}", on=on)


def _words(point: Point) -> str:
    return " ".join(f"{key}={value!r}" for key, value in point.items())


def halved(
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
    kept = {row.key: points(row, protocol) for row in rows}

    def at(tried: Sequence[Row], changes: Sequence[str]) -> Plan:
        left = tuple(_tried(row, point) for row in tried for point in kept[row.key])
        return plan(replace(grid.entry, rows=left), grid.scale, out, more=changes)

    for part in RUNGS:
        stay = {row.key: _stay(len(points(row, protocol)), part) for row in rows}
        tried = [row for row in rows if len(kept[row.key]) > stay[row.key]]
        if not tried:
            continue
        changes = [word for word in more if not word.startswith("rounds=")]
        short = at(tried, [*changes, f"rounds={math.ceil(grid.runs[0].rounds / part)}"])
        lines = run(short)
        for row in tried:
            scores = sorted(_scores(row, short, lines), key=lambda pair: -pair[0])
            kept[row.key] = [point for _, point in scores[: stay[row.key]]]
    return at(rows, more)


def _stay(count: int, part: int) -> int:
    """How many of a row's points remain after the rung of 1 / part of the rounds."""
    return max(_LEAST, math.ceil(count * part / ETA**3))


def _scores(row: Row, grid: Plan, lines: Sequence[Line]) -> list[tuple[float, Point]]:
    """[(what is tuned for, more is better; a point of the row)] of the runs that finished."""
    found = {n.wanted.row.key: n.mean for n in table(grid, lines).numbers}
    every = points(row, grid.entry.protocols[0])
    scores = [(found.get(_tried(row, p).key), p) for p in every]
    return [(v, p) for v, p in scores if v is not None and math.isfinite(v)]


def choose(rows: Sequence[Row], grids: Iterable[Plan], lines: Sequence[Line]) -> list[Choice]:
    """The best point of each row and protocol, by what its grid is tuned for: as a rule what the
    table measures on the test set, the papers' way. Rows without a finished run are left out.
    """
    out = []
    for grid in grids:
        protocol = grid.entry.protocols[0]
        for row in rows:
            if known := _scores(row, grid, lines):
                point = max(known, key=lambda pair: pair[0])[1]
                tried = grid_of(row, protocol)
                edge = tuple(k for k, v in point.items() if v in (min(tried[k]), max(tried[k])))
                out.append(Choice(protocol.name, row.key, point, edge, tuple(known)))
    return out


def tuned(entry: Entry, choices: Iterable[Choice]) -> Entry:
    """The entry with each row at its best point, protocol by protocol."""
    best = {(c.row, c.protocol): _words(c.point) for c in choices}

    def at(row: Row) -> Row:
        own = {p: words for (key, p), words in best.items() if key == row.key}
        return replace(row, on={**row.on, **own})

    return replace(entry, rows=tuple(at(row) for row in entry.rows))


def at_best_points(
    entry: Entry,
    scale: str,
    rows: Sequence[Row],
    out: Path,
    more: Sequence[str],
    halving: bool,
    run: Callable[[Plan], object],
) -> tuple[Entry, list[Choice]]:
    """Run the grids of these rows at the first seed -> the table with each at its best point, and
    these points. run: runs what a plan lacks; lines are read from `out` after it.
    """

    def lines_after(short: Plan) -> list[Line]:
        run(short)
        return evidence(out)

    grids, more = [], [*entry.tuning.split(), *more]
    for grid in grid_plans(entry, scale, out, rows, more):
        if halving:
            grid = halved(entry, rows, grid, out, more, lines_after)
        run(grid)
        grids.append(grid)
    choices = choose(rows, grids, evidence(out))
    return tuned(entry, choices), choices
