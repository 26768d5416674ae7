"""What there is of every table and figure: at which scale, which claims held, whose lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from .entry import Entry, Protocol, Row
from .lines import Line, latest, run_key
from .plan import Plan, changes_of, pairs, plan
from .schedule import Item, points_of
from .table import Table, table
from .tune import Choice, choose, grid_of, grid_plans, halving_plan, with_best_points, with_points
from .verdicts import VERDICTS

MOST_SEEDS = 10
SCALES = ("paper", "cpu")


@dataclass(frozen=True)
class MeasuredTable:
    """A table with lines at a scale, each row at the best point of its grid. halved_rows: the rows
    whose points were not all run to the end.
    """

    table: Table
    choices: Sequence[Choice]
    halved_rows: Sequence[str]

    @property
    def plan(self) -> Plan:
        """Its runs."""
        return self.table.plan

    @property
    def whole(self) -> bool:
        """Whether at least half of its rows have all seeds: others share lines with a table that
        has, and would be nearly empty.
        """
        rows = {n.quantity.row.key for n in self.table.numbers}
        least = self.table.entry.seeds
        complete = {n.quantity.row.key for n in self.table.numbers if len(n.values) >= least}
        return 2 * len(complete) >= len(rows)


def measured_tables(
    lines: Sequence[Line],
    out: Path,
    entries: Iterable[Entry],
    scales: Sequence[str] = SCALES,
    items: Sequence[Item] = (),
) -> Iterator[MeasuredTable]:
    """Every table and scale of which a run has a line. out: the folder of runs; items: the list of
    evidence, whose points are the rows' where it has some.
    """
    recipes = {(line["recipe"], line["scale"]) for line in lines}
    for entry in entries:
        for scale in scales:
            if any((p.recipe_at(scale), scale) in recipes for p in entry.protocols):
                one = _measured_table(entry, scale, lines, out, items)
                if one is not None:
                    yield one


class Best(NamedTuple):
    """A table with each row at its best point as far as lines decide it, the points, and the rows
    whose points were not all run to the end.
    """

    entry: Entry
    choices: Sequence[Choice]
    halved_rows: Sequence[str]


def best_by_lines(
    entry: Entry, scale: str, lines: Sequence[Line], out: Path, items: Sequence[Item] = ()
) -> Best:
    """A table at the best points of its rows: of the list of evidence where it has some, else of
    the grids that were run. Nothing is run.
    """
    points = points_of(entry, scale, items)

    def missing(grid: Plan) -> bool:
        have = latest(lines, grid.runs)
        return any((run.digest, run.seed) not in have for run in grid.runs)

    choices: list[Choice] = []
    short: list[str] = []
    more = entry.tuning.split()
    for protocol, row in _grid_rows(entry, scale, lines):
        if (row.key.lower(), protocol.name) in points:
            continue
        for grid in grid_plans(replace(entry, protocols=(protocol,)), scale, out, [row], more):
            rungs: list[Plan] = []

            def run(rung: Plan, rungs: list[Plan] = rungs) -> Sequence[Line]:
                rungs.append(rung)
                return lines

            if missing(grid) and not entry.study:
                grid = halving_plan(entry, [row], grid, out, more, run)
            if not any(map(missing, (*rungs, grid))):  # a part of a grid chooses nothing
                choices += choose([row], [grid], lines)
                short += [row.name] if rungs else []
            elif entry.study:
                some = choose([row], [grid], lines)
                choices += [replace(choice, point={}, edge=()) for choice in some]
    return Best(with_points(with_best_points(entry, choices), points), choices, short)


def seeds_with_lines(entry: Entry, scale: str, lines: Sequence[Line], out: Path) -> int:
    """How many seeds, from the first, hold all runs of a table that have a line; 0 without one."""
    runs = plan(entry, scale, out, seeds=MOST_SEEDS).runs
    have = latest(lines, runs)
    return max((1 + run.seed for run in runs if (run.digest, run.seed) in have), default=0)


def _measured_table(
    entry: Entry, scale: str, lines: Sequence[Line], out: Path, items: Sequence[Item]
) -> MeasuredTable | None:
    best = best_by_lines(entry, scale, lines, out, items)
    seed_count = seeds_with_lines(best.entry, scale, lines, out)
    if not seed_count and (not best.choices or entry.grid_protocol):
        return None
    seed_plan = plan(best.entry, scale, out, seeds=max(entry.seeds, seed_count))
    return MeasuredTable(table(seed_plan, lines), best.choices, best.halved_rows)


def _grid_rows(entry: Entry, scale: str, lines: Sequence[Line]) -> Iterator[tuple[Protocol, Row]]:
    """The protocols and rows with a line at some point of their grids, halved or not."""
    for protocol, row in pairs(entry, entry.rows):
        grid = grid_of(row, protocol)
        if not grid or (scale == "cpu" and protocol.cpu is None):
            continue
        if has_line(entry.grid_protocol or protocol, row, scale, lines, grid, entry.tuning):
            yield protocol, row


def has_line(
    protocol: Protocol,
    row: Row,
    scale: str,
    lines: Iterable[Line],
    grid: Iterable[str],
    tuning: str = "",
) -> set[int]:
    """The seeds of which there is a line of a row, at any point of its grid: by what was typed,
    without reading settings.
    """
    apart = (*grid, "rounds", *(word.partition("=")[0] for word in tuning.split()))
    recipe, changes = protocol.recipe_at(scale), tuple(changes_of(protocol, row, scale))
    key = run_key(recipe, changes, apart)
    return {
        line["seed"]
        for line in lines
        if (line["recipe"], line["scale"]) == (recipe, scale)
        if run_key(recipe, tuple(line["changes"]), apart) == key
    }


HEADS = ("table", "scale", "runs", "hold", "do not", "undecided", "commit")


def board(
    lines: Sequence[Line], every: Iterable[MeasuredTable], entries: Iterable[Entry]
) -> list[tuple[str, ...]]:
    """The cells below HEADS of every table and figure, at each scale of which there are lines: how
    many of its seeds' runs have one, how many claims have each verdict, and which commit made the
    newest line.
    """
    out = []
    tables = list(every)
    for entry in entries:
        rows = [_board_row(one, lines) for one in tables if one.table.entry.id == entry.id]
        state = "no runs" if entry.fact else "command only"
        out += rows or [(entry.id, state, *[""] * (len(HEADS) - 2))]
    return out


def _board_row(one: MeasuredTable, lines: Sequence[Line]) -> tuple[str, ...]:
    entry, latest_lines = one.table.entry, latest(lines, one.plan.runs)
    keys = {(digest, seed) for (_, _, seed), digest in one.plan.digests.items()}
    expected = {key for key in keys if key[1] < entry.seeds}
    claims = Counter(claim.verdict for claim in one.table.claims)
    hashes = [line.get("commit") for key, line in latest_lines.items() if key in keys]
    commits = [*dict.fromkeys(str(commit) for commit in reversed(hashes) if commit)] or ["unknown"]
    more = f" +{len(commits) - 1}" if len(commits) > 1 else ""
    return (
        entry.id,
        "own" if entry.study else {"paper": "paper's", "cpu": "reduced"}[one.plan.scale],
        f"{len(expected & {*latest_lines})}/{len(expected)}",
        *(str(claims[verdict]) for verdict in VERDICTS[:3]),
        f"{commits[0][:9]}{more}",
    )
