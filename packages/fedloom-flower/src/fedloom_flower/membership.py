"""Sites that come and go while a run goes on: the server looks at its list of clients, which the
operator changes, after every round. A client that was added joins when its node is there and its
data fit; the others' nodes are told, and the run goes on from its checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from fedloom.algorithm import ACCUMULATED, CHANGE
from fedloom.config.resolve import resolve
from fedloom.errors import CompositionError, ConfigError, DataError, FedloomError, WireError
from fedloom.experiment.experiment import Experiment
from fedloom.storage import world
from fedloom.storage.atomic import reason

from .agreement import Agreement, read_agreement, with_site
from .certificates import as_pem, make_node_key
from .clients import Clients, Entry, check_name, read_clients
from .folder import Folder, write
from .message import DeclinedError, Site, What
from .message_exchange import MessageExchange, ask
from .new import MOST, make_folders, write_node
from .own_files import OwnFiles
from .sites import at_server, must_join, run_of, settings_of

_log = logging.getLogger(__name__)
_MASKED = 3  # clients that a masked sum needs
_RETRY = 60.0  # seconds until a site that could not join is asked again


class ChangedError(FedloomError):
    """Other clients take part from the next round on: the run is to go on from its checkpoint."""


def why_fixed(experiment: Experiment) -> str:
    """Why no client can be added to a run that has begun; empty if one can."""
    plan = experiment.plan()
    whole = {
        name for name, how in plan.algorithm.compressible_up.items() if how in (ACCUMULATED, CHANGE)
    }
    if whole or plan.link.mirrored:
        cause = plan.algorithm.method if whole else "compress.feedback = ef21"
        return f"{cause}: the server's state is a mean over the clients that there were"
    if experiment._aggregation.private:
        return "private aggregation: its noise and its accounts are for the clients that there were"
    if experiment._aggregation.masked:
        return (
            "aggregation.secure = true: each node has the keys of all others in its own "
            "clients.toml, which nobody may change from afar"
        )
    if isinstance(experiment.cohort, Sequence):
        return "cohort names the clients of each round"
    return ""


class Membership:
    """Who takes part now. exchange_of: makes an exchange with clients; agreement: what they agreed
    on, from begin() on. waits: clients that could not join, and why.
    """

    agreement: Agreement

    def __init__(self, fed: Folder, exchange_of: Callable[[Clients], MessageExchange]) -> None:
        self._fed, self._exchange_of = fed, exchange_of
        self._stamp: tuple[int, int] = (0, 0)
        self._read()
        self.waits: dict[int, str] = {}
        self._uninformed: set[int] = set()  # who has not heard yet what is agreed now
        self._retry_at = 0.0

    def begin(self, agreement: Agreement) -> None:
        """Begin with what was agreed. A server that died may not have told it to all."""
        self.agreement = agreement
        if any(entry.added for entry in self.clients.client):
            self._tell(self._joined_clients)
            self._admit()

    @property
    def absent(self) -> frozenset[int]:
        """Clients that are asked for nothing now: taken out, not joined, or not yet told of what is
        agreed.
        """
        everybody = frozenset(range(len(self.agreement.examples)))
        return everybody - (self._joined_clients - self._uninformed)

    def columns(self) -> dict[str, Any]:
        """What a line of clients.jsonl says of this; nothing in a federation that never changed."""
        if not any(entry.added or entry.removed for entry in self.clients.client):
            return {}
        there = sorted({*range(len(self.agreement.examples))} - self.absent)
        waits = {str(i): why for i, why in self.waits.items()}
        return {"there": there} | ({"waits": waits} if waits else {})

    def look(self) -> None:
        """Look for changes after a round. Raises ChangedError if there are any."""
        before = self._now()
        self._read()
        self._admit()
        if self._now() != before:
            raise ChangedError("other clients take part from the next round on")

    def _now(self) -> object:
        return self.absent, self.agreement, [entry.key for entry in self.clients.members.values()]

    @property
    def _joined_clients(self) -> set[int]:
        clients = {i for i, count in enumerate(self.agreement.examples) if count}
        return clients & self.clients.members.keys()

    def _read(self) -> None:
        """Read the list of clients if it has changed; a wrong one is named, and not taken."""
        try:
            stat = self._fed.clients_file.stat()
            if (stamp := (stat.st_mtime_ns, stat.st_size)) == self._stamp:
                return
            self._stamp = stamp
            self.clients = read_clients(self._fed.clients_file)
        except (OSError, ConfigError) as error:
            if not hasattr(self, "clients"):
                raise
            _log.warning("the clients stay as they were: %s", error)
            return
        self.exchange = self._exchange_of(self.clients)
        self._retry_at = 0.0

    def _admit(self) -> None:
        """Have those join that wait and are there."""
        waiting = self.clients.members.keys() - self._joined_clients
        self.waits = {i: why for i, why in self.waits.items() if i in waiting}
        if not (waiting or self._uninformed) or world.monotonic() < self._retry_at:
            return
        present = self.exchange.present()
        for i in sorted(waiting & present.keys()):
            self._join(i)
        if reachable := self._uninformed & present.keys():
            self._tell(reachable)

    def _join(self, i: int) -> None:
        """Have a client join, and tell all."""
        try:
            site = self._ask_sites([i], "join", {})[i]
            if isinstance(site, WireError):
                raise site
            if (count := self.clients.client[i].examples) not in (None, site.examples):
                raise DataError(f"it has {site.examples} examples, and clients.toml says {count}")
            agreement = with_site(self.agreement, i, site)
            experiment = at_server(self._fed, agreement)
            if why := why_fixed(experiment):
                raise CompositionError(why)
            experiment.build()
        except (ConfigError, DataError, CompositionError, WireError) as error:
            if self.waits.get(i) != (why := _why(error)):
                _log.warning("client %d cannot join: %s", i, why)
            self.waits[i], self._retry_at = why, world.monotonic() + _RETRY
            return
        self.agreement = agreement
        self.waits.pop(i, None)
        write(self._fed.agreement_file, agreement.model_dump_json() + "\n")
        self._tell(self._joined_clients)
        _log.warning("client %d has joined with %d examples", i, site.examples)

    def _tell(self, clients: Collection[int]) -> None:
        """Have clients keep what is agreed; one that does not waits until it has."""
        parts = {"agreed": self.agreement.model_dump_json().encode()}
        present = self.exchange.present()
        answers = self._ask_sites([i for i in sorted(clients) if i in present], "agree", parts)
        informed = {i for i, answer in answers.items() if isinstance(answer, Site)}
        for i, answer in answers.items():
            if isinstance(answer, WireError):
                _log.warning("client %d does not take what is agreed: %s", i, _why(answer))
        self._uninformed = (self._uninformed | {*clients}) - informed

    def _ask_sites(
        self, clients: Sequence[int], what: What, parts: dict[str, bytes]
    ) -> dict[int, Site | WireError]:
        """What each of some clients says that it has, or why it does not."""
        run, seconds = run_of(self._fed, settings_of(self._fed)), self._fed.settings().deadline
        answers = ask(self.exchange, run, what, clients, parts, seconds, Site)
        return {i: pair if isinstance(pair, WireError) else pair[0] for i, pair in answers.items()}


def _why(error: Exception) -> str:
    """What went wrong, of a refusal in the node's own words."""
    return error.why if isinstance(error, DeclinedError) else str(error)


# ------------------------------------------------------------------------------ by the operator
def add(fed: Folder, name: str, key: Path | None = None) -> int:
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
    entry = Entry(name=name, key=line, added=True, key_made_here=key is None)
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
