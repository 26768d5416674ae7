"""Run what our own studies lack, as `fedloom paper run` does for the papers' tables.

    python -m fedloom_papers.results.run zoo [--table dirichlet] [--rows "FedACG;FedAvg"]
        [--seeds 3] [--jobs 2] [--list] [KEY=VALUE ...]

The studies are zoo, compression, submodels, robust, private and precision: studies/NAME.toml has
their tables. Of a row that is tuned every value is tried first, at seed 0 on held-out data, and the
best is run.
Each finished run adds its line to docs/results/papers/lines.jsonl. Stop it at any time: the same
command goes on, and what has a line is not run again. Fashion-MNIST, MNIST and CIFAR-10 must be
there (FEDLOOM_DATA); `private` needs dp-accounting.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from fedloom.errors import FedloomError, did_you_mean

from ..plan import Plan, plan
from ..run import run_plan
from ..tune import grid_plans
from .study import LINES, STUDIES, Study, Table, place


def lacking(study: Study, made: Plan) -> Plan:
    """The runs of a plan that have no line, older ones counted."""
    known = {(place(line["recipe"], line["changes"]), line["seed"]) for line in study.lines}
    left = [r for r in made.runs if (place(r.recipe, r.typed), r.seed) not in known]
    return replace(made, runs=tuple(left))


def trials(study: Study, table: Table, rows: Sequence[str], more: Sequence[str]) -> Plan:
    """The runs that try the values of rows, at the first seed."""
    entry = study.tables[table.tuned].entry({row: {} for row in rows})
    grids = grid_plans(entry, "paper", LINES, entry.rows, [*study.tuning, *more])
    return lacking(study, grids[0] if grids else plan(replace(entry, rows=()), "paper", LINES))


def finals(
    study: Study, table: Table, rows: Sequence[str], seeds: int, more: Sequence[str]
) -> Plan:
    """The runs of rows at what was chosen; none of a row before all its values are tried."""
    chosen = {row: study.chosen(table.name, row) for row in rows}
    entry = table.entry({row: choice for row, choice in chosen.items() if choice is not None})
    return lacking(study, plan(entry, "paper", LINES, seeds=seeds, more=more))


def run(options: argparse.Namespace, table: Table, rows: Sequence[str]) -> None:
    """Run what a table lacks, or say how much that is."""
    study, more = Study(options.study), options.changes
    first = trials(study, table, rows, more)
    if not options.list:
        _run(first, options.jobs)
        study = Study(options.study)  # the new lines decide what is chosen
    last = finals(study, table, rows, options.seeds or table.seeds, more)
    if options.list:
        print(f"{table.name}: {len(first.runs)} trials and {len(last.runs)} runs are missing")
        return
    _run(last, options.jobs)


def _run(made: Plan, jobs: int) -> None:
    outcome = run_plan(made, LINES, jobs, quiet=False)
    for name, why in {**outcome.no_data, **outcome.refused}.items():
        print(f"not run: {name}: {why}", file=sys.stderr)


def chosen(given: str | None, known: Sequence[str]) -> list[str]:
    """The names asked for, of all that there are. Raises FedloomError for an unknown one."""
    names = given.split(";") if given else [*known]
    for name in {*names} - {*known}:
        raise FedloomError(f"there is no '{name}'; {did_you_mean(name, known)}")
    return names


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--table", help="of its tables this one")
    parser.add_argument("--rows", help="these rows alone, with ; between them")
    parser.add_argument("--seeds", type=int, help="by default what studies/NAME.toml says")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--list", action="store_true", help="say what is missing, run nothing")
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_intermixed_args()
    tables = Study(options.study).tables
    for name in chosen(options.table, [*tables]):
        table = tables[name]
        run(options, table, chosen(options.rows, [*table.rows]))


if __name__ == "__main__":
    try:
        main()
    except FedloomError as error:
        raise SystemExit(f"error: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit("interrupted: the same command goes on") from None
