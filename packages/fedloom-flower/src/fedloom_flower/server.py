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

from fedloom.data.own.notices import one_class
from fedloom.errors import CompositionError, ConfigError, DataError, WireError
from fedloom.experiment.experiment import Experiment
from fedloom.experiment.result import Result
from fedloom.storage import world
from fedloom.storage.atomic import append_line

from .agreement import Agreement, agree, check_sums, read_agreement
from .attendance import nobody
from .clients import Clients
from .engine import FederationEngine, oldest_checkpoint
from .folder import Deployment, Folder, evaluation, owned, write
from .membership import ChangedError, Membership
from .message import A, DeclinedError, MissingError, Site, What
from .message_exchange import Exchange, MessageExchange, ask
from .privacy import deployed
from .sites import at_server, hides, must_join, run_of, settings_of

_log = logging.getLogger(__name__)
_POLL = 0.5  # seconds


def serve(fed: Folder, exchange_of: Callable[[Clients], MessageExchange]) -> Result:
    """Run the federation of a folder, or go on with it -> the run's result, in fed.run. Raises
    FedloomError.
    """
    settings, who = fed.settings(), Membership(fed, exchange_of)
    wait(who.exchange, who.clients, settings.startup_timeout)
    join = must_join(settings, who.clients)
    who.begin(joined(fed, who.clients, who.exchange) if join else None)
    while True:
        try:
            made = experiment_at_server(fed, who.exchange, who.agreed, who)
            return made.run(fed.run, go_on=True)
        except ChangedError as change:
            _log.warning("%s", change)


def joined(fed: Folder, clients: Clients, exchange: MessageExchange) -> Agreement:
    """What all places agree on: what was agreed before, or what the nodes say now. Raises DataError
    if one does not answer, or differs, or if nodes shall measure and none has test rows.
    """
    agreed = read_agreement(fed.agreed_file)
    if agreed is None:
        found = _all_sites(fed, clients, exchange, "join", {})
        sums = [parts["sums"] for _, parts in found.values() if "sums" in parts]
        sites = {i: site for i, (site, _) in found.items()}
        agreed = agree(sites, clients.population, sums)
        for i, entry in clients.members.items():
            if entry.examples not in (None, agreed.examples[i]):
                raise DataError(
                    f"client {i} says that it has {agreed.examples[i]} training examples, and "
                    f"clients.toml {entry.examples}; ask its site, then correct that file"
                )
        if fed.settings().evaluate == "nodes" and not any(agreed.tests):
            raise DataError(
                "no site has test rows, so no node can measure the model (federation.evaluate = "
                "nodes): write data.test_share, or data.date and data.test_from, into run.toml at "
                "every place, or data.test into a site's mine.toml"
            )
        config, by = settings_of(fed), fed.settings().evaluate
        said = [one_class(clients.called(i)) for i, site in sites.items() if site.one_class]
        if by == "nobody" or (by == "nodes" and hides(config)):
            said.append(evaluation(by, config.values["rounds"]))
        write(fed.notices_file, "".join(f"{line}\n" for line in said))
        _all_sites(fed, clients, exchange, "agree", {"agreed": agreed.model_dump_json().encode()})
        write(fed.agreed_file, agreed.model_dump_json() + "\n")
    return agreed


def _all_sites(
    fed: Folder, clients: Clients, exchange: Exchange, what: What, parts: Mapping[str, bytes]
) -> dict[int, tuple[Site, dict[str, bytes]]]:
    """What every site answers. Raises DataError naming one that does not."""
    settings = fed.settings()
    run = run_of(fed, settings_of(fed))
    found = answers(settings, clients, exchange, run, what, parts, Site)
    for i, (site, blocks) in found.items() if settings.standardise else ():
        try:
            check_sums(blocks.get("sums", b""), site)
        except WireError as error:
            raise DataError(f"client {i} cannot join: {error}") from None
    return found


def answers(
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
    does, past = "be described", "been described"
    if what in ("join", "agree"):
        does, past = "join", "joined"
    found = {}
    asked = ask(exchange, run, what, clients.members, parts, settings.deadline, kind)
    for i, answer in asked.items():
        if isinstance(answer, MissingError):
            raise DataError(
                f"client {i} has not {past} within {settings.deadline:g} s; start its node, then "
                "begin again: all must be there before round 1. `fedloom deploy sites` takes one "
                "out, and adds it later"
            )
        if isinstance(answer, WireError):
            why = answer.why if isinstance(answer, DeclinedError) else answer
            raise DataError(f"client {i} cannot {does}: {why}")
        found[i] = answer
    return found


def experiment_at_server(
    fed: Folder,
    exchange: Exchange,
    agreed: Agreement | None,
    who: Membership | None = None,
) -> Experiment:
    """The run, with its engine. who: takes part now, None: all. Raises ConfigError, DataError,
    CompositionError.
    """
    settings = fed.settings()
    made, wanted = _over_selected(at_server(fed, agreed), settings.over_selection)
    _check_masked(made, settings)
    gone = frozenset[int]() if who is None else who.gone
    most = made._cohorts.largest if wanted is None else wanted
    most = min(most, made.data.population - len(gone))
    if settings.min_updates > most:
        raise ConfigError(
            f"federation.min_updates = {settings.min_updates} is more than the {most} clients of a "
            "round; take less of it, or a larger cohort"
        )
    tests: list[int] = []
    if agreed is not None and settings.evaluate == "nodes":
        tests = [0 if i in gone else count for i, count in enumerate(agreed.tests)]
    engine = FederationEngine(
        exchange,
        settings.deadline,
        run_of(fed, settings_of(fed)),
        functools.partial(oldest_checkpoint, fed.run),
        wanted,
        settings.min_updates,
        settings.max_failed_rounds,
        tests,
        redraws=settings.redraws,
        start=started(fed),
        agreed="" if agreed is None else agreed.digest,
    )

    def told(row: Mapping[str, Any]) -> None:
        _write_down(fed, engine, row, {} if who is None else who.columns())
        if who is not None and row["round"] < made.rounds:
            who.look()

    # a hostile client would end a run that stops at numbers which are not finite
    made = dataclasses.replace(made, engine=engine, on_round=told, nonfinite="skip")
    made = deployed(made, fed)  # at last: a copy of it would draw its cohorts from the seed again
    made._cohorts = dataclasses.replace(made._cohorts, gone=gone)
    return made


def started(fed: Folder) -> int:
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


def _check_masked(made: Experiment, settings: Deployment) -> None:
    """Raise CompositionError for scores that would tell what noise hides."""
    rule = made._aggregation
    if settings.evaluate == "nodes" and rule.masked and rule.private:
        raise CompositionError(
            f"{rule.name}: evaluate = nodes would release sums that have no noise; take evaluate = "
            "server or nobody"
        )


def _write_down(
    fed: Folder,
    engine: FederationEngine,
    row: Mapping[str, Any],
    more: Mapping[str, Any] | None = None,
) -> None:
    """Write who was asked in a round, who answered, and why others did not count. A round that was
    repeated after a restart has several lines, of which the last counts. more: of Membership.
    """
    found = engine.attendance.row
    if found.get("round") != row["round"]:
        found = nobody(row["round"])
    if left := set(row.get("skipped", ())) & set(found["answered"]):
        why = dict.fromkeys(
            map(str, sorted(left)), "the server was not finite with the updates of this round"
        )
        answered = [i for i in found["answered"] if i not in left]
        found = {**found, "answered": answered, "refused": found["refused"] | why}
    found = {**found, **(more or {})}
    path = fed.attendance(engine.private)
    append_line(path, json.dumps(found), owned if engine.private else None)


def _over_selected(made: Experiment, share: float) -> tuple[Experiment, int | None]:
    """The run with more clients in a cohort, and how many updates a round then takes of them.
    Raises ConfigError.
    """
    if not share:
        return made, None
    made._cohorts.check_countable("over_selection")
    wanted = made._cohorts.largest
    asked = math.ceil(wanted * (1 + share))
    if asked > made._cohorts.there:
        raise ConfigError(
            f"over_selection = {share:g} asks {asked} clients in a round, and there are "
            f"{made._cohorts.there}; take less of it, or a smaller cohort"
        )
    return dataclasses.replace(made, cohort=asked), wanted


def wait(exchange: MessageExchange, clients: Clients, seconds: float) -> None:
    """Wait for the nodes of all clients, so long at most; say who is missing."""
    end = world.monotonic() + seconds
    while clients.members.keys() - (there := exchange.present()) and world.monotonic() < end:
        world.sleep(_POLL)
    if missing := [str(i) for i in clients.members if i not in there]:
        _log.warning("begins without clients %s; they may still come", ", ".join(missing[:50]))
