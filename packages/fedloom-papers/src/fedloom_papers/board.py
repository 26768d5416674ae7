"""What there is of every table and figure: at which scale, which claims held, whose lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .entry import Entry, Protocol, Row
from .lines import Line, latest, point_of_grid
from .plan import Plan, plan
from .table import Table, table
from .tune import Choice, choose, grid_of, grid_plans, halved, tuned
from .verdicts import Verdict

SEEDS, MOST_SEEDS = 3, 10
SCALES = ("paper", "cpu")


@dataclass(frozen=True)
class Shown:
    """A table with lines at a scale, each row at the best point of its grid. grid: how many runs of
    its grids have lines, and there are; halved: the rows whose points were not all run to the end.
    """

    found: Table
    choices: Sequence[Choice]
    grid: tuple[int, int]
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
        there = {n.wanted.row.key for n in self.found.numbers if len(n.values) >= SEEDS}
        return 2 * len(there) >= len(rows)


def shown(
    lines: Sequence[Line], out: Path, entries: Iterable[Entry], scales: Sequence[str] = SCALES
) -> Iterator[Shown]:
    """Every table and scale of which a run has a line. out: the folder of runs."""
    recipes = {(line["recipe"], line["scale"]) for line in lines}
    for entry in entries:
        for scale in scales:
            if any((p.recipe_at(scale), scale) in recipes for p in entry.protocols):
                one = _shown(entry, scale, lines, out)
                if one is not None:
                    yield one


def _shown(entry: Entry, scale: str, lines: Sequence[Line], out: Path) -> Shown | None:
    have = {(line["digest"], line["seed"]) for line in lines}

    def whole(grid: Plan) -> bool:
        return all((run.digest, run.seed) in have for run in grid.runs)

    choices: list[Choice] = []
    short: list[str] = []
    done = count = 0
    for protocol, row in _with_lines(entry, scale, lines, out):
        for grid in grid_plans(replace(entry, protocols=(protocol,)), scale, out, [row], ()):
            done += sum((run.digest, run.seed) in have for run in grid.runs)
            count += len(grid.runs)
            rungs: list[Plan] = []

            def run(rung: Plan, rungs: list[Plan] = rungs) -> Sequence[Line]:
                rungs.append(rung)
                return lines

            if not whole(grid):
                grid = halved(entry, [row], grid, out, (), run)
            if all(whole(part) for part in (*rungs, grid)):  # a part of a grid chooses nothing
                choices += choose(entry, [row], [grid], lines)
                short += [row.name] if rungs else []
    at_best = tuned(entry, choices)
    runs = plan(at_best, scale, out, seeds=MOST_SEEDS).runs
    there = [run.seed for run in runs if (run.digest, run.seed) in have]
    if not choices and not there:
        return None
    made = plan(at_best, scale, out, seeds=max(SEEDS, 1 + max(there, default=0)))
    return Shown(table(made, lines), choices, (done, count), short)


def _with_lines(
    entry: Entry, scale: str, lines: Sequence[Line], out: Path
) -> Iterator[tuple[Protocol, Row]]:
    """The protocols and rows with a line at some point of their grids."""
    rows, made = {row.key: row for row in entry.rows}, plan(entry, scale, out)
    protocols, runs = {p.name: p for p in entry.protocols}, {run.digest: run for run in made.runs}
    for (protocol, key, _), digest in made.digests.items():
        place = protocols[protocol], rows[key]
        tried = grid_of(place[1], place[0])
        if tried and any(point_of_grid(line, runs[digest], tried) for line in lines):
            yield place


HEADS = ("table", "scale", "runs", "hold", "do not", "undecided", "commit")


def board(lines: Sequence[Line], out: Path, entries: Iterable[Entry]) -> Iterator[tuple[str, ...]]:
    """The cells below HEADS of every table and figure, at each scale of which there are lines: how
    many of three seeds' runs have one, how many claims have each verdict, and which commit made the
    newest line. out: the folder of runs.
    """
    seen = latest(lines)
    for entry in entries:
        there = [_standing(one, seen) for one in shown(lines, out, [entry])]
        state = "no runs" if entry.fact else "command only"
        yield from there or [(entry.id, state, *[""] * (len(HEADS) - 2))]


def _standing(one: Shown, seen: Mapping[tuple[str, int], Line]) -> tuple[str, ...]:
    places = {(digest, seed) for (_, _, seed), digest in one.plan.digests.items()}
    wanted = {place for place in places if place[1] < SEEDS}
    claims = Counter(judged.verdict for judged in one.found.claims)
    verdicts: tuple[Verdict, ...] = ("holds", "does not hold", "undecided")
    mine = [line.get("commit") for place, line in seen.items() if place in places]
    commits = [*dict.fromkeys(str(commit) for commit in reversed(mine) if commit)] or ["unknown"]
    more = f" +{len(commits) - 1}" if len(commits) > 1 else ""
    return (
        one.found.entry.id,
        {"paper": "paper's", "cpu": "reduced"}[one.plan.scale],
        f"{len(wanted & {*seen})}/{len(wanted)}",
        *(str(claims[verdict]) for verdict in verdicts),
        f"{commits[0][:9]}{more}",
    )
