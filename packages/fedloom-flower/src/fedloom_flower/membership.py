"""Sites that come and go while a run goes on: the server looks at its list after every round.

A client that was taken out is in no later round. One that was added joins when its node is there,
if its data fit what the others agreed on. Its examples are then told to the others' nodes, whose
computation may need them, and the run goes on from its checkpoint with one client more. The model
is that of a simulation in which the same clients are available in the same rounds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any

from fedloom.algorithm import ACCUMULATED, CHANGE
from fedloom.errors import CompositionError, ConfigError, DataError, FedloomError, WireError
from fedloom.experiment.experiment import Experiment
from fedloom.storage import world

from .agreement import Agreement, with_site
from .clients import Clients, read_clients
from .folder import Folder, write
from .message import DeclinedError, Site, What
from .message_exchange import MessageExchange, ask
from .sites import at_server, run_of, settings_of

_log = logging.getLogger(__name__)
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
