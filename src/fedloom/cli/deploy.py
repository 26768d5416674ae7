"""`fedloom deploy`: a run whose clients are elsewhere, on Flower."""

from __future__ import annotations

import contextlib
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from fedloom.errors import ConfigError

if TYPE_CHECKING:
    from fedloom.deployment.folder import Folder
    from fedloom.deployment.keeper import Keeper

_FOLDER = click.argument("fed", type=click.Path(path_type=Path), metavar="FOLDER")


@click.group("deploy")
def deploy_command() -> None:
    """Run the clients elsewhere: at hospitals, at companies, in other cities.

    \b
    fedloom deploy new my.toml --out fed                 at whoever runs the server
    fedloom deploy check fed                             equal to the simulation? what is sent?
    fedloom deploy server fed                            at the server; stays
    fedloom deploy node fed --client 3 --data mine.toml  at each client; stays
    fedloom deploy run fed                               at the server: begins, or goes on
    """


@deploy_command.command("new")
@click.argument("settings", nargs=-1, metavar="RECIPE|FILE.toml [KEY=VALUE ...]")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The new folder.")
@click.option(
    "--clients",
    type=click.IntRange(1, 1000),
    help="Number of clients, whose data nobody here has.  [default: those of the data]",
)
def new_command(settings: tuple[str, ...], out: Path, clients: int | None) -> None:
    """Make the folder of a federation: keys, certificates, the roll of clients.

    \b
    fedloom deploy new digits data.clients=3 --out fed              to try it on one machine
    fedloom deploy new my.toml --clients 5 --out fed federation.address=fl.example.org

    Settings of the deployment are federation.KEY=VALUE: address, port, deadline, ...
    """
    from fedloom.config import parse_override, resolve
    from fedloom.deployment.new import make

    from .run import sorted_out

    source, changes, _ = sorted_out(settings, str(out))
    ours = [c for c in changes if c.startswith("federation.")]
    given = dict(parse_override(c.removeprefix("federation.")) for c in ours)
    config = resolve(source, [c for c in changes if c not in ours])
    fed = make(config, out, clients, given)
    where = quote(str(out))
    click.echo(f"federation '{fed.settings().run}' in {out}; now: fedloom deploy check {where}")
    click.echo(f"  then {where}/RUNBOOK.md says what goes where, and how to begin")


@deploy_command.command("server")
@_FOLDER
def server_command(fed: Path) -> None:
    """Run the server's half: nodes connect to it, runs begin with `fedloom deploy run`."""
    from fedloom.deployment.programs import gate, link, register

    folder = _folder(fed)
    first, second = link(folder), gate(folder)
    with _kept(first), _kept(second):
        register(folder)
        settings = folder.settings()
        click.echo(f"server of '{settings.run}' at {settings.address}:{settings.port}; Ctrl-C ends")
        _until_stopped(first, second)


@deploy_command.command("node")
@_FOLDER
@click.option("--client", type=click.IntRange(0), required=True, help="Its number in the roll.")
@click.option(
    "--data", type=click.Path(path_type=Path), help="A file that says where its data are."
)
def node_command(fed: Path, client: int, data: Path | None) -> None:
    """Run a client's half: it trains on data of its own, and sends what the settings say."""
    from fedloom.deployment.door import Door
    from fedloom.deployment.programs import node
    from fedloom.deployment.sites import at_node

    folder = _folder(fed).node(client)
    half = at_node(folder)
    with tempfile.TemporaryDirectory(prefix="fedloom-") as place:
        door = Door(Path(place) / "door", half.answer)
        keeper = node(folder, door.path)
        with _kept(keeper):
            threading.Thread(target=door.serve, daemon=True).start()
            click.echo(f"client {client} of '{half.run}'; Ctrl-C ends")
            _until_stopped(keeper)
        door.close()


@deploy_command.command("run")
@_FOLDER
def run_command(fed: Path) -> None:
    """Begin the run, or go on with it, and show it until it ends."""
    from fedloom.deployment.programs import begin

    folder = _folder(fed)
    click.echo(f"run {begin(folder)}")


def _folder(path: Path) -> Folder:
    from fedloom.deployment.folder import Folder

    found = Folder(path.absolute())
    found.settings()
    return found


@contextlib.contextmanager
def _kept(keeper: Keeper) -> Iterator[None]:
    """Keep a program running inside."""
    thread = threading.Thread(target=keeper.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        keeper.stop()
        thread.join()


def _until_stopped(*keepers: Keeper) -> None:
    """Wait for Ctrl-C or SIGTERM. Raises ConfigError if a program was refused."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    with contextlib.suppress(KeyboardInterrupt):
        while not any(k.why for k in keepers):
            time.sleep(0.2)
    if why := [k.why for k in keepers if k.why]:
        raise ConfigError(f"refused: {why[0]}")
