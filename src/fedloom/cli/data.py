"""`fedloom data`: published data sets, the copies here, and how data are divided among clients."""

from __future__ import annotations

from pathlib import Path

import click

from fedloom.errors import ConfigError, unknown

from .partition import partition_command
from .printing import table

_WHERE = click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    help="The folder of all data sets; otherwise FEDLOOM_DATA, otherwise the user's cache.",
)


@click.group("data", short_help="Published data sets, and how data are divided among clients.")
def data_command() -> None:
    """Published data sets: list, get and check them. Data of any kind: partition them."""


data_command.add_command(partition_command)


@data_command.command("list")
@_WHERE
def list_sets(data_dir: Path | None) -> None:
    """List the data sets, their folders, and which are here."""
    from fedloom.data.published.catalogue import CATALOGUE
    from fedloom.data.published.download import data_root

    root = data_root(data_dir)
    lines = [["name", "here", "get", "folder", "what it is"]]
    for name, entry in CATALOGUE.items():
        present = "yes" if not entry.place or (root / entry.place).is_dir() else "no"
        origin = "downloads" if entry.downloads else "by hand" if entry.place else "comes along"
        lines.append([name, present, origin, entry.place or "-", entry.about])
    click.echo(f"in {root}\n\n{table(lines)}")


@data_command.command("get")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_WHERE
def get_sets(names: tuple[str, ...], data_dir: Path | None) -> None:
    """Download data sets, with a progress bar, and verify them.

    What is there already is only checked. A download that was stopped leaves nothing; a connection
    that breaks off is tried again.
    """
    from fedloom.data.published.catalogue import CATALOGUE
    from fedloom.data.published.download import data_root
    from fedloom.data.published.verify import SUBSET, get

    root = data_root(data_dir)
    for name in _check_names(names):
        finding = get(name, root)
        whole = "; to download the whole, move its folder away first"
        hint = whole if finding.state == SUBSET and CATALOGUE[name].downloads else ""
        click.echo(f"{name}: {finding.state}: {finding.detail}{hint}")


@data_command.command(
    "check", short_help="Say whether the copies here are the published data sets."
)
@click.argument("names", nargs=-1, metavar="[NAME...]")
@_WHERE
def check_sets(names: tuple[str, ...], data_dir: Path | None) -> None:
    """Say of every data set (or of these) whether the copy here is the published one.

    verified: by the publisher's checksums, or where there are none by the published counts;
    subset: which part; missing; damaged: which file. Exit code 1 if something is damaged, or if one
    of these is missing.
    """
    from fedloom.data.published.download import data_root
    from fedloom.data.published.verify import DAMAGED, MISSING, check

    root = data_root(data_dir)
    wrong = []
    selected = _check_names(names)
    click.echo(f"in {root}\n")
    width = max(map(len, selected))
    for name in selected:
        finding = check(name, root)
        click.echo(f"  {name:<{width}}  {finding.state}: {finding.detail}")
        if finding.state == DAMAGED or (names and finding.state == MISSING):
            wrong.append(f"{name} is {finding.state}")
    if wrong:
        raise click.ClickException("; ".join(wrong))


def _check_names(names: tuple[str, ...]) -> list[str]:
    """These sets, or all. Raises ConfigError for a name that is none."""
    from fedloom.data.published.catalogue import CATALOGUE

    for name in names:
        if name not in CATALOGUE:
            raise ConfigError(unknown("data set", name, CATALOGUE))
    return list(names or CATALOGUE)
