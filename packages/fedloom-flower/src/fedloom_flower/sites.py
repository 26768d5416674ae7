"""The run of a federation's folder at each of its places: an experiment at the server, a node at a
client, both of the same settings.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedloom.aggregation import AGGREGATIONS
from fedloom.config.resolve import Config, resolve
from fedloom.core.net import Net
from fedloom.data import FederatedData
from fedloom.data.federated import Roll
from fedloom.data.own.description import Description
from fedloom.data.own.making import PerClient
from fedloom.errors import (
    CompositionError,
    ConfigError,
    DataError,
    FedloomError,
    WireError,
)
from fedloom.evaluation.scorer import keeps_no_statistics
from fedloom.experiment.experiment import Experiment
from fedloom.storage.identity import digest, fixed_parts

from .agreement import Agreement, described, parsed, read_agreement, sums_of
from .clients import Clients, read_clients
from .columns import (
    preparation_in,
    prepared,
    refuse_unagreed,
    scale_in,
    unagreed,
)
from .folder import Deployment, Folder, evaluation, write
from .masked_answers import Expected, identity_of
from .message import (
    ASK,
    DIGITS,
    Ask,
    Refusal,
    Told,
    What,
    check_addressee,
    disclosed,
    opened,
    sealed,
)
from .node import Node
from .own_files import OwnFiles
from .privacy import at_node, with_system_draws
from .site_data import alone, at_client, own_data, read_site
from .telling import (
    Preparation,
    agreed_to,
    check_told,
    described_run,
    description_of,
    digest_of,
    preparation,
)

_log = logging.getLogger(__name__)


def settings_of(
    fed: Folder, parts: Sequence[Path] = (), site: Path | None = None, agreed: bool = True
) -> Config:
    """The settings of the run, which every place computes in the same way. parts: the files of own
    parts that a node's site file `site` names; agreed: the rules of a table's columns must be.
    Raises ConfigError.
    """
    if not fed.run_file.is_file():
        raise ConfigError(f"'{fed.path}' has no run.toml; copy the folder from where it was made")
    config = resolve(fed.run_file, ["engine=serial"], OwnFiles(fed, parts, site))
    refuse_settings(config, agreed)
    refuse_told(config, fed.settings())
    return config


def run_of(fed: Folder, config: Config) -> str:
    """The run in every message: its name, and a hash of the settings that decide its numbers. Of
    those of data, of which each site has its own, it has the rules of columns alone.
    """
    data = config.values["data"]
    kept = {k: v for k, v in fixed_parts(config.values).items() if k != "data"}
    if data.get("rules"):
        kept |= {"rules": data["rules"], "class_names": data["class_names"]}
    kept |= scale_in(data)
    return f"{fed.settings().run}@{digest(kept, DIGITS)}"


def refuse_told(config: Config, settings: Deployment) -> None:
    """Raise CompositionError for settings that would tell what local.dp or masked sums hide, or
    that need single updates.
    """
    if config.values.get("aggregation", {}).get("secure"):
        _refuse_unmasked(config, settings)
    if settings.standardise and "dp" in config.values["local"]:
        raise CompositionError(
            "local.dp: standardise = true would tell sums of the examples that have no noise; take "
            "standardise = false"
        )


def hides(config: Config) -> bool:
    """Whether a run hides single updates or examples, of which scores of nodes would tell."""
    rule = config.values.get("aggregation", {})
    private = bool(rule) and getattr(AGGREGATIONS[rule["name"]], "private", False)
    return private or bool(rule.get("secure")) or "dp" in config.values["local"]


def _refuse_unmasked(config: Config, settings: Deployment) -> None:
    given = "aggregation.secure = true"
    if config.values["checkpoint"].get("every_rounds") != 1:
        raise CompositionError(
            f"{given} needs checkpoint.every_rounds = 1 in a deployment: a node unmasks a round "
            "once, and refuses it when an older checkpoint does it again"
        )
    if settings.standardise:
        raise CompositionError(
            f"{given}: standardise = true would send sums of each site's features without masks; "
            "take standardise = false, and rules of columns"
        )
    if settings.over_selection:
        raise CompositionError(
            f"{given}: over_selection = {settings.over_selection:g} takes some of the updates, and "
            "a masked sum is of all that came; take over_selection = 0, and a smaller threshold"
        )


def refuse_settings(config: Config, agreed: bool = True) -> None:
    """Raise CompositionError for settings that need all data in one place. agreed: the rules of a
    table's columns must be.
    """
    if agreed:
        refuse_unagreed(config.values["data"])
    share = config.values["evaluate"]["validation"]
    if share:
        raise CompositionError(
            f"evaluate.validation = {share:g} cannot be deployed: it would hold out samples of "
            "clients whose data are elsewhere; take evaluate.validation = 0"
        )


def experiment_of(
    config: Config, clients: Clients, data: FederatedData, by_nodes: bool = False
) -> Experiment:
    """The run on what is known of the data at one place. by_nodes: they measure models."""
    made = config.experiment(data)
    capacities, count = clients.capacities(), data.population
    if capacities is not None:  # this place may have heard of others since its list was made
        made.capacities = (capacities + (1.0,) * count)[:count]
    if made.evaluate.clients and data.test_clients is None and not by_nodes:
        made.evaluate = dataclasses.replace(made.evaluate, clients=False)
    return made


# ------------------------------------------------------------------------------------ at the server
def at_server(fed: Folder, agreed: Agreement | None) -> Experiment:
    """The run at the server. agreed: None where the settings' data are known. Raises ConfigError,
    DataError, CompositionError.
    """
    config, clients = settings_of(fed), read_clients(fed.clients_file)
    label = f"{config.values['label']}, deployed"  # beside its simulation, not one run with it
    config = Config({**config.values, "label": label}, config.origin)
    if agreed is None:
        data = config.data().elsewhere(clients.as_data())
    elif (evaluate := fed.settings().evaluate) == "server":
        data = agreed.at_server(_of_server(config))
    else:
        data = agreed.stand_in(preparation_in(config), tested=evaluate == "nodes")
    if any(entry.name for entry in clients.client):
        names = tuple(map(clients.called, range(clients.population)))
        data = dataclasses.replace(data, client_names=names[: data.population])
    by_nodes = agreed is not None and fed.settings().evaluate == "nodes"
    made = experiment_of(config, clients, data, by_nodes)
    _refuse_there(made.net(), made)
    return made


def _of_server(config: Config) -> FederatedData:
    """Data of the server's own. Raises DataError."""
    try:
        return config.data()
    except DataError as error:
        raise DataError(
            f"{error}; a server without rows takes evaluate = nobody in federation.toml, or nodes "
            "at every place"
        ) from error


def _refuse_there(net: Net, made: Experiment) -> None:
    """Raise CompositionError for what the server would need the clients' data for."""
    rule = made.submodel
    if rule is not None and rule.rows(net) is not None:
        raise CompositionError(
            f"{rule.name} averages a class's row over the clients that have the class, which the "
            "server does not know; take submodel.owners = false"
        )
    if keeps_no_statistics(net.module) and made.evaluate.statistics == "static":
        raise CompositionError(
            "evaluate.statistics = static gathers statistics over the clients' data, which are "
            "elsewhere; take evaluate.statistics = batch"
        )


# ------------------------------------------------------------------------------------- at a client
class Place:
    """A client's place: its data, and as soon as all have agreed its node. data: the site's file,
    which says where its data are and names its own parts; without data it has its part of the data
    of the settings, to try a federation. Raises ConfigError, DataError, CompositionError.
    """

    def __init__(self, fed: Folder, data: Path | None = None) -> None:
        assert fed.client is not None
        self._fed, self._file, self._clients = fed, data, read_clients(fed.clients_file)
        self._parts, self._table = ([], None) if data is None else read_site(data)
        self.client, self.settings = fed.client, fed.settings()
        if self.client >= self._clients.population:
            raise ConfigError(
                f"there is no client {self.client}: clients.toml has clients 0 to "
                f"{self._clients.population - 1}"
            )
        self._own: FederatedData  # as soon as it is known what a column becomes
        self._node: Node | None = None
        self._config = settings_of(fed, self._parts, data, agreed=False)
        self._run = run_of(fed, self._config)
        if not self.waits:
            self._begin()
        elif self._table is None:
            raise CompositionError(self.waits)
        else:
            self.told()  # it can be described

    @property
    def waits(self) -> str:
        """Why this place can only be described yet; empty if it can do more."""
        return unagreed(self._config.values["data"])

    @property
    def key_made_here(self) -> bool:
        """Whether this site's key was made beside the server's."""
        return self._clients.client[self.client].key_made_here

    @property
    def examples(self) -> int:
        """How many training examples are here."""
        return len(self._own.inputs)

    def _begin(self) -> None:
        """Load the data, and make the node if all is agreed."""
        self._run = run_of(self._fed, self._config)
        self._own, self._node = self._loaded(self._config.values["data"]), None
        if self._file is not None and isinstance(raw := self._own.raw, PerClient):
            mine = json.dumps(raw.numbers(""), indent=1)  # for predictions here; nobody gets it
            write(self._fed.path / "preparation.json", mine + "\n")
        agreed = read_agreement(self._fed.agreed_file)
        if agreed is not None:
            self._check(agreed)
            self._node = self._made(agreed.roll, agreed)
        elif not must_join(self.settings, self._clients):
            self._check_classes()
            self._node = self._made(self._clients.as_data(), None)

    def _loaded(self, run: Mapping[str, Any]) -> FederatedData:
        """This place's own data. run: the table [data] of run.toml."""
        if self._file is None or self._table is None:
            return alone(self._config.data(), self.client)
        found = own_data(self._table, self._file, run)
        return found.astype(getattr(torch, self._config.values["dtype"]))

    def _made(self, roll: Roll, agreed: Agreement | None) -> Node:
        if agreed is not None:
            _log.warning("client %d: %s", self.client, agreed.compared)
        data = at_client(self._own, self.client, roll, agreed)
        made = at_node(experiment_of(self._config, self._clients, data))
        made.evaluate = dataclasses.replace(made.evaluate, target=None)  # the server looks for it
        loop = made.build()
        if said := evaluation(self.settings.evaluate, made.rounds):
            _log.warning("client %d: %s", self.client, said)
        parts, identity = (loop.plan, with_system_draws(loop.fed), loop.net), None
        if loop.plan.aggregation.masked:
            if len(roll.sizes) != self._clients.population:
                raise DataError(
                    f"the run has {len(roll.sizes)} clients, and clients.toml here the keys of "
                    f"{self._clients.population}: a masked sum is of those whose keys are here"
                )
            identity = identity_of(self._fed, [entry.key for entry in self._clients.client])
        place = self.client, self._fed.path / "states", self._run
        return Node(
            *parts,
            *place,
            identity=identity,
            rounds=made.rounds,
            cohorts=Expected(made._cohorts, self._removed),
            agreed="" if agreed is None else agreed.digest,
            least=self.settings.least_count,
        )

    def _removed(self) -> set[int]:
        """Clients that this place's own clients.toml says are out, now. Raises ConfigError."""
        clients = read_clients(self._fed.clients_file)
        return {*range(clients.population)} - clients.members.keys()

    def _check(self, agreed: Agreement) -> None:
        """Raise DataError unless this place and all others that it knows of are among them (others
        may have been added since), for what this place's own settings leave to nobody, and for
        another agreement than the one that is kept here.
        """
        if agreed.mean and not self.settings.standardise:
            raise DataError(
                "the agreement has a common scale, and this node's federation.toml says "
                "standardise = false"
            )
        own = self._config.values["data"].get("class_names")
        if own and [*own] != agreed.class_names:
            raise DataError("the agreement has other data.class_names than this node's run.toml")
        before = read_agreement(self._fed.agreed_file)
        if before is not None and not agreed.follows(before):
            raise DataError(
                f"all agreed before round 1 ({before.digest[:16]}), and the server now says "
                f"otherwise ({agreed.digest[:16]}): only sites that were added may come to it. For "
                f"a run that begins anew this site deletes '{self._fed.agreed_file.name}'"
            )
        population = self._clients.population
        if len(agreed.examples) < population:
            raise DataError(
                f"the agreement has {len(agreed.examples)} clients, and clients.toml {population}"
            )
        there = agreed.examples[self.client]
        if there != self.examples:
            raise DataError(
                f"client {self.client} has {self.examples} training examples, and all agreed on "
                f"{there}; put the data back as they were, or begin another run"
            )

    def _check_classes(self) -> None:
        """Nobody numbers the classes anew where nodes do not join."""
        here, there = self._own.class_names, self._clients.classes
        if here and there is not None and len(here) != there:
            raise DataError(
                f"client {self.client} has the {len(here)} classes {', '.join(here[:10])}, and "
                f"clients.toml says {there}, so they would be numbered otherwise; write "
                "data.class_names into run.toml at every place"
            )

    def answer(self, raw: bytes) -> bytes:
        """A message of the server -> the answer."""
        who: dict[str, Any] = {"run": self._run, "what": "join", "round": -1}
        who["client"] = self.client
        try:
            ask, parts = opened(ASK, raw)
            who |= {"run": ask.run, "what": ask.what, "round": ask.round}
            if ask.what in ("describe", "prepare"):
                return self._described(ask, parts)
            who["run"] = self._run
            if self.waits:
                raise WireError("this node waits to be described; run `fedloom deploy describe`")
            self._permit(ask.what)
            if ask.what in ("join", "agree"):
                return self._joined(ask, parts)
            if self._node is not None:
                return self._node.answer(raw)
            raise WireError("this node has not joined yet; begin the run again")
        except (FedloomError, OSError) as error:
            why = disclosed(error, self._fed.path)
        except Exception as error:  # a node that ended here would be deaf from then on
            _log.exception("client %d: this node has failed", self.client)
            why = f"the node failed: {type(error).__name__}; its own log says why"
        return sealed(Refusal(**who, why=why), {})

    def _permit(self, what: What) -> None:
        """Raise WireError for what this site's own settings do not have it tell, whoever asks."""
        if what == "evaluate" and self.settings.evaluate != "nodes":
            raise WireError(
                f"this site measures no models: its federation.evaluate is {self.settings.evaluate}"
            )
        if what in ("join", "agree") and not must_join(self.settings, self._clients):
            raise WireError("this site joins nothing: its clients.toml and settings say all")

    def told(self) -> Description:
        """What would be told of this site's table. Raises ConfigError, DataError."""
        assert self._file is not None
        data = self._config.values["data"]
        return description_of(self._fed, self._table or {}, data, self._file)

    def _described(self, ask: Ask, parts: dict[str, bytes]) -> bytes:
        """What this site's people agreed to tell; or the preparation that all get, which is then
        kept. What is wrong with a table is said here: it may name a cell.
        """
        check_addressee(ask, described_run(self.settings.run), self.client)
        if self._file is None:
            raise WireError("this node was started without a site's file; give it --data mine.toml")
        who = ask.model_dump(include={"run", "what", "round", "client"})
        try:
            told = self.told()
            if told != agreed_to(self._fed):
                raise WireError(
                    "its people have not agreed to what would be told of its table now; they see "
                    "it, and agree, with `fedloom deploy describe` there"
                )
            if ask.what == "describe":
                parts = {"description": told.model_dump_json().encode()}
                return sealed(Told(**who, digest=digest_of(told)), parts)
            made = preparation(parts.get("preparation", b""))
            self._prepare(made, told)
        except (ConfigError, DataError) as error:
            _log.error("client %d: %s", self.client, error)
            raise WireError("its table cannot be used: its node's own output says why") from None
        return sealed(Told(**who, digest=made.digest), {})

    def _prepare(self, made: Preparation, told: Description) -> None:
        """Keep rules in run.toml, once it is known that this site's table fits them."""
        here = self._config.values["data"]
        if not here["rules"]:
            check_told(made, told)
            text = made.written(self._fed.run_file.read_text(encoding="utf-8"))
            self._loaded(prepared({"data": here}, made.rules, made.class_names)["data"])
            write(self._fed.run_file, text)
            self._config = settings_of(self._fed, self._parts, self._file)
            self._begin()
        elif made.digest != Preparation.in_table(here).digest:
            raise WireError(
                "its run.toml has other rules already; take data.rules out there to agree anew"
            )

    def _joined(self, ask: Ask, parts: dict[str, bytes]) -> bytes:
        """What is here; and if it says so what all agreed on, which is then kept."""
        check_addressee(ask, self._run, self.client)
        if ask.what == "agree":
            agreed = parsed(parts.get("agreed", b""))
            self._check(agreed)
            if agreed != read_agreement(self._fed.agreed_file) or self._node is None:
                self._node = self._made(agreed.roll, agreed)
                write(self._fed.agreed_file, agreed.model_dump_json() + "\n")
        sums = {"sums": sums_of(self._own)} if self.settings.standardise else {}
        return sealed(described(self._own, ask), sums)


def told_at(fed: Folder, file: Path) -> Description:
    """What would be told of the table of a site's file. Raises ConfigError, DataError."""
    parts, table = read_site(file)
    run = settings_of(fed, parts, file, agreed=False).values["data"]
    return description_of(fed, table or {}, run, file)


def must_join(settings: Deployment, clients: Clients) -> bool:
    """Whether nodes must say what they have before round 1."""
    return settings.evaluate != "server" or settings.standardise or not clients.known
