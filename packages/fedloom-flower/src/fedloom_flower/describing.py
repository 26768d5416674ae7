"""At the server: what all sites tell of their tables, and the preparation that is made of it."""

from __future__ import annotations

import json
from collections.abc import Callable

from fedloom.core.validation import live
from fedloom.data.own.description import Description, parsed
from fedloom.errors import CompositionError, DataError, WireError
from fedloom.storage.atomic import reason

from .agreed_rules import agreed_rules
from .clients import Clients, read_clients
from .folder import Folder, write
from .message import Blocks
from .message_exchange import MessageExchange
from .server import ask_sites, wait
from .sites import settings_of
from .telling import Preparation, described_run


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
            if descriptions[name].duplicates is not None:
                raise WireError("a site cannot tell of rows that others have")
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
