"""Makes the folder of a federation: settings, keys, certificates, app, services, runbook."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from shlex import quote
from typing import Any

import tomli_w

from fedloom.config.resolve import Config
from fedloom.errors import ConfigError
from fedloom.storage.atomic import reason

from .agreement import Agreement
from .certificates import make_authority, make_node_key
from .clients import Clients, Entry, check_name
from .columns import rows_here, with_rules
from .folder import Deployment, Folder, deployment_of, write
from .own_files import for_nodes
from .site_data import agreement_on
from .sites import hides, must_join, refuse_disclosure, refuse_settings

MOST = 1000  # clients: each has a folder and a key
_PROGRAM = f"{Path(sys.executable).with_name('fedloom')} deploy"
# Flower's app: it names fedloom's, which is installed at every place; nothing is sent that runs
_APP = (
    "pyproject.toml",
    "fedloom_app/__init__.py",
    "fedloom_app/server.py",
    "fedloom_app/client.py",
)


def make(
    config: Config, out: Path, clients: Sequence[str] | None, deployment: Mapping[str, Any]
) -> Folder:
    """Write a federation's folder. clients: their names ("": none), if their data are elsewhere;
    None: those of the settings' data. deployment: settings of it. Raises ConfigError,
    DataError.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"'{out}' exists and is not empty; choose another --out")
    config = with_rules(config, elsewhere=clients is not None)
    refuse_settings(config, rules=clients is None)
    defaults = {"run": config.values["name"], "evaluate": _measures(config, bool(clients))}
    settings = deployment_of(defaults | dict(deployment), "command line")
    refuse_disclosure(config, settings)
    data = config.data() if clients is None else None
    sizes = [None] * len(clients or ()) if data is None else data.sizes.tolist()
    if len(sizes) > MOST:
        raise ConfigError(f"{len(sizes)} clients, and a federation has {MOST} at most")
    names = clients or [""] * len(sizes)
    for i, name in enumerate(names if any(names) else ()):
        check_name(name, names[:i])
    fed = Folder(out.absolute())
    make_folders(fed, *map(fed.node_to_be, range(len(sizes))))
    make_authority(fed, settings.address)
    keys = [make_node_key(fed.node_to_be(i).secret("node")) for i in range(len(sizes))]
    rows = zip(names, keys, sizes, strict=True)
    entries = [Entry(name=name, key=key, examples=n, key_made_here=True) for name, key, n in rows]
    registry = Clients(client=entries)
    write_folder(fed, config, settings, registry)
    if data is not None and not must_join(settings, registry):
        write_agreement(fed, agreement_on(data))
    return fed


def write_agreement(fed: Folder, agreement: Agreement) -> None:
    """Write what all agree on, at every place."""
    for place in (fed, *map(fed.node, range(len(agreement.examples)))):
        write(place.agreement_file, agreement.model_dump_json() + "\n")


def _measures(config: Config, elsewhere: bool) -> str:
    """Who measures the model unless the user says so. elsewhere: the clients' data are."""
    if not elsewhere:
        return "server"
    if not hides(config):
        return "nodes"
    return "server" if rows_here(config.values["data"]) else "nobody"


def make_folders(*folders: Folder) -> None:
    """Make the folders of places; nobody but their owner can look into them, whatever the umask.
    Raises ConfigError.
    """
    for folder in folders:
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            folder.path.chmod(0o700)
        except OSError as error:
            raise ConfigError(f"'{folder.path}' cannot be written: {reason(error)}") from None


def write_folder(fed: Folder, config: Config, settings: Deployment, clients: Clients) -> None:
    """Write what is no secret."""
    _write_settings(fed, config.values, settings, clients)
    for i in range(clients.population):
        write_node(fed, i, config, settings, clients)
    unit = fed.path / f"fedloom-{settings.run}.service"
    _write_unit(unit, f"server of {settings.run}", f"{_PROGRAM} server {quote(str(fed.path))}")
    write_app(fed)
    values = dataclasses.asdict(settings) | {"folder": fed.path, "unit": unit.name}
    write(fed.path / "RUNBOOK.md", _template("RUNBOOK.md").format(**values))


def write_node(
    fed: Folder, client: int, config: Config, settings: Deployment, clients: Clients
) -> None:
    """Write what is no secret of a client's folder."""
    node = fed.node_to_be(client)
    _write_settings(node, for_nodes(config.values), settings, clients)
    node.certificate("ca").parent.mkdir(exist_ok=True)
    shutil.copyfile(fed.certificate("ca"), node.certificate("ca"))
    data_option = "" if clients.sizes_known else f" --data {quote(str(node.path / 'mine.toml'))}"
    command = f"{_PROGRAM} node {quote(str(node.path))} --client {client}{data_option}"
    unit = node.path / f"fedloom-{settings.run}-node{client}.service"
    _write_unit(unit, f"client {client} of {settings.run}", command)


def _write_settings(
    folder: Folder, run: Mapping[str, Any], settings: Deployment, clients: Clients
) -> None:
    """Write the files of settings of a place. run: those of run.toml there."""
    write(folder.path / "federation.toml", tomli_w.dumps(dataclasses.asdict(settings)))
    write(folder.path / "clients.toml", clients.to_toml())
    write(folder.path / "run.toml", tomli_w.dumps(dict(run)))


def write_app(fed: Folder) -> None:
    """Write what Flower is given. Raises ConfigError."""
    for name in _APP:
        write(fed.app / name, _template(f"app/{name}"))


def _write_unit(path: Path, what: str, command: str) -> None:
    """Write a file that tells systemd to run a command. what: the command's name there."""
    values = {"name": path.name, "what": what, "command": command}
    write(path, _template("unit.service").format(**values))


def _template(name: str) -> str:
    """The text of a file in templates/, with places for what differs between federations."""
    return files(__package__).joinpath("templates", f"{name}.txt").read_text(encoding="utf-8")
