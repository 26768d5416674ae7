"""What the operator of a server changes in a federation: sites that come and go, and their keys.

All of it is in clients.toml, which the server looks at while it runs (membership.py).
"""

from __future__ import annotations

from pathlib import Path

from fedloom.config.resolve import resolve
from fedloom.errors import CompositionError, ConfigError
from fedloom.storage.atomic import reason

from .agreement import read_agreement
from .certificates import as_pem, make_node_key
from .clients import Clients, Entry, check_name, read_clients
from .folder import Folder, write
from .membership import why_fixed
from .new import MOST, make_folders, write_node
from .own_files import OwnFiles
from .sites import at_server, must_join, settings_of

_MASKED = 3  # clients that a masked sum needs


def add(fed: Folder, name: str, key: Path | None = None, examples: int | None = None) -> int:
    """Add a site to a federation -> its number; its folder is made. key: the file of a public key
    that the site made itself. Raises ConfigError, CompositionError.
    """
    settings, clients = fed.settings(), read_clients(fed.clients_file)
    check_name(name, [entry.name for entry in clients.client])
    if not must_join(settings, clients):
        raise CompositionError(
            "no site can be added: the examples of all clients stand in clients.toml, so that no "
            "node joins; take federation.evaluate = nodes, or leave them out of clients.toml"
        )
    if clients.population == MOST:
        raise ConfigError(f"a federation has {MOST} clients at most, and this one has them")
    agreement = read_agreement(fed.agreement_file)
    if agreement is not None and (why := why_fixed(at_server(fed, agreement))):
        raise CompositionError(
            f"no site can be added to a run that has begun: {why}; make another federation "
            "with it, whose weights are this run's model.safetensors"
        )
    i, node = clients.population, fed.node_to_be(clients.population)
    make_folders(node)
    line = _line(key) if key is not None else make_node_key(node.secret("node"))
    entry = Entry(name=name, key=line, examples=examples, added=True, key_made_here=key is None)
    clients = clients.model_copy(update={"client": [*clients.client, entry]})
    write_node(fed, i, resolve(fed.run_file, [], OwnFiles(fed)), settings, clients)
    write(fed.clients_file, clients.to_toml())
    return i


def remove(fed: Folder, name: str) -> int:
    """Take a site out, by its name or number -> its number, which no other gets. Raises
    ConfigError.
    """
    settings, clients = fed.settings(), read_clients(fed.clients_file)
    i = client_of(clients, name)
    left = len(clients.members) - 1
    if left < (least := max(settings.min_updates, _MASKED if masked(fed) else 1)):
        raise ConfigError(
            f"without client {i} there are {left}, and a round needs {least} updates "
            "(federation.min_updates, and 3 of a masked sum): add another site first"
        )
    _change(fed, clients, i, removed=True)
    return i


def masked(fed: Folder) -> bool:
    """Whether its run makes masked sums. Raises ConfigError."""
    return bool(settings_of(fed, rules=False).values.get("aggregation", {}).get("secure", False))


def change_key(fed: Folder, name: str, key: Path | None = None) -> int:
    """Give a site another key -> its number; the old one is nobody's then. Raises ConfigError."""
    clients = read_clients(fed.clients_file)
    i = client_of(clients, name)
    node = fed.node_to_be(i)
    if key is None and not node.path.is_dir():
        raise ConfigError(
            f"'{node.path}' is not here any more, so client {i} makes its key itself (ssh-keygen "
            "-t ecdsa -b 384 -N '' -f secret/node): give --key FILE with the line of node.pub"
        )
    line = _line(key) if key else make_node_key(node.secret("node"))
    _change(fed, clients, i, key=line, key_made_here=key is None)
    return i


def client_of(clients: Clients, name: str) -> int:
    """The number of a client that was not taken out, by name or number. Raises ConfigError."""
    for i, entry in clients.members.items():
        if name in (entry.name, str(i)):
            return i
    names = [entry.name or str(i) for i, entry in clients.members.items()]
    raise ConfigError(f"there is no site '{name[:100]}'; there are {', '.join(names[:20])}")


def _change(fed: Folder, clients: Clients, i: int, **new: object) -> None:
    entries = [*clients.client]
    entries[i] = entries[i].model_copy(update=new)
    write(fed.clients_file, clients.model_copy(update={"client": entries}).to_toml())


def _line(path: Path) -> str:
    """The line of a public key's file. Raises ConfigError."""
    try:
        line = " ".join(path.read_text(encoding="utf-8").split()[:2])
    except (OSError, UnicodeDecodeError) as error:
        why = reason(error) if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"the key '{path}' cannot be read: {why}") from None
    as_pem(line)
    return line
