"""`fedloom papers run`: a list of tables, one after the other, in the background of other work."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedloom.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedloom.papers.plan import Plan
    from fedloom.papers.run import Outcome
    from fedloom.papers.schedule import Item
    from fedloom.papers.tune import Choice

PLAN, OUT = "docs/results/plan.toml", "docs/results/papers"


@click.command("run")
@click.option("--plan", "file", default=PLAN, show_default=True, help="The list of tables.")
@click.option("--only", help="Only these tables of the list, as fedacg:4,fiarse:1.")
@click.option("--hours", type=click.FloatRange(min=0, min_open=True), help="Stop after so long.")
@click.option("--out", default=OUT, show_default=True, help="The folder of runs and lines.")
@click.option(
    "--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Runs at once."
)
@click.option("--mix", is_flag=True, help="Go on with lines that another commit began.")
@click.option("--dry-run", is_flag=True, help="Say what is left, and run nothing.")
@click.option("--quiet", is_flag=True, help="No progress.")
def papers_run_command(
    file: str,
    only: str | None,
    hours: float | None,
    out: str,
    jobs: int,
    mix: bool,
    dry_run: bool,
    quiet: bool,
) -> None:
    """Work through a list of tables: each run that is finished adds a line of evidence.

    \b
    fedloom papers run --dry-run                  what is left of each table
    fedloom papers run --hours 2 --jobs 2         two hours of it; the same command goes on
    fedloom papers run --only fedacg:4
    touch docs/results/papers/pause               pause after the round, until the file is gone

    A table whose lines another commit began is left out, so that one code makes all its lines: run
    it from that commit (docs/papers.md says how), or with --mix.
    """
    from fedloom.papers.schedule import read_items

    items, folder = _chosen(read_items(Path(file)), only), Path(out)
    if dry_run:
        click.echo(_left(items, folder))
        return
    end = None if hours is None else time.monotonic() + 3600 * hours
    for item in items:
        if not _run(item, folder, jobs, mix, quiet, end):
            return


def _chosen(items: Sequence[Item], only: str | None) -> list[Item]:
    """The tables of the list that are asked for. Raises ConfigError for one that it lacks."""
    if only is None:
        return list(items)
    wanted, known = [word.strip() for word in only.split(",")], {item.id for item in items}
    for word in wanted:
        if word not in known:
            raise ConfigError(f"the list has no table '{word}'; {did_you_mean(word, known)}")
    return [item for item in items if item.id in wanted]


def _left(items: Sequence[Item], out: Path) -> str:
    """A line for each table: how many of its runs have a line."""
    from fedloom.papers.plan import plan
    from fedloom.papers.run import missing
    from fedloom.papers.schedule import entry_at

    from .printing import page_width, table

    shown = [["table", "runs", "left", "hours", "rows and protocols"]]
    for item in items:
        made = plan(entry_at(item), item.scale, out, item.rows, item.seeds, item.changes)
        part = ", ".join((*item.protocols, *item.rows)) or "all"
        if item.tune != "none":
            part += f"; after its grid ({item.tune})"
        left = len(missing(made, out))
        shown.append(
            [f"{item.id} {item.scale}", str(len(made.runs)), str(left), f"{item.hours:g}", part]
        )
    return table(shown, page_width())


def _run(item: Item, out: Path, jobs: int, mix: bool, quiet: bool, end: float | None) -> bool:
    """Run what an item lacks; False if time is up."""
    from fedloom.papers.run import missing
    from fedloom.papers.schedule import TimeUpError, others_commit, run_item

    from .paper_progress import run_plan
    from .run import repeatable

    def run(made: Plan) -> Outcome:
        commit = others_commit(made, out)
        if commit and not mix and missing(made, out):
            raise ConfigError(f"its lines are of commit {commit[:12]}; run it there, or with --mix")
        outcome = run_plan(made, out, jobs, quiet, end)
        for name, why in {**outcome.no_data, **outcome.refused}.items():
            click.echo(f"not run: {name}: {why}", err=True)
        return outcome

    def tell(choice: Choice) -> None:
        click.echo(f"  {choice.words}", err=True)

    click.echo(item.title, err=True)
    try:
        with repeatable(f"the runs in '{out}'"):
            try:
                run_item(item, out, run, tell)
            except TimeUpError:
                click.echo("time is up; the same command goes on", err=True)
                return False
    except ConfigError as error:
        click.echo(f"left out: {item.id}: {error}", err=True)
    return True
