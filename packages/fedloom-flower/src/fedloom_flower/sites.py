"""The run of a federation's folder at each of its places: an experiment at the server, a node at a
client, both of the same settings.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedloom.aggregation import AGGREGATIONS, NoiseFrom, Reads
from fedloom.config.resolve import Config, resolve
from fedloom.core.net import Net
from fedloom.core.strict_json import from_json
from fedloom.data import FederatedData
from fedloom.data.own.description import Description
from fedloom.data.own.preparation import PerClient
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

from .agreement import Agreement, read_agreement, site_of, sums_of
from .clients import Clients, read_clients
from .columns import (
    preparation_in,
    prepared,
    scale_in,
    unagreed,
)
from .folder import Deployment, Folder, evaluation, write
from .masked_rounds import ExpectedCohorts, identity_of
from .message import (
    ASK,
    DIGITS,
    Ask,
    Blocks,
    Refusal,
    What,
    check_addressee,
    decode,
    disclosed,
    encode,
)
from .node import Node
from .own_files import OwnFiles
from .privacy import at_node
from .site_data import at_client, data_of, load_data, read_site
from .telling import (
    Preparation,
    check_described,
    described_run,
    description_of,
    read_consent,
)

_log = logging.getLogger(__name__)


def settings_of(
    fed: Folder, parts: Sequence[Path] = (), site: Path | None = None, rules: bool = True
) -> Config:
    """The settings of the run, which every place computes in the same way. parts: the files of own
    parts that a node's site file `site` names; rules: those of a table's columns must be agreed.
    Raises ConfigError.
    """
    if not fed.run_file.is_file():
        raise ConfigError(f"'{fed.path}' has no run.toml; copy the folder from where it was made")
    config = resolve(fed.run_file, ["engine=serial"], OwnFiles(fed, parts, site))
    refuse_settings(config, rules)
    refuse_disclosure(config, fed.settings())
    return config


def run_of(fed: Folder, config: Config) -> str:
    """The run in every message: its name, and a hash of the settings that decide its numbers. Of
    those of data, of which each site has its own, it has the rules of columns alone.
    """
    data = config.values["data"]
    settings = {k: v for k, v in fixed_parts(config.values).items() if k != "data"}
    if data.get("rules"):
        settings |= {"rules": data["rules"], "class_names": data["class_names"]}
    settings |= scale_in(data)
    return f"{fed.settings().run}@{digest(settings, DIGITS)}"


def refuse_disclosure(config: Config, settings: Deployment) -> None:
    """Raise CompositionError for settings that would tell what noise or masks hide, or that need
    single updates.
    """
    if why := next(_disclosures(config.values, settings), ""):
        raise CompositionError(why)


def _disclosures(values: Mapping[str, Any], settings: Deployment) -> Iterator[str]:
    aggregation, every = values.get("aggregation", {}), values["checkpoint"].get("every_rounds")
    if settings.standardise and "dp" in values["local"]:
        yield (
            "local.dp: standardise = true would tell sums of the examples that have no noise; take "
            "standardise = false"
        )
    if aggregation.get("secure"):
        setting = "aggregation.secure = true"
        if every != 1:
            yield (
                f"{setting} needs checkpoint.every_rounds = 1 in a deployment: a node unmasks a "
                "round once, and refuses it when an older checkpoint does it again"
            )
        if settings.standardise:
            yield (
                f"{setting}: standardise = true would send sums of each site's features without "
                "masks; take standardise = false, and rules of columns"
            )
        if settings.over_selection:
            yield (
                f"{setting}: over_selection = {settings.over_selection:g} takes some of the "
                "updates, and a masked sum is of all that came; take over_selection = 0, and a "
                "smaller threshold"
            )
    kind = AGGREGATIONS[aggregation["name"]] if aggregation else None
    if not _has_noise(kind):
        return
    if settings.evaluate == "nodes" or settings.standardise:
        yield (
            "private aggregation: evaluate = nodes and standardise = true would release sums that "
            "have no noise; take evaluate = server or nobody, and standardise = false"
        )
    if getattr(kind, "reads", None) is Reads.RING:  # the clients add the noise
        return
    if values["sampling"] != "poisson":
        yield (
            f"sampling = {values['sampling']}: the accounts of privacy hold for sampling = poisson"
        )
    if every != 1:
        yield (
            "private aggregation needs checkpoint.every_rounds = 1 in a deployment: a repeated "
            "round has other noise, and would have to be paid twice"
        )
    if settings.min_updates > 1:
        yield (
            f"private aggregation: federation.min_updates = {settings.min_updates} would let one "
            "client decide whether the others' updates count; take min_updates = 1"
        )


def _has_noise(kind: object) -> bool:
    """Whether an aggregation, or its class, hides each client by noise."""
    return getattr(kind, "noise_from", NoiseFrom.NOTHING) is not NoiseFrom.NOTHING


def hides(config: Config) -> bool:
    """Whether a run hides single updates or examples, of which scores of nodes would tell."""
    aggregation = config.values.get("aggregation", {})
    private = bool(aggregation) and _has_noise(AGGREGATIONS[aggregation["name"]])
    return private or bool(aggregation.get("secure")) or "dp" in config.values["local"]


def refuse_settings(config: Config, rules: bool = True) -> None:
    """Raise CompositionError for settings that need all data in one place. rules: those of a
    table's columns must be agreed.
    """
    if rules and (why := unagreed(config.values["data"])):
        raise CompositionError(why)
    fraction = config.values["evaluate"]["validation"]
    if fraction:
        raise CompositionError(
            f"evaluate.validation = {fraction:g} cannot be deployed: it would hold out samples of "
            "clients whose data are elsewhere; take evaluate.validation = 0"
        )


def experiment_of(config: Config, data: FederatedData, by_nodes: bool = False) -> Experiment:
    """The run on what is known of the data at one place. by_nodes: they measure models."""
    experiment = config.experiment(data)
    if experiment.evaluate.clients and data.test_clients is None and not by_nodes:
        experiment.evaluate = dataclasses.replace(experiment.evaluate, clients=False)
    return experiment


# ------------------------------------------------------------------------------------ at the server
def at_server(fed: Folder, agreement: Agreement) -> Experiment:
    """The run at the server. Raises ConfigError, DataError, CompositionError."""
    config, clients = settings_of(fed), read_clients(fed.clients_file)
    label = f"{config.values['label']}, deployed"  # beside its simulation, not one run with it
    config = Config({**config.values, "label": label}, config.origin)
    if (evaluate := fed.settings().evaluate) == "server":
        data = agreement.at_server(_of_server(config))
    else:
        data = agreement.stand_in(preparation_in(config), tested=evaluate == "nodes")
    if any(entry.name for entry in clients.client):
        names = tuple(map(clients.label, range(clients.population)))
        data = dataclasses.replace(data, client_names=names[: data.population])
    experiment = experiment_of(config, data, evaluate == "nodes")
    _refuse_data_dependent(experiment.net(), experiment)
    return experiment


def _of_server(config: Config) -> FederatedData:
    """Data of the server's own. Raises DataError."""
    try:
        return config.data()
    except DataError as error:
        raise DataError(
            f"{error}; a server without rows takes evaluate = nobody in federation.toml, or nodes "
            "at every place"
        ) from error


def _refuse_data_dependent(net: Net, experiment: Experiment) -> None:
    """Raise CompositionError for what the server would need the clients' data for."""
    submodel = experiment.submodel
    if submodel is not None and submodel.rows(net) is not None:
        raise CompositionError(
            f"{submodel.name} averages a class's row over the clients that have the class, which "
            "the server does not know; take submodel.owners = false"
        )
    if keeps_no_statistics(net.module) and experiment.evaluate.statistics == "static":
        raise CompositionError(
            "evaluate.statistics = static gathers statistics over the clients' data, which are "
            "elsewhere; take evaluate.statistics = batch"
        )


# ------------------------------------------------------------------------------------- at a client
class ClientSite:
    """A client's place: its data, and as soon as all have agreed its node. data: the site's file,
    which says where its data are and names its own parts; without data it has its part of the data
    of the settings, to try a federation. Raises ConfigError, DataError, CompositionError.
    """

    def __init__(self, fed: Folder, data: Path | None = None) -> None:
        assert fed.client is not None
        self._fed, self._site_file, self._clients = fed, data, read_clients(fed.clients_file)
        self._parts, self._table = ([], None) if data is None else read_site(data)
        self.client, self.settings = fed.client, fed.settings()
        if self.client >= self._clients.population:
            raise ConfigError(
                f"there is no client {self.client}: clients.toml has clients 0 to "
                f"{self._clients.population - 1}"
            )
        self._data: FederatedData  # as soon as it is known what a column becomes
        self._node: Node | None = None
        self._config = settings_of(fed, self._parts, data, rules=False)
        self._run = run_of(fed, self._config)
        if not self.missing_rules:
            self._begin()
        elif self._table is None:
            raise CompositionError(self.missing_rules)
        else:
            self.describe()  # it can be described

    @property
    def missing_rules(self) -> str:
        """Why this place can only be described yet; empty if it can do more."""
        return unagreed(self._config.values["data"])

    @property
    def key_made_here(self) -> bool:
        """Whether this site's key was made beside the server's."""
        return self._clients.client[self.client].key_made_here

    @property
    def examples(self) -> int:
        """How many training examples are here."""
        return len(self._data.inputs)

    def _begin(self) -> None:
        """Load the data, and make the node if all is agreed."""
        self._run = run_of(self._fed, self._config)
        self._data, self._node = self._load_data(self._config.values["data"]), None
        if self._site_file is not None and isinstance(raw := self._data.raw, PerClient):
            text = json.dumps(raw.numbers(""), indent=1)  # for predictions here; nobody gets it
            write(self._fed.path / "preparation.json", text + "\n")
        agreement = read_agreement(self._fed.agreement_file)
        if agreement is not None:
            self._check_agreement(agreement)
            self._node = self._make_node(agreement)

    def _load_data(self, run: Mapping[str, Any]) -> FederatedData:
        """This place's own data. run: the table [data] of run.toml."""
        if self._site_file is None or self._table is None:
            return data_of(self._config.data(), self.client)
        data = load_data(self._table, self._site_file, run)
        return data.astype(getattr(torch, self._config.values["dtype"]))

    def _make_node(self, agreement: Agreement) -> Node:
        _log.warning("client %d: %s", self.client, agreement.digest_line)
        data = at_client(self._data, self.client, agreement)
        experiment = at_node(experiment_of(self._config, data))
        experiment.evaluate = dataclasses.replace(experiment.evaluate, target=None)  # the server's
        loop = experiment.build()
        if notice := evaluation(self.settings.evaluate, experiment.rounds):
            _log.warning("client %d: %s", self.client, notice)
        parts, identity = (loop.plan, loop.fed, loop.net), None
        if loop.plan.aggregation.masked:
            count, keys = len(agreement.examples), self._clients.population
            if count != keys:
                raise DataError(
                    f"the run has {count} clients, and clients.toml here the keys of {keys}: a "
                    "masked sum is of those whose keys are here"
                )
            identity = identity_of(self._fed, [entry.key for entry in self._clients.client])
        arguments = self.client, self._fed.path / "states", self._run
        return Node(
            *parts,
            *arguments,
            identity=identity,
            rounds=experiment.rounds,
            cohorts=ExpectedCohorts(experiment._cohorts, self._removed),
            agreement=agreement.digest,
            least=self.settings.least_count,
        )

    def _removed(self) -> set[int]:
        """Clients that this place's own clients.toml says are out, now. Raises ConfigError."""
        clients = read_clients(self._fed.clients_file)
        return {*range(clients.population)} - clients.members.keys()

    def _check_agreement(self, agreement: Agreement) -> None:
        """Raise DataError unless this place and all others that it knows of are among them (others
        may have been added since), for what this place's own settings leave to nobody, and for
        another agreement than the one that is kept here.
        """
        if agreement.mean and not self.settings.standardise:
            raise DataError(
                "the agreement has a common scale, and this node's federation.toml says "
                "standardise = false"
            )
        names = self._data.class_names
        if bool(names) != bool(agreement.class_names) or {*names} - {*agreement.class_names}:
            raise DataError(
                f"client {self.client} has the classes {', '.join(names[:10]) or '0, 1, ...'}, and "
                f"all agreed on {', '.join(agreement.class_names[:10]) or '0, 1, ...'}, so they "
                "would be numbered otherwise; write data.class_names into run.toml at every place"
            )
        class_names = self._config.values["data"].get("class_names")
        if class_names and [*class_names] != agreement.class_names:
            raise DataError("the agreement has other data.class_names than this node's run.toml")
        previous = read_agreement(self._fed.agreement_file)
        if previous is not None and not agreement.follows(previous):
            raise DataError(
                f"all agreed before round 1 ({previous.digest[:16]}), and the server now says "
                f"otherwise ({agreement.digest[:16]}): only sites that were added may come to it. "
                f"For a run that begins anew this site deletes '{self._fed.agreement_file.name}'"
            )
        population = self._clients.population
        if len(agreement.examples) < population:
            raise DataError(
                f"the agreement has {len(agreement.examples)} clients, and clients.toml "
                f"{population}"
            )
        examples = agreement.examples[self.client]
        if examples != self.examples:
            raise DataError(
                f"client {self.client} has {self.examples} training examples, and all agreed on "
                f"{examples}; put the data back as they were, or begin another run"
            )

    def answer(self, raw: bytes) -> bytes:
        """A message of the server -> the answer."""
        header: dict[str, Any] = {"run": self._run, "what": "join", "round": -1}
        header["client"] = self.client
        try:
            ask, parts = decode(ASK, raw)
            header |= {"run": ask.run, "what": ask.what, "round": ask.round}
            if ask.what in ("describe", "prepare"):
                return self._answer_describe(ask, parts)
            header["run"] = self._run
            if self.missing_rules:
                raise WireError("this node waits to be described; run `fedloom deploy describe`")
            self._permit(ask.what)
            if ask.what in ("join", "agree"):
                return self._answer_join(ask, parts)
            if self._node is not None:
                return self._node.answer(raw)
            raise WireError("this node has not joined yet; begin the run again")
        except (FedloomError, OSError) as error:
            why = disclosed(error, self._fed.path)
        except Exception as error:  # a node that ended here would be deaf from then on
            _log.exception("client %d: this node has failed", self.client)
            why = f"the node failed: {type(error).__name__}; its own log says why"
        return encode(Refusal(**header, why=why), {})

    def _permit(self, what: What) -> None:
        """Raise WireError for what this site's own settings do not have it tell, whoever asks."""
        if what == "evaluate" and self.settings.evaluate != "nodes":
            raise WireError(
                f"this site measures no models: its federation.evaluate is {self.settings.evaluate}"
            )
        joined = self._node is not None and not must_join(self.settings, self._clients)
        if what in ("join", "agree") and joined:
            raise WireError("this site joins nothing: its clients.toml and settings say all")

    def describe(self) -> Description:
        """What would be told of this site's table. Raises ConfigError, DataError."""
        assert self._site_file is not None
        data = self._config.values["data"]
        return description_of(self._fed, self._table or {}, data, self._site_file)

    def _answer_describe(self, ask: Ask, parts: dict[str, bytes]) -> bytes:
        """What this site's people agreed to tell; or the preparation that all get, which is then
        kept. What is wrong with a table is said here: it may name a cell.
        """
        check_addressee(ask, described_run(self.settings.run), self.client)
        if self._site_file is None:
            raise WireError("this node was started without a site's file; give it --data mine.toml")
        try:
            description = self.describe()
            if description != read_consent(self._fed):
                raise WireError(
                    "its people have not agreed to what would be told of its table now; they see "
                    "it, and agree, with `fedloom deploy describe` there"
                )
            if ask.what == "describe":
                parts = {"description": description.model_dump_json().encode()}
                return encode(Blocks(**ask.about), parts)
            preparation = from_json(Preparation, parts.get("preparation", b""), "preparation")
            self._prepare(preparation, description)
        except (ConfigError, DataError) as error:
            _log.error("client %d: %s", self.client, error)
            raise WireError("its table cannot be used: its node's own output says why") from None
        return encode(Blocks(**ask.about), {})

    def _prepare(self, preparation: Preparation, description: Description) -> None:
        """Keep rules in run.toml, once it is known that this site's table fits them."""
        data = self._config.values["data"]
        if not data["rules"]:
            check_described(preparation, description)
            text = preparation.add_to(self._fed.run_file.read_text(encoding="utf-8"))
            self._load_data(
                prepared({"data": data}, preparation.rules, preparation.class_names)["data"]
            )
            write(self._fed.run_file, text)
            self._config = settings_of(self._fed, self._parts, self._site_file)
            self._begin()
        elif preparation.digest != Preparation.in_table(data).digest:
            raise WireError(
                "its run.toml has other rules already; take data.rules out there to agree anew"
            )

    def _answer_join(self, ask: Ask, parts: dict[str, bytes]) -> bytes:
        """What is here; and if it says so what all agreed on, which is then kept."""
        check_addressee(ask, self._run, self.client)
        if ask.what == "agree":
            agreement = from_json(Agreement, parts.get("agreed", b""), "agreement")
            self._check_agreement(agreement)
            if agreement != read_agreement(self._fed.agreement_file) or self._node is None:
                self._node = self._make_node(agreement)
                write(self._fed.agreement_file, agreement.model_dump_json() + "\n")
        sums = {"sums": sums_of(self._data)} if self.settings.standardise else {}
        return encode(site_of(self._data, ask), sums)


def describe_site(fed: Folder, file: Path) -> Description:
    """What would be told of the table of a site's file. Raises ConfigError, DataError."""
    parts, table = read_site(file)
    run = settings_of(fed, parts, file, rules=False).values["data"]
    return description_of(fed, table or {}, run, file)


def must_join(settings: Deployment, clients: Clients) -> bool:
    """Whether settings have nodes say what they have before round 1."""
    return settings.evaluate != "server" or settings.standardise or not clients.sizes_known
