"""A federation's server: the usual run, with an engine whose clients are elsewhere."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ..errors import ConfigError
from ..experiment.experiment import Experiment
from ..experiment.result import Result
from .engine import FederationEngine, oldest_checkpoint
from .folder import Deployment, Folder
from .roll import Clients, read_roll
from .sites import at_server

_log = logging.getLogger(__name__)
_POLL = 0.5  # seconds


class Carrier(Protocol):
    """What carries messages to clients, and answers back."""

    def present(self) -> Mapping[int, Any]:
        """The clients that are connected."""

    def __call__(self, messages: dict[int, bytes], seconds: float, enough: int) -> dict[int, bytes]:
        """See engine.Exchange."""


def serve(fed: Folder, carrier_of: Callable[[Clients], Carrier]) -> Result:
    """Run the federation of a folder, or go on with it -> the run's result, in fed.run. Raises
    FedloomError.
    """
    settings, roll = fed.settings(), read_roll(fed.roll_file)
    carrier = carrier_of(roll)
    made = experiment_at_server(fed, settings, carrier)
    wait(carrier, roll, settings.join)
    return made.run(fed.run, go_on=True)


def experiment_at_server(fed: Folder, settings: Deployment, exchange: Any) -> Experiment:
    """The run, with its engine."""
    made, wanted = _with_spare(at_server(fed), settings.spare)
    engine = FederationEngine(
        exchange,
        settings.deadline,
        settings.run,
        functools.partial(oldest_checkpoint, fed.run),
        wanted,
        settings.at_least,
        settings.patience,
    )
    return dataclasses.replace(made, engine=engine, on_round=lambda row: _write_down(fed, engine))


def _write_down(fed: Folder, engine: FederationEngine) -> None:
    """Write who was asked in a round, who answered, and why others did not count. A round that was
    repeated has several lines, of which the last counts.
    """
    with open(fed.run / "clients.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(engine.last) + "\n")


def _with_spare(made: Experiment, spare: float) -> tuple[Experiment, int | None]:
    """The run with more clients in a cohort, and how many updates a round then takes of them.
    Raises ConfigError.
    """
    if not spare:
        return made, None
    made._cohorts.check_countable()
    wanted = made._cohorts.largest
    asked = math.ceil(wanted * (1 + spare))
    if asked > made._cohorts.there:
        raise ConfigError(
            f"spare = {spare:g} asks {asked} clients in a round, and there are "
            f"{made._cohorts.there}; take less of it, or a smaller cohort"
        )
    return dataclasses.replace(made, cohort=asked), wanted


def wait(carrier: Carrier, roll: Clients, seconds: float) -> None:
    """Wait for the nodes of all clients, so long at most; say who is missing."""
    end = time.monotonic() + seconds
    while len(there := carrier.present()) < roll.population and time.monotonic() < end:
        time.sleep(_POLL)
    if missing := [str(i) for i in range(roll.population) if i not in there]:
        _log.warning("begins without clients %s; they may still come", ", ".join(missing[:50]))
