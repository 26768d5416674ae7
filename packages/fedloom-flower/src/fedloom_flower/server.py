"""A federation's server: the usual run, with an engine whose clients are elsewhere."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from fedloom.core.validation import live
from fedloom.data.own.description import Description, parsed
from fedloom.errors import CompositionError, ConfigError, DataError, WireError
from fedloom.experiment.experiment import Experiment
from fedloom.experiment.result import Result
from fedloom.storage import world
from fedloom.storage.atomic import append_line, reason

from .agreed_rules import agreed_rules
from .agreement import Agreement, agree, read_agreement
from .attendance import nobody
from .clients import Clients, read_clients
from .engine import FederationEngine, oldest_checkpoint
from .folder import Deployment, Folder, owned, write
from .membership import ChangedError, Membership
from .message import A, Blocks, DeclinedError, MissingError, Site, What
from .message_exchange import Exchange, MessageExchange, ask
from .privacy import deployed
from .sites import at_server, run_of, settings_of
from .telling import Preparation, described_run

_log = logging.getLogger(__name__)
_POLL = 0.5  # seconds


def serve(fed: Folder, exchange_of: Callable[[Clients], MessageExchange]) -> Result:
    """Run the federation of a folder, or go on with it -> the run's result, in fed.run. Raises
    FedloomError.
    """
    settings, members = fed.settings(), Membership(fed, exchange_of)
    wait(members.exchange, members.clients, settings.startup_timeout)
    members.begin(join_sites(fed, members.clients, members.exchange))
    while True:
        try:
            experiment = experiment_at_server(fed, members)
            return experiment.run(fed.run, go_on=True)
        except ChangedError as change:
            _log.warning("%s", change)


def join_sites(fed: Folder, clients: Clients, exchange: MessageExchange) -> Agreement:
    """What all places agree on: what was agreed before, or what the nodes say now. Raises DataError
    if one does not answer, or differs, or if nodes shall measure and none has test rows.
    """
    if (before := read_agreement(fed.agreement_file)) is not None:
        _check_registry(clients, before)
        return before
    settings, run = fed.settings(), run_of(fed, settings_of(fed))
    answers = ask_sites(settings, clients, exchange, run, "join", {}, Site)
    sites = {i: site for i, (site, _) in answers.items()}
    sums = {i: parts.get("sums", b"") for i, (_, parts) in answers.items() if settings.standardise}
    agreement = agree(sites, clients.population, sums)
    _check_registry(clients, agreement)
    if settings.evaluate == "nodes" and not any(agreement.tests):
        raise DataError(
            "no site has test rows, so no node can measure the model (federation.evaluate = "
            "nodes): write data.test_share, or data.date and data.test_from, into run.toml at "
            "every place, or data.test into a site's mine.toml"
        )
    parts = {"agreed": agreement.model_dump_json().encode()}
    ask_sites(settings, clients, exchange, run, "agree", parts, Site)
    write(fed.agreement_file, agreement.model_dump_json() + "\n")
    return agreement


def _check_registry(clients: Clients, agreement: Agreement) -> None:
    """Raise DataError for a client with another number of examples than the registry has."""
    for i, count in enumerate(agreement.examples):
        if count and clients.client[i].examples not in (None, count):
            raise DataError(
                f"client {i} says that it has {count} training examples, and clients.toml "
                f"{clients.client[i].examples}; ask its site, then correct that file"
            )


def ask_sites(
    settings: Deployment,
    clients: Clients,
    exchange: Exchange,
    run: str,
    what: What,
    parts: Mapping[str, bytes],
    kind: type[A],
) -> dict[int, tuple[A, dict[str, bytes]]]:
    """What every site answers before round 1, by number. Raises DataError naming one that does not,
    or refuses.
    """
    verb, participle = "be described", "been described"
    if what in ("join", "agree"):
        verb, participle = "join", "joined"
    answers = {}
    replies = ask(exchange, run, what, clients.members, parts, settings.deadline, kind)
    for i, answer in replies.items():
        if isinstance(answer, MissingError):
            raise DataError(
                f"client {i} has not {participle} within {settings.deadline:g} s; start its node, "
                "then begin again: all must be there before round 1. `fedloom deploy sites` takes "
                "one out, and adds it later"
            )
        if isinstance(answer, WireError):
            why = answer.why if isinstance(answer, DeclinedError) else answer
            raise DataError(f"client {i} cannot {verb}: {why}")
        answers[i] = answer
    return answers


def describe(fed: Folder, exchange_of: Callable[[Clients], MessageExchange]) -> None:
    """Ask all sites what their tables are like, and write it down. If no rules are agreed yet, make
    them of it, and write them into run.toml at every place. Raises FedloomError.
    """
    settings, clients = fed.settings(), read_clients(fed.clients_file)
    data = live(settings_of(fed, rules=False).values["data"])
    if data["name"] != "table":
        raise CompositionError(
            f"data '{data['name']}' cannot be described: only a table has columns; begin with "
            "`fedloom deploy run`"
        )
    exchange, run = exchange_of(clients), described_run(settings.run)
    wait(exchange, clients, settings.startup_timeout)
    descriptions: dict[str, Description] = {}
    answers = ask_sites(settings, clients, exchange, run, "describe", {}, Blocks)
    for i, (_, blocks) in answers.items():
        entry = clients.client[i]
        try:
            name = f"client {i}" if entry.name in ("", *descriptions) else entry.name
            descriptions[name] = parsed(blocks.get("description", b""))
        except WireError as error:
            raise DataError(f"client {i} cannot be described: {error}") from None
    if not data["rules"]:
        rules, classes = agreed_rules(descriptions, data)
        preparation = Preparation(rules=[dict(rule) for rule in rules], class_names=classes)
        text = preparation.add_to(fed.run_file.read_text(encoding="utf-8"))
        parts = {"preparation": preparation.model_dump_json().encode()}
        ask_sites(settings, clients, exchange, run, "prepare", parts, Blocks)
        write(fed.run_file, text)
    sites = {name: site.model_dump() for name, site in descriptions.items()}
    write(fed.description_file, json.dumps(sites, indent=1) + "\n")


def descriptions(fed: Folder) -> dict[str, Description]:
    """What all sites told, by their names. Raises DataError."""
    try:
        content = json.loads(fed.description_file.read_text(encoding="utf-8"))
        return {name: parsed(json.dumps(site).encode()) for name, site in content.items()}
    except OSError as error:
        raise DataError(f"'{fed.description_file}' cannot be read: {reason(error)}") from None
    except (ValueError, AttributeError, WireError) as error:
        raise DataError(
            f"'{fed.description_file}' is damaged: {error}; describe the sites again"
        ) from None


def experiment_at_server(fed: Folder, members: Membership) -> Experiment:
    """The run of those who take part now, with its engine. Raises ConfigError, DataError,
    CompositionError.
    """
    settings, agreement, absent = fed.settings(), members.agreement, members.absent
    experiment, updates = _with_spares(at_server(fed, agreement), settings.over_selection)
    most = experiment._cohorts.largest if updates is None else updates
    most = min(most, experiment.data.population - len(absent))
    if settings.min_updates > most:
        raise ConfigError(
            f"federation.min_updates = {settings.min_updates} is more than the {most} clients of a "
            "round; take less of it, or a larger cohort"
        )
    tests: list[int] = []
    if settings.evaluate == "nodes":
        tests = [0 if i in absent else count for i, count in enumerate(agreement.tests)]
    engine = FederationEngine(
        members.exchange,
        settings.deadline,
        run_of(fed, settings_of(fed)),
        functools.partial(oldest_checkpoint, fed.run),
        updates,
        settings.min_updates,
        settings.max_failed_rounds,
        tests,
        redraws=settings.redraws,
        start=next_start(fed),
        agreement=agreement.digest,
    )

    def on_round(row: Mapping[str, Any]) -> None:
        _write_down(fed, engine, row, members.columns())
        if row["round"] < experiment.rounds:
            members.look()

    # a hostile client would end a run that stops at numbers which are not finite
    experiment = dataclasses.replace(experiment, engine=engine, on_round=on_round, nonfinite="skip")
    experiment = deployed(experiment, fed)  # last: a copy would draw its cohorts from the seed
    experiment._cohorts = dataclasses.replace(experiment._cohorts, absent=absent)
    return experiment


def next_start(fed: Folder) -> int:
    """The number of a start, above those of all before: the clock's seconds, so that a folder may
    be put back from a backup, and one more than the last one's where a clock was put back. Raises
    ConfigError.
    """
    last = 0
    with contextlib.suppress(OSError, ValueError):
        last = int(fed.starts_file.read_text(encoding="utf-8"))
    start = max(last + 1, int(world.clock()))
    write(fed.starts_file, f"{start}\n")
    return start


def _write_down(
    fed: Folder,
    engine: FederationEngine,
    row: Mapping[str, Any],
    columns: Mapping[str, Any],
) -> None:
    """Write who was asked in a round, who answered, and why others did not count. A round that was
    repeated after a restart has several lines, of which the last counts. columns: of Membership.
    """
    line = engine.attendance.row
    if line.get("round") != row["round"]:
        line = nobody(row["round"])
    if left := set(row.get("skipped", ())) & set(line["answered"]):
        why = dict.fromkeys(
            map(str, sorted(left)), "the server was not finite with the updates of this round"
        )
        answered = [i for i in line["answered"] if i not in left]
        line = {**line, "answered": answered, "refused": line["refused"] | why}
    line = {**line, **columns}
    path = fed.attendance(engine.private)
    append_line(path, json.dumps(line), owned if engine.private else None)


def _with_spares(experiment: Experiment, fraction: float) -> tuple[Experiment, int | None]:
    """The run with more clients in a cohort, and how many updates a round then takes of them.
    Raises ConfigError.
    """
    if not fraction:
        return experiment, None
    experiment._cohorts.check_countable("over_selection")
    updates = experiment._cohorts.largest
    cohort = math.ceil(updates * (1 + fraction))
    if cohort > experiment._cohorts.active:
        raise ConfigError(
            f"over_selection = {fraction:g} asks {cohort} clients in a round, and there are "
            f"{experiment._cohorts.active}; take less of it, or a smaller cohort"
        )
    return dataclasses.replace(experiment, cohort=cohort), updates


def wait(exchange: MessageExchange, clients: Clients, seconds: float) -> None:
    """Wait for the nodes of all clients, so long at most; say who is missing."""
    end = world.monotonic() + seconds
    while clients.members.keys() - (present := exchange.present()) and world.monotonic() < end:
        world.sleep(_POLL)
    if missing := [str(i) for i in clients.members if i not in present]:
        _log.warning("begins without clients %s; they may still come", ", ".join(missing[:50]))
