"""`fedloom describe`: what tables are like, told so that no number is of few rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .printing import as_json, folded, page_width, table

if TYPE_CHECKING:
    from fedloom.deployment.description import ColumnDescription, Description


@click.command("describe", short_help="Say what tables of sites are like, and tell of nobody.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--target", help="The column with the labels, whose shares are compared.")
@click.option("--inputs", metavar="A,B,C", help="The other columns.  [default: all]")
@click.option(
    "--least",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Nothing is told of fewer rows.",
)
@click.option("--json", "json_too", is_flag=True, help="Print JSON, and no table.")
def describe_command(
    files: tuple[str, ...], target: str | None, inputs: str | None, least: int, json_too: bool
) -> None:
    """Say what tables are like: rows, empty cells, ranges, categories, shares of labels.

    \b
    fedloom describe sites/*.csv --target outcome
    fedloom describe sites/*.csv --target outcome --inputs age,sex --json

    A file is a site. Nothing is told of fewer rows than --least. Of a column of numbers low and
    high are means of several rows, and so are 25 %, median and 75 %: a maximum is one patient's.
    """
    from fedloom.deployment.description import described_files

    names = [] if inputs is None else [name.strip() for name in inputs.split(",")]
    told = described_files([Path(file) for file in files], names, target, least)
    click.echo(as_json(in_json(told)) if json_too else in_tables(told))


def in_json(told: Mapping[str, Description]) -> dict[str, Any]:
    """Descriptions by site, and the distances of their labels."""
    from fedloom.deployment.description import labels_of

    found = labels_of(told)[2]
    kept = ("pairs", "from_all", "divergence", "jensen_shannon")
    return {
        "sites": {name: site.model_dump() for name, site in told.items()},
        "labels": None if found is None else {name: getattr(found, name) for name in kept},
    }


def in_tables(told: Mapping[str, Description]) -> str:
    """Descriptions by site, for a terminal."""
    least = max(site.least for site in told.values())
    parts = [f"nothing is told of fewer than {least} rows: '-'", _labels(told)]
    numbers, values = (_columns(told, of) for of in (True, False))
    if numbers:
        heads = ["numbers", "site", "empty", "mean", "std", "low", "25 %", "median", "75 %", "high"]
        parts.append(table([heads, *numbers], page_width()))
    if values:
        heads = ["values", "site", "empty", "rows of each value"]
        parts.append(table([heads, *values], page_width()))
    return "\n\n".join(parts)


def _labels(told: Mapping[str, Description]) -> str:
    """Rows and shares of labels of each site, and how much they differ."""
    from fedloom.deployment.description import labels_of

    names, counts, found = labels_of(told)
    left = iter(counts)
    lines = [["site", "rows", *(["labels"] if found else [])]]
    for name, site in told.items():
        row = next(left) if found and site.rows is not None else []
        shown = [
            f"{label}: {100 * n / sum(row):.0f} %"
            for label, n in zip(names, row, strict=False)
            if n
        ]
        rest = [f"not told: {100 * row[-1] / sum(row):.0f} %"] if row and row[-1] else []
        lines.append([name, _count(site.rows), *([", ".join(shown + rest)] if found else [])])
    if found is None:
        return table(lines, page_width())
    said = (
        f"distance of two sites' labels {found.pairs:.3f}, of a site's to all {found.from_all:.3f} "
        f"(total variation, mean); to all, Jensen-Shannon {found.jensen_shannon:.3f} bits"
    )
    return table(lines, page_width()) + "\n" + folded(f"  {said}", page_width())


def _columns(told: Mapping[str, Description], numbers: bool) -> list[list[str]]:
    """A line for each column and site, of columns of numbers or of the others."""
    lines = []
    for name in dict.fromkeys(name for site in told.values() for name in site.columns):
        first = name
        for place, site in told.items():
            column = site.columns.get(name)
            if column is not None and (column.kind == "number") == numbers:
                cells = _quantiles(column) if numbers else [_values(column)]
                lines.append([first, place, _count(column.missing), *cells])
                first = ""
    return lines


def _quantiles(column: ColumnDescription) -> list[str]:
    numbers = column.mean, column.deviation, *(column.quantiles or [None] * 5)
    return ["-" if v is None else f"{v:.6g}" for v in numbers]


def _values(column: ColumnDescription) -> str:
    return ", ".join(f"{name}: {_count(n)}" for name, n in column.counts.items()) or "-"


def _count(n: int | None) -> str:
    return "-" if n is None else f"{n:,}"
