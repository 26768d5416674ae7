"""What there is of every table and figure: at which scale, which claims held, whose lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from .entry import Entry, Protocol, Row
from .lines import Line, latest, typed
from .plan import Plan, changes_of, pairs, plan
from .schedule import Item, points_of
from .table import Table, table
from .tune import Choice, at_words, choose, grid_of, grid_plans, halved, tuned
from .verdicts import VERDICTS

MOST_SEEDS = 10
SCALES = ("paper", "cpu")


@dataclass(frozen=True)
class Shown:
    """A table with lines at a scale, each row at the best point of its grid. halved: the rows whose
    points were not all run to the end.
    """

    found: Table
    choices: Sequence[Choice]
    halved: Sequence[str]

    @property
    def plan(self) -> Plan:
        """Its runs."""
        return self.found.plan

    @property
    def whole(self) -> bool:
        """Whether at least half of its rows have all seeds: others share lines with a table that
        has, and would be nearly empty.
        """
        rows = {n.wanted.row.key for n in self.found.numbers}
        least = self.found.entry.seeds
        there = {n.wanted.row.key for n in self.found.numbers if len(n.values) >= least}
        return 2 * len(there) >= len(rows)


def shown(
    lines: Sequence[Line],
    out: Path,
    entries: Iterable[Entry],
    scales: Sequence[str] = SCALES,
    items: Sequence[Item] = (),
) -> Iterator[Shown]:
    """Every table and scale of which a run has a line. out: the folder of runs; items: the list of
    evidence, whose points are the rows' where it has some.
    """
    recipes = {(line["recipe"], line["scale"]) for line in lines}
    for entry in entries:
        for scale in scales:
            if any((p.recipe_at(scale), scale) in recipes for p in entry.protocols):
                one = _shown(entry, scale, lines, out, items)
                if one is not None:
                    yield one


class Best(NamedTuple):
    """A table with each row at its best point as far as lines decide it, the points, and the rows
    whose points were not all run to the end.
    """

    entry: Entry
    choices: Sequence[Choice]
    halved: Sequence[str]


def best_by_lines(
    entry: Entry, scale: str, lines: Sequence[Line], out: Path, items: Sequence[Item] = ()
) -> Best:
    """A table at the best points of its rows: of the list of evidence where it has some, else of
    the grids that were run. Nothing is run.
    """
    known = points_of(entry, scale, items)

    def missing(grid: Plan) -> bool:
        have = latest(lines, grid.runs)
        return any((run.digest, run.seed) not in have for run in grid.runs)

    choices: list[Choice] = []
    short: list[str] = []
    more = entry.tuning.split()
    for protocol, row in _tried(entry, scale, lines):
        if (row.key.lower(), protocol.name) in known:
            continue
        for grid in grid_plans(replace(entry, protocols=(protocol,)), scale, out, [row], more):
            rungs: list[Plan] = []

            def run(rung: Plan, rungs: list[Plan] = rungs) -> Sequence[Line]:
                rungs.append(rung)
                return lines

            if missing(grid) and not entry.own:
                grid = halved(entry, [row], grid, out, more, run)
            if not any(map(missing, (*rungs, grid))):  # a part of a grid chooses nothing
                choices += choose([row], [grid], lines)
                short += [row.name] if rungs else []
            elif entry.own:
                some = choose([row], [grid], lines)
                choices += [replace(choice, point={}, edge=()) for choice in some]
    return Best(at_words(tuned(entry, choices), known), choices, short)


def seeds_there(entry: Entry, scale: str, lines: Sequence[Line], out: Path) -> int:
    """How many seeds, from the first, hold all runs of a table that have a line; 0 without one."""
    runs = plan(entry, scale, out, seeds=MOST_SEEDS).runs
    have = latest(lines, runs)
    return max((1 + run.seed for run in runs if (run.digest, run.seed) in have), default=0)


def _shown(
    entry: Entry, scale: str, lines: Sequence[Line], out: Path, items: Sequence[Item]
) -> Shown | None:
    best = best_by_lines(entry, scale, lines, out, items)
    there = seeds_there(best.entry, scale, lines, out)
    if not there and (not best.choices or entry.tried_in):
        return None
    made = plan(best.entry, scale, out, seeds=max(entry.seeds, there))
    return Shown(table(made, lines), best.choices, best.halved)


def _tried(entry: Entry, scale: str, lines: Sequence[Line]) -> Iterator[tuple[Protocol, Row]]:
    """The protocols and rows with a line at some point of their grids, halved or not."""
    for protocol, row in pairs(entry, entry.rows):
        grid = grid_of(row, protocol)
        if not grid or (scale == "cpu" and protocol.cpu is None):
            continue
        if has_line(entry.tried_in or protocol, row, scale, lines, grid, entry.tuning):
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
    wanted = typed(recipe, changes, apart)
    return {
        line["seed"]
        for line in lines
        if (line["recipe"], line["scale"]) == (recipe, scale)
        if typed(recipe, tuple(line["changes"]), apart) == wanted
    }


HEADS = ("table", "scale", "runs", "hold", "do not", "undecided", "commit")


def board(
    lines: Sequence[Line], every: Iterable[Shown], entries: Iterable[Entry]
) -> list[tuple[str, ...]]:
    """The cells below HEADS of every table and figure, at each scale of which there are lines: how
    many of its seeds' runs have one, how many claims have each verdict, and which commit made the
    newest line.
    """
    out = []
    shown = list(every)
    for entry in entries:
        there = [_standing(one, lines) for one in shown if one.found.entry.id == entry.id]
        state = "no runs" if entry.fact else "command only"
        out += there or [(entry.id, state, *[""] * (len(HEADS) - 2))]
    return out


def _standing(one: Shown, lines: Sequence[Line]) -> tuple[str, ...]:
    entry, seen = one.found.entry, latest(lines, one.plan.runs)
    places = {(digest, seed) for (_, _, seed), digest in one.plan.digests.items()}
    wanted = {place for place in places if place[1] < entry.seeds}
    claims = Counter(judged.verdict for judged in one.found.claims)
    mine = [line.get("commit") for place, line in seen.items() if place in places]
    commits = [*dict.fromkeys(str(commit) for commit in reversed(mine) if commit)] or ["unknown"]
    more = f" +{len(commits) - 1}" if len(commits) > 1 else ""
    return (
        entry.id,
        "own" if entry.own else {"paper": "paper's", "cpu": "reduced"}[one.plan.scale],
        f"{len(wanted & {*seen})}/{len(wanted)}",
        *(str(claims[verdict]) for verdict in VERDICTS[:3]),
        f"{commits[0][:9]}{more}",
    )
