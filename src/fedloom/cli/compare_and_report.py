"""`fedloom compare` and `fedloom report`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fedloom.core.curves import VALUES, Value
from fedloom.errors import ConfigError
from fedloom.storage.atomic import write_out

from .printing import PATH, cuts, folded, page_width, table

if TYPE_CHECKING:
    from fedloom.report.differences import Difference
    from fedloom.report.runs import Group, Run

_FILE = click.Path(path_type=Path, allow_dash=True)
Rows = list[dict[str, Any]]
_value = click.option(
    "--value",
    type=click.Choice(VALUES),
    default="last-tenth",
    show_default=True,
    help="The number that is compared: the mean of the last tenth of evaluations, or one of them.",
)


@click.command("compare", short_help="Print a table of runs, a line for each method.")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--target", type=float, help="Find the rounds to this value (0.9 is 90 %).")
@click.option("--csv", type=_FILE, help="Write all numbers to this file too (-: print them alone).")
@click.option("--json", type=_FILE, help="The same as JSON.")
@click.option("--latex", type=_FILE, help="Write the table for LaTeX's booktabs.")
@click.option("--markdown", is_flag=True, help="Print the table as Markdown.")
@click.option("--wide", is_flag=True, help="Print all columns, however wide the page is.")
@click.option("--columns", help="Print these alone, as accuracy,bytes,p; in --latex too.")
@click.option("--against", metavar="LABEL", help="Compare with this row.  [default: the first]")
@_value
def compare_command(
    runs: tuple[str, ...],
    target: float | None,
    csv: Path | None,
    json: Path | None,
    latex: Path | None,
    markdown: bool,
    wide: bool,
    columns: str | None,
    against: str | None,
    value: Value,
) -> None:
    """Print a table of runs; runs that differ only in their seed are one line.

    A folder of runs stands for all runs in it. Below the table are the
    settings that differ, and the difference of every line from the first: its interval, its p, and
    a verdict, by Student's t, paired by the seeds that all lines have. The tested number is the
    first one of the table (--value). The table fits the page (COLUMNS, the terminal, else 80).
    """
    from fedloom.report import as_markdown, as_text, comparison, group_runs, load_run
    from fedloom.report.clients import against_alone
    from fedloom.report.differences import as_lines, differences, measured_how
    from fedloom.report.frames import find_runs
    from fedloom.report.tables import common_skew

    from .results import fitted

    loaded = [load_run(path) for path in find_runs(runs)]
    _check_target(target, loaded)
    groups = group_runs(loaded)
    names = None if columns is None else [name.strip() for name in columns.split(",")]
    deltas = differences(groups, against, value)
    rows = _whole(comparison(groups, target, value), groups, deltas)
    if _write(rows, names, {"csv": csv, "json": json, "latex": latex}):
        return
    if markdown or wide:
        click.echo((as_markdown if markdown else as_text)(rows, names).rstrip())
    else:
        click.echo(fitted(rows, names))
    space = None if markdown or wide else page_width()
    if unequal := common_skew(groups):
        click.echo(f"\n{folded(f'Clients: {unequal}', space)}")
    fence = ["```"] if markdown else []
    notes = [folded(x, space) for x in (*measured_how(groups), *against_alone(groups))]
    for block in (_settings(groups, space), [folded(x, space) for x in as_lines(deltas)], notes):
        if block:
            click.echo("\n".join(["", *fence, *block, *fence]))
    for run in loaded:
        for warning in run.summary.get("warnings", ()):
            click.echo(f"warning: {run.path}: {warning}", err=True)


def _whole(rows: Rows, groups: Sequence[Group], compared: Sequence[Difference]) -> Rows:
    """The rows with the numbers of their difference, and the settings that differ."""
    from fedloom.report.differences import difference_columns, setting_columns

    settings = setting_columns(groups)
    return [
        row | difference_columns(row["label"], compared) | cells
        for row, cells in zip(rows, settings, strict=True)
    ]


def _write(rows: Rows, names: Sequence[str] | None, files: dict[str, Path | None]) -> bool:
    """Write the files that were asked for -> whether one of them was printed."""
    from fedloom.report import as_csv, as_json, as_latex

    printed = False
    for kind, file in files.items():
        if file is None:
            continue
        writers = {"csv": as_csv, "json": as_json}
        text = writers[kind](rows) if kind in writers else as_latex(rows, names)
        if str(file) == "-":
            click.echo(text, nl=False)
            printed = True
        else:
            write_out(file, text)
    return printed


def _settings(groups: Sequence[Group], space: int | None) -> list[str]:
    """The settings that differ, as lines: a table, or if it cuts words a line for each."""
    from fedloom.report.differences import describe_values, setting_cells

    heads, lines = setting_cells(groups)
    if not lines:
        return []
    cells = [heads, *lines]
    if cuts(cells, space):
        cells = [[key, describe_values(values, heads[1:])] for key, *values in lines]
    return ["Settings that differ:", table(cells, space)]


def _check_target(target: float | None, runs: Sequence[Run]) -> None:
    if target is not None and any(run.metric.unit == "share" for run in runs):
        from fedloom.evaluation.settings import check_share

        check_share(target, f"--target {target:g}")


# ------------------------------------------------------------------------- pictures for a paper
_KINDS = ("png", "svg", "pdf")


class Figures(NamedTuple):
    """Where pictures go, and in which formats."""

    folder: Path
    kinds: list[str]


def figure_options(help_text: str) -> Callable[[Any], Any]:
    """The options --figures and --format. help_text: the help of the first."""
    folder = click.option("--figures", metavar="FOLDER", help=help_text)
    about = "For --figures: png, svg, pdf.  [default: pdf]"
    kinds = click.option("--format", "kinds", metavar="KINDS", help=about)
    return lambda command: folder(kinds(command))


def parse_figures(folder: str | None, kinds: str | None) -> Figures | None:
    """What these options ask for; None for no pictures. Raises ConfigError."""
    formats = [word.strip().lower() for word in (kinds or "pdf").split(",")]
    for word in formats:
        if word not in _KINDS:
            choices = ", ".join(_KINDS)
            raise ConfigError(f"--format must be of {choices}, got '{word}'; several as pdf,svg")
    if folder is not None:
        return Figures(Path(folder), list(dict.fromkeys(formats)))
    if kinds is not None:
        raise ConfigError("--format is of --figures; give its folder too")
    return None


@click.command("report", short_help="Write a page about runs, with every picture.")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--out", type=PATH, help="The file.  [default: report.html]")
@click.option("--target", type=float, help="Find the rounds to this value (0.9 is 90 %).")
@_value
@figure_options("Write every picture into this folder, for a paper; no page without --out.")
def report_command(
    runs: tuple[str, ...],
    out: Path | None,
    target: float | None,
    figures: str | None,
    kinds: str | None,
    value: Value,
) -> None:
    """Write one HTML page about runs: curves, partition, clients, table, settings.

    \b
    fedloom report runs/* --out report.html
    fedloom report runs/* --figures figures --format pdf,png

    It needs no network to open. For a single run the default place is its own folder. A folder of
    runs stands for all runs in it.
    """
    from fedloom.report import group_runs, load_run, save_curves, write_report
    from fedloom.report.frames import find_runs

    paths = find_runs(runs)
    if target is not None:
        _check_target(target, [load_run(path) for path in paths])
    if (output := parse_figures(figures, kinds)) is not None:
        groups = group_runs(load_run(path) for path in paths)
        for file in save_curves(groups, output.folder, target, output.kinds, value):
            click.echo(file)
        if out is None:
            return
    if out is None:
        out = (paths[0] if len(paths) == 1 else Path()) / "report.html"
    elif out.is_dir():
        out = out / "report.html"
    click.echo(write_report(paths, out, target=target, value=value))
