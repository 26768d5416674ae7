"""`fedloom deploy sites` and `renew`: what an operator changes while a run goes on."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from fedloom_flower.folder import Folder

_TAKEN = "which a running server takes within a second"
FOLDER = click.argument("fed", type=click.Path(path_type=Path), metavar="FOLDER")
_KEY = click.option(
    "--key", type=click.Path(path_type=Path), help="The file of a public key that the site made."
)


def folder_of(path: Path) -> Folder:
    """The folder of a federation. Raises ConfigError."""
    from fedloom_flower.folder import Folder

    folder = Folder(path.absolute())
    folder.settings()
    return folder


@click.group("sites", short_help="Add a site, or take one out, while the run goes on.")
def sites_command() -> None:
    """Add a site, take one out, or give one another key, while the run goes on.

    \b
    fedloom deploy sites add fed ulm         it counts once its node joins
    fedloom deploy sites remove fed ulm      its messages are refused from now on
    fedloom deploy sites key fed ulm --key node.pub
    """


@sites_command.command("add")
@FOLDER
@click.argument("name")
@_KEY
def add_command(fed: Path, name: str, key: Path | None) -> None:
    """Add a site. It counts from the round after its node has joined."""
    from fedloom_flower.membership import add

    folder = folder_of(fed)
    i = add(folder, name, key)
    where = quote(str(folder.node(i).path))
    click.echo(f"client {i} is '{name}', {_TAKEN}")
    click.echo(f"  give {where} to the site, over a channel that nobody else can read; there:")
    click.echo(f"  fedloom deploy node {i} --client {i} --data mine.toml")


@sites_command.command("remove")
@FOLDER
@click.argument("name")
def remove_command(fed: Path, name: str) -> None:
    """Take a site out, by its name or number. A round under way does not wait for longer than
    its deadline; nothing is deleted.
    """
    from fedloom_flower.membership import masked, remove

    folder = folder_of(fed)
    i = remove(folder, name)
    click.echo(f"client {i} is out, and its number is nobody's, {_TAKEN}")
    if masked(folder):
        click.echo(f"  masked sums: each site writes removed = true for client {i} into its own")
        click.echo("  clients.toml; until then its node takes part in no smaller sum")


@sites_command.command("key", short_help="Give a site another key.")
@FOLDER
@click.argument("name")
@_KEY
def key_command(fed: Path, name: str, key: Path | None) -> None:
    """Give a site another key, by its name or number: the old one is refused from now on."""
    from fedloom_flower.membership import change_key

    folder = folder_of(fed)
    i = change_key(folder, name, key)
    click.echo(f"client {i} has another key, {_TAKEN}")
    if key is None:
        where = quote(str(folder.node(i).secret("node")))
        click.echo(f"  give {where} to the site, and start its node again there")


@click.command("renew", short_help="Make another certificate, while the run goes on.")
@FOLDER
def renew_command(fed: Path) -> None:
    """Make another certificate of the server, of the same authority. A running server takes it
    within a second, and nodes need nothing.
    """
    from fedloom_flower.certificates import renew, validity

    folder = folder_of(fed)
    renew(folder)
    click.echo(f"the certificate of '{folder.settings().run}' is {validity(folder)}")
