"""`fedloom describe`: what tables are like, told so that no number is of few rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedloom.errors import ConfigError

from .printing import COUNT, as_json, folded, page_width, table

if TYPE_CHECKING:
    from fedloom.data.own.description import ColumnDescription, Description


@click.command("describe", short_help="Describe tables of sites without showing a patient.")
@click.argument("words", nargs=-1, required=True, metavar="FILE... [KEY=VALUE ...]")
@click.option("--target", help="The column with the labels, whose shares are compared.")
@click.option(
    "--least",
    type=COUNT,
    default=10,
    show_default=True,
    help="The fewest rows of which a number is told.",
)
@click.option("--json", "json_too", is_flag=True, help="Print JSON, and no table.")
def describe_command(
    words: tuple[str, ...], target: str | None, least: int, json_too: bool
) -> None:
    """Say what tables are like: rows, empty cells, ranges, categories, shares of labels.

    \b
    fedloom describe sites/*.csv --target outcome
    fedloom describe sites/*.csv --target "num > 0" 'inputs=["age", "sex"]'
    fedloom describe my.toml

    A file is a site; of a single file each value of the client column is one. No number is of
    fewer rows than --least. Low, 25 %, median, 75 % and high are means of several rows, because a
    maximum would show one patient. Settings are those of a table in [data] (my.toml has them).
    """
    from fedloom.config import parse_override
    from fedloom.config.sources import read
    from fedloom.core.validation import Origin, check, live
    from fedloom.data import table as of_files
    from fedloom.data.own.description import described_clients

    paths = [word for word in words if "=" not in word or Path(word).is_file()]
    changes = [parse_override(word) for word in words if word not in paths]
    settings: dict[str, Any] = {}
    source = "command line"
    if len(paths) == 1 and paths[0].endswith(".toml"):
        source = f"file '{paths[0]}'"
        settings = _table_of(read(Path(paths[0])), source)
        paths = []
    for key, value in changes:
        name, _, inner = key.partition(".")
        old = settings.get(name)
        settings[name] = (old if isinstance(old, dict) else {}) | {inner: value} if inner else value
    settings |= {} if target is None else {"target": target}
    origin = Origin(source)
    options = check(of_files, settings, "data", "data 'table'", origin, ("partition", "seed"))
    selected = live({key: value for key, value in options.items() if key in settings})
    with origin.blame("data", options):
        sites = described_clients(selected | ({"path": paths} if paths else {}), least)
    if selected.get("missing") == "drop" and not json_too:
        note = "missing = drop: rows with an empty cell are left out here, as in a run"
        click.echo(folded(note, page_width()))
    click.echo(as_json(in_json(sites)) if json_too else in_tables(sites))


def _table_of(settings: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The options of the table that a run's settings name. Raises ConfigError."""
    data = settings.get("data", {})
    if not isinstance(data, dict) or data.get("name") != "table":
        raise ConfigError(
            f"{source}: only a table can be described: [data] with name = 'table' and path; "
            "`fedloom data partition` measures others"
        )
    return {k: v for k, v in data.items() if k not in ("name", "partition", "seed")}


def in_json(sites: Mapping[str, Description]) -> dict[str, Any]:
    """Descriptions by site, and the distances of their labels."""
    from fedloom.data.own.description import labels_of

    labels = labels_of(sites)[2]
    measures = ("pairs", "from_all", "divergence", "jensen_shannon")
    return {
        "sites": {name: site.model_dump() for name, site in sites.items()},
        "labels": None if labels is None else {name: getattr(labels, name) for name in measures},
    }


def in_tables(sites: Mapping[str, Description]) -> str:
    """Descriptions by site, for a terminal."""
    from fedloom.data.own.description import notices

    parts = [f"nothing is told of fewer than {_least(sites)} rows: '-'", _labels(sites)]
    parts += [folded(f"  warning: {line}", page_width()) for line in notices(sites)]
    numbers, values = (_columns(sites, is_number) for is_number in (True, False))
    if numbers:
        heads = ["numbers", "site", "empty", "mean", "std", "low", "25 %", "median", "75 %", "high"]
        parts.append(table([heads, *numbers], page_width()))
    if values:
        heads = ["values", "site", "empty", "rows of each value"]
        parts.append(table([heads, *values], page_width()))
    return "\n\n".join(parts)


def _labels(sites: Mapping[str, Description]) -> str:
    """Rows and shares of labels of each site, and how much they differ."""
    from fedloom.data.own.description import labels_of

    names, counts, labels = labels_of(sites)
    lines = [["site", "rows", *(["labels"] if labels else [])]]
    for name, site in sites.items():
        row, shares = counts.get(name, []), []
        for label, n in zip([*names, "not told"], row, strict=False):
            prefix = "about " if label in _withheld(site) else ""
            shares += [f"{label}: {prefix}{100 * n / sum(row):.0f} %"] if n else []
        lines.append([name, _count(site.rows), *([", ".join(shares)] if labels else [])])
    if labels is None or len(sites) == 1:
        return table(lines, page_width())
    text = (
        f"distance of two sites' labels {labels.pairs:.3f}, of a site's to all "
        f"{labels.from_all:.3f} (total variation, mean); to all, Jensen-Shannon "
        f"{labels.jensen_shannon:.3f} bits"
    )
    return table(lines, page_width()) + "\n" + folded(f"  {text}", page_width())


def _least(sites: Mapping[str, Description]) -> int:
    return max(site.least for site in sites.values())


def _withheld(site: Description) -> list[str]:
    column = None if site.target is None else site.columns.get(site.target)
    return [] if column is None else [label for label, n in column.counts.items() if n is None]


def _columns(sites: Mapping[str, Description], numbers: bool) -> list[list[str]]:
    """A line for each column and site, of columns of numbers or of the others."""
    lines = []
    for name in dict.fromkeys(name for site in sites.values() for name in site.columns):
        first = name
        for site_name, site in sites.items():
            column = site.columns.get(name)
            if column is not None and (column.kind == "number") == numbers:
                cells = _quantiles(column) if numbers else [_values(column)]
                lines.append([first, site_name, _count(column.missing), *cells])
                first = ""
    return lines


def _quantiles(column: ColumnDescription) -> list[str]:
    numbers = column.mean, column.deviation, *(column.quantiles or [None] * 5)
    return ["-" if v is None else f"{v:.6g}" for v in numbers]


def _values(column: ColumnDescription) -> str:
    return ", ".join(f"{name}: {_count(n)}" for name, n in column.counts.items()) or "-"


def _count(n: int | None) -> str:
    return "-" if n is None else f"{n:,}"
