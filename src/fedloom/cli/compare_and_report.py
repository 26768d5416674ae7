"""`fedloom compare` and `fedloom report`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from fedloom.report.runs import Run


@click.command("compare")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--target", type=float, help="Find the rounds to this value (0.9 is 90 %).")
@click.option("--csv", type=click.Path(path_type=Path), help="Also write all numbers to this file.")
@click.option("--markdown", is_flag=True, help="Print the table as Markdown.")
@click.option("--against", metavar="LABEL", help="Compare with this row.  [default: the first]")
def compare_command(
    runs: tuple[str, ...],
    target: float | None,
    csv: Path | None,
    markdown: bool,
    against: str | None,
) -> None:
    """Print a table of runs; runs that differ only in their seed are one line.

    A folder of runs stands for all runs in it. Below stands what every line is less the first one,
    paired by seed, with Student's t: its interval, its p, and whether that may be chance.
    """
    from fedloom.report import as_csv, as_markdown, comparison, group_runs, load_run
    from fedloom.report.differences import as_lines, columns, differences
    from fedloom.report.style import write_atomic

    from .printing import expand, fitted

    loaded = [load_run(path) for path in expand(runs)]
    _check_target(target, loaded)
    groups = group_runs(loaded)
    rows, beside = comparison(groups, target), differences(groups, against)
    if csv is not None:
        whole = [row | columns(row["label"], beside) for row in rows]
        write_atomic(csv, as_csv(whole).encode())
    click.echo(as_markdown(rows).rstrip() if markdown else fitted(rows))
    if said := as_lines(beside):
        fence = ["```"] if markdown else []
        click.echo("\n".join(["", *fence, *said, *fence]))


def _check_target(target: float | None, runs: Sequence[Run]) -> None:
    if target is not None and any(run.metric.unit == "share" for run in runs):
        from fedloom.server.evaluation import check_share

        check_share(target, f"--target {target:g}")


@click.command("report")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--out", type=click.Path(path_type=Path), help="The file.  [default: report.html]")
@click.option("--target", type=float, help="Find the rounds to this value (0.9 is 90 %).")
def report_command(runs: tuple[str, ...], out: Path | None, target: float | None) -> None:
    """Write one HTML page about runs: curves, partition, clients, table, settings.

    It needs no network to open. For a single run the default place is its own folder. A folder of
    runs stands for all runs in it.
    """
    from fedloom.report import load_run, write_report

    from .printing import expand

    paths = expand(runs)
    if target is not None:
        _check_target(target, [load_run(path) for path in paths])
    if out is None:
        out = (paths[0] if len(paths) == 1 else Path()) / "report.html"
    elif out.is_dir():
        out = out / "report.html"
    click.echo(write_report(paths, out, target=target))
