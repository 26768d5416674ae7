"""docs/results/tables.md: the papers' tables as far as docs/results/papers/lines.jsonl has runs.

    python benchmarks/papers/tables.py [--lines FOLDER] [--out FOLDER]

`fedloom paper NAME --out docs/results/papers` runs a table and appends its lines; the same command
prints what this page has of it. A table whose grids were run (--tune, --halving) is shown at the
best points.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from evidence.command import as_command
from evidence.lines import RESULTS

from fedloom.cli.paper_pages import page as printed
from fedloom.papers import ENTRIES, Entry
from fedloom.papers.figures import pictures
from fedloom.papers.lines import NAME, Line, read
from fedloom.papers.plan import Plan, plan
from fedloom.papers.table import Table, table
from fedloom.papers.tune import ETA, RUNGS, Choice, choose, grid_plans, halved, tuned
from fedloom.report.paper_figures import save_pictures
from fedloom.report.style import Picture

LINES = RESULTS / "papers"
SEEDS, MOST_SEEDS = 3, 10
SCALES = ("paper", "cpu")
HEAD = """<!-- Made by `python benchmarks/papers/tables.py` from papers/lines.jsonl. -->

# The papers' tables

Measured beside published, as `fedloom paper NAME` prints it, from the lines in
`papers/lines.jsonl`: every finished run is one, with its settings, fedloom's version and commit.
[The papers' tables](../papers.md) says what scales, columns and verdicts mean. The best point of a
grid is the one with the highest test accuracy at seed 0, which is also one of the seeds shown: the
means are a little too high.
"""
NOTHING = "\nNo run has a line yet.\n"


@dataclass(frozen=True)
class Shown:
    """A table with lines at a scale. grid: how many runs of its grids have lines, and there are;
    halved: the rows whose points were not all run to the end.
    """

    found: Table
    choices: Sequence[Choice]
    grid: tuple[int, int]
    halved: Sequence[str]

    @property
    def plan(self) -> Plan:
        """Its runs."""
        return self.found.plan


def shown(lines: Sequence[Line], scales: Sequence[str] = SCALES) -> Iterator[Shown]:
    """Every table and scale of which a run has a line."""
    recipes = {(line["recipe"], line["scale"]) for line in lines}
    for entry in ENTRIES.values():
        for scale in scales:
            if any((p.recipe_at(scale), scale) in recipes for p in entry.protocols):
                one = _shown(entry, scale, lines)
                if one is not None:
                    yield one


def _shown(entry: Entry, scale: str, lines: Sequence[Line]) -> Shown | None:
    have = {(line["digest"], line["seed"]) for line in lines}

    def whole(grid: Plan) -> bool:
        return all((run.digest, run.seed) in have for run in grid.runs)

    choices: list[Choice] = []
    short: list[str] = []
    done = count = 0
    for row in entry.rows:
        for grid in grid_plans(entry, scale, LINES, [row], ()):
            done += sum((run.digest, run.seed) in have for run in grid.runs)
            count += len(grid.runs)
            rungs: list[Plan] = []

            def run(rung: Plan, rungs: list[Plan] = rungs) -> Sequence[Line]:
                rungs.append(rung)
                return lines

            if not whole(grid):
                grid = halved(entry, [row], grid, LINES, (), run)
            if all(whole(part) for part in (*rungs, grid)):  # a part of a grid chooses nothing
                choices += choose(entry, [row], [grid], lines)
                short += [row.method] if rungs else []
    at_best = tuned(entry, choices)
    there = [
        run.seed
        for run in plan(at_best, scale, LINES, seeds=MOST_SEEDS).runs
        if (run.digest, run.seed) in have
    ]
    if not choices and not there:
        return None
    made = plan(at_best, scale, LINES, seeds=max(SEEDS, 1 + max(there, default=0)))
    return Shown(table(made, lines), choices, (done, count), short)


def text(tables: Sequence[Shown], drawn: Sequence[Sequence[Picture]]) -> str:
    """The page. drawn: the pictures of each table."""
    out = [HEAD]
    for one, own in zip(tables, drawn, strict=True):
        entry, made = one.found.entry, one.plan
        out.append(f"## {entry.id}, scale {made.scale}\n")
        out.append(f"```\n{printed(one.found, ())}\n```\n")
        if one.choices:
            done, whole = one.grid
            said = f"Grids at seed 0: {done} of {whole} runs."
            if one.halved:
                said += (
                    f" Halved (every point for 1/{RUNGS[0]} of the rounds, the best 1/{ETA} of "
                    f"them for 1/{RUNGS[1]}, the best 1/{RUNGS[0]} to the end): "
                    f"{', '.join(dict.fromkeys(one.halved))}."
                )
            out.append(f"{said} Best points:\n")
            out += [f"- {choice.words}" for choice in one.choices]
            out.append("")
        out += [f"![{p.alt}](pictures/{p.name}.png)\n" for p in own]
    return "\n".join(out if tables else [HEAD + NOTHING]).rstrip() + "\n"


def main() -> None:
    """Write the page and its pictures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--lines", type=Path, default=LINES, help=f"folder with {NAME}")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of page and pictures")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    lines = read(options.lines / NAME)
    tables = list(shown(lines))
    drawn = [pictures(one.found, lines) for one in tables]
    for own in drawn:
        save_pictures(own, options.out / "pictures", ["png"])
    file = options.out / "tables.md"
    file.write_text(text(tables, drawn), encoding="utf-8")
    print(file)


if __name__ == "__main__":
    as_command(main)
