"""`fedloom paper`: the tables of the papers, and what runs them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedloom.cli.compare_and_report import figure_options, parse_figures
from fedloom.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .entry import Entry
    from .plan import Plan
    from .schedule import Item
    from .tune import Choice

OUT, PLAN, COMMITTED = "runs/papers", "docs/results/plan.toml", "docs/results/papers"
SCALE = click.Choice(("paper", "cpu", "smoke"))
_SEEDS = {"smoke": 1}  # where a scale says something else than the table
_jobs = click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Runs at once, each in a process with its share of the processors.",
)


class _Papers(click.Group):
    """`paper list`, `run` and `measure` are commands; all else is a table's name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        first = next((word for word in args if not word.startswith("-")), "")
        table = first and first not in self.commands
        return super().parse_args(ctx, ["table", *args] if table else args)


@click.group("paper", cls=_Papers, short_help="Run a paper's table, beside what was published.")
def paper_command() -> None:
    """Run a table or figure of a paper, and print what was measured beside what was published.

    \b
    fedloom paper list fedsmoo                  the tables and figures of a paper
    fedloom paper fedsmoo:8                     runs one (`paper table --help`)
    fedloom paper run docs/results/plan.toml    runs a list of them
    fedloom paper measure runs/a hessian        measures a run's model
    """


@paper_command.command("list", short_help="List the tables and figures, and what was run.")
@click.argument("paper", required=False)
@click.option("--out", default=OUT, show_default=True, help="Where the lines of evidence are.")
def list_command(paper: str | None, out: str) -> None:
    """List every table and figure of the papers and our own studies: what it compares, how many
    runs it has, and of how many there is a line of evidence. `fedloom paper NAME --dry-run` says
    what would run.
    """
    from .catalogue import TITLES, entries_of
    from .pages import listing

    for number, name in enumerate([paper] if paper else TITLES):
        entries = entries_of(name)
        click.echo(("\n" if number else "") + TITLES[name])
        click.echo(listing(entries, Path(out)))
    click.echo("\nRun one: fedloom paper NAME [--scale paper|cpu|smoke]; what it means: --dry-run")


@paper_command.command("run", short_help="Run what a list of tables lacks.")
@click.argument("file", metavar="[PLAN]", default=PLAN)
@click.option("--only", help="Only these tables of the list, as fedacg:4,fiarse:1.")
@click.option("--hours", type=click.FloatRange(min=0, min_open=True), help="Stop after so long.")
@click.option("--out", default=COMMITTED, show_default=True, help="The folder of runs and lines.")
@_jobs
@click.option("--mix", is_flag=True, help="Go on with lines that another commit began.")
@click.option("--dry-run", is_flag=True, help="Say what is left, and run nothing.")
@click.option("--quiet", is_flag=True, help="No progress.")
def run_command(
    file: str,
    only: str | None,
    hours: float | None,
    out: str,
    jobs: int,
    mix: bool,
    dry_run: bool,
    quiet: bool,
) -> None:
    """Work through a list of tables, docs/results/plan.toml by default: each run that is finished
    adds a line of evidence.

    \b
    fedloom paper run --dry-run                  what is left of each table
    fedloom paper run --hours 2 --jobs 2         two hours; again resumes
    fedloom paper run my_plan.toml --only fedacg:4
    touch docs/results/papers/pause              it waits until that is gone

    A table whose lines another commit began is left out, so that one code makes all its lines: run
    it from that commit (docs/papers.md says how), or with --mix.
    """
    from .schedule import read_items

    items, folder = _select_items(read_items(Path(file)), only), Path(out)
    if dry_run:
        click.echo(_remaining_table(items, folder))
        return
    end = None if hours is None else time.monotonic() + 3600 * hours
    for item in items:
        if not _run_item(item, folder, jobs, mix, quiet, end):
            return


def _select_items(items: Sequence[Item], only: str | None) -> list[Item]:
    """The tables of the list that are asked for. Raises ConfigError for one that it lacks."""
    if only is None:
        return list(items)
    ids, available = [word.strip() for word in only.split(",")], {item.id for item in items}
    for word in ids:
        if word not in available:
            raise ConfigError(f"the list has no table '{word}'; {did_you_mean(word, available)}")
    return [item for item in items if item.id in ids]


def _remaining_table(items: Sequence[Item], out: Path) -> str:
    """A line for each table: how many of its runs have a line."""
    from fedloom.cli.printing import page_width, table

    from .lines import evidence
    from .run import missing
    from .schedule import plan_of

    rows, lines = [["table", "runs", "left", "hours", "rows and protocols"]], evidence(out)
    for item in items:
        plan = plan_of(item, out)
        part = ", ".join((*item.protocols, *item.rows)) or "all"
        if item.tune != "none":
            part += f"; after its grid ({item.tune})"
        left = len(missing(plan, out, lines))
        rows.append(
            [f"{item.id} {item.scale}", str(len(plan.runs)), str(left), f"{item.hours:g}", part]
        )
    return table(rows, page_width())


def _run_item(item: Item, out: Path, jobs: int, mix: bool, quiet: bool, end: float | None) -> bool:
    """Run what an item lacks; False if time is up, at `end` by time.monotonic()."""
    from fedloom.cli.run import repeatable
    from fedloom.core.interrupts import TimeUpError

    from .run import missing, run_plan
    from .schedule import others_commit, run_item

    def run(plan: Plan) -> None:
        commit = others_commit(plan, out)
        if commit and not mix and missing(plan, out):
            raise ConfigError(f"its lines are of commit {commit[:12]}; run it there, or with --mix")
        minutes = None if end is None else (end - time.monotonic()) / 60
        for name, why in run_plan(plan, out, jobs, quiet, minutes).items():
            click.echo(f"{name}: {why}", err=True)

    click.echo(item.title, err=True)
    try:
        with repeatable(f"the runs in '{out}'"):
            try:
                run_item(item, out, run, _tell_choices)
            except TimeUpError:
                click.echo("time is up; run the same command again to resume", err=True)
                return False
    except ConfigError as error:
        click.echo(f"left out: {item.id}: {error}", err=True)
    return True


def _tell_choices(choices: Sequence[Choice]) -> None:
    for choice in choices:
        click.echo(f"  {choice.words}", err=True)


# ------------------------------------------------------------------------------------- one table
@paper_command.command("table", short_help="Run one table: `fedloom paper NAME` is short for it.")
@click.argument("words", nargs=-1, required=True, metavar="TABLE [KEY=VALUE ...]")
@click.option(
    "--scale",
    type=SCALE,
    help="paper: exactly the paper's; cpu: a stated reduction; smoke: seconds.  [default: cpu; of "
    "our own studies paper]",
)
@click.option("--rows", help="Only these rows, as fedavg,my_method.py:Mine.")
@click.option("--protocols", help="Only these columns, as c10-100-dir0.3; see --dry-run.")
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    help="Runs per row.  [default: 3; smoke: 1; flamby: 5]",
)
@click.option("--out", default=OUT, show_default=True, help="The folder of runs and lines.")
@_jobs
@click.option("--dry-run", is_flag=True, help="Say what would run, and run nothing.")
@click.option(
    "--show", is_flag=True, help="Show what the lines have so far, each row at its best point."
)
@click.option(
    "--as-published",
    is_flag=True,
    help="For flamby: use the authors' weights and random numbers, and count equal cells.",
)
@click.option(
    "--tune",
    is_flag=True,
    help="Run the paper's grids at one seed first, and each row at its best point.",
)
@click.option(
    "--halving",
    is_flag=True,
    help="--tune for less: all points for a ninth of the rounds, the best ninth to the end.",
)
@click.option("--csv", is_flag=True, help="Print the table as CSV alone.")
@figure_options("Draw the table or figure into this folder.")
@click.option("--quiet", is_flag=True, help="Print the table alone, no progress.")
def table_command(
    words: tuple[str, ...],
    scale: str | None,
    rows: str | None,
    protocols: str | None,
    seeds: int | None,
    out: str,
    jobs: int,
    dry_run: bool,
    show: bool,
    as_published: bool,
    tune: bool,
    halving: bool,
    csv: bool,
    figures: str | None,
    kinds: str | None,
    quiet: bool,
) -> None:
    """Run a table or figure of a paper, and print what was measured beside what was published.

    \b
    fedloom paper fedsmoo:8                         at a CPU's scale, three seeds
    fedloom paper fedacg:1a --rows fedavg,fedacg    two rows of it
    fedloom paper fafed:2c --scale paper --seeds 5
    fedloom paper fafed:fig2 --figures pictures --format pdf
    fedloom paper flamby:heart --as-published       equal cells, seed by seed
    fedloom paper fedsmoo:8 --show                  what was run so far

    The same command resumes after any stop. A row that another table has run with the same settings
    is not run again. Changes KEY=VALUE hold for every row, after all other settings.
    """
    from fedloom.cli.run import repeatable

    from .catalogue import entry
    from .pages import draw, plan_text, print_table
    from .plan import plan, with_custom_rows, with_protocols
    from .run import run_plan
    from .tune import at_best_points

    if as_published and (tune or halving):
        raise ConfigError("--as-published runs what was published; drop --tune and --halving")
    name, changes = _name_and_changes(words)
    figure_choice = parse_figures(figures, kinds)
    paper_table = entry(name)
    paper_table = with_protocols(paper_table, _names(protocols))
    paper_table, row_keys = with_custom_rows(paper_table, _names(rows))
    scale = scale or ("paper" if paper_table.study else "cpu")
    count = seeds or _SEEDS.get(scale, paper_table.seeds)
    folder, silent = Path(out), quiet or csv
    table_plan = plan(paper_table, scale, folder, row_keys, count, changes, as_published)
    if dry_run:
        click.echo(plan_text(table_plan, folder, changes, tune, halving))
        return

    def run(table_plan: Plan) -> dict[str, str]:
        if show:
            return {}
        with repeatable(f"the runs in '{out}'"):
            return run_plan(table_plan, folder, jobs, silent)

    if show and not (tune or halving or changes or as_published):
        paper_table, seeds_done = _at_best(paper_table, scale, folder)
        table_plan = plan(paper_table, scale, folder, row_keys, seeds or max(count, seeds_done))
    if tune or halving:
        paper_table, choices = at_best_points(table_plan, folder, changes, halving, run)
        by = "held-out data" if paper_table.tuning else "the accuracy on the test set, as papers do"
        click.echo(f"tuned at seed 0 by {by}:", err=True)
        _tell_choices(choices)
        table_plan = plan(paper_table, scale, folder, row_keys, count, changes, as_published)
    print_table(table_plan, run(table_plan), folder, csv, changes)
    if figure_choice is not None:
        draw(table_plan, folder, figure_choice)


def _at_best(entry: Entry, scale: str, folder: Path) -> tuple[Entry, int]:
    """A table at the best points of its rows as far as there are lines of their grids, which are
    said, or of the list plan.toml beside the folder; and how many seeds have lines.
    """
    from .board import best_by_lines, seeds_with_lines
    from .columns import tuning_table
    from .lines import evidence
    from .pages import columns
    from .schedule import read_items

    lines, plan_file = evidence(folder), folder.parent / "plan.toml"
    items = read_items(plan_file) if plan_file.is_file() else []
    best = best_by_lines(entry, scale, lines, folder, items)
    if best.choices:
        click.echo(tuning_table(entry, best.choices, columns()), err=True)
    return best.entry, seeds_with_lines(best.entry, scale, lines, folder)


def _name_and_changes(words: Sequence[str]) -> tuple[str, list[str]]:
    """A table's name, and KEY=VALUE of every row. Raises ConfigError."""
    from fedloom.config.overrides import refuse_repeats

    names = [word for word in words if "=" not in word]
    changes = [word for word in words if "=" in word]
    if len(names) != 1:
        raise ConfigError(f"give one table or figure, got {', '.join(names) or 'none'}")
    refuse_repeats(changes)
    if seeds := [word for word in changes if word.partition("=")[0] in ("seed", "data.seed")]:
        raise ConfigError(f"'{seeds[0]}': a table has seeds from 0; give --seeds, their number")
    return names[0], changes


def _names(words: str | None) -> list[str]:
    return [name.strip() for name in words.split(",")] if words else []


# --------------------------------------------------------------------------------- a run's model
@paper_command.command("measure", short_help="Measure a run's model: curvature, loss surface.")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("name", metavar="MEASURE")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE ...]")
@click.option(
    "--out", type=click.Path(path_type=Path), help="The file.  [default: RUN/measures/MEASURE.json]"
)
def measure_command(run: Path, name: str, settings: tuple[str, ...], out: Path | None) -> None:
    """Measure a run at its newest checkpoint, and write the numbers to a JSON file beside it.

    \b
    fedloom paper measure runs/a hessian examples=2000    top eigenvalue and trace
    fedloom paper measure runs/a surface points=21        the loss around it
    fedloom paper measure runs/a divergence               of next local models
    fedloom paper measure runs/a cka layers='["layer*"]'  their layers, by pair

    Settings: `fedloom show hessian`. `fedloom report` draws what is there. The run stays as it is.
    """
    from fedloom._version import __version__
    from fedloom.cli.printing import table
    from fedloom.config import from_run, parse_override
    from fedloom.core.validation import Origin, check, live
    from fedloom.measures import MEASURES
    from fedloom.report import load_run
    from fedloom.storage.atomic import write_out

    make, loaded = MEASURES.entry(name), load_run(run)
    overrides = dict(map(parse_override, settings))
    origin = Origin("command line", frozenset(overrides))
    all_settings = check(make, overrides, "", f"measure '{name}'", origin, skip=("every",))
    if loaded.config.get("source") == "python":
        raise ConfigError(
            f"'{run}' was started from Python, which made its model and data; measure it there "
            f"with {make.__name__}().of(Experiment(...).open('{run}'))"
        )
    # as its newest checkpoint left it
    restored = from_run(loaded.path, ["device=auto"], own=True).experiment().open(loaded.path)
    result = make(**live(all_settings)).of(restored)
    out = out or run / "measures" / f"{name}.json"
    record = {"measure": name, "fedloom": __version__, "settings": all_settings, **result}
    write_out(out, json.dumps(record) + "\n")
    click.echo(table(_number_rows(result)))
    click.echo(f"  numbers in {out}")


def _number_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    """The numbers of a result, without its long lists."""
    rows: list[tuple[str, str]] = []
    for key, value in result.items():
        if isinstance(value, dict) and all(isinstance(v, float | None) for v in value.values()):
            rows += [(f"{key} {k}", _number(v)) for k, v in list(value.items())[:40]]
        elif isinstance(value, int | float | str):
            rows.append((key.replace("_", " "), _number(value)))
    return rows


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "-" if value is None else str(value)
