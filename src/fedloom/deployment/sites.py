"""The run of a federation's folder at each of its places: an experiment at the server, a node at a
client, both of the same settings.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ..config.resolve import Config, resolve
from ..data import FederatedData
from ..errors import CompositionError, ConfigError
from ..experiment.experiment import Experiment
from .folder import Folder
from .node import Node
from .roll import Clients, read_roll


def settings_of(fed: Folder) -> Config:
    """The settings of the run, which every place computes in the same way. Raises ConfigError."""
    if not fed.run_file.is_file():
        raise ConfigError(f"'{fed.path}' has no run.toml; copy the folder from where it was made")
    config = resolve(fed.run_file, ["engine=serial"])
    refuse_settings(config)
    return config


def refuse_settings(config: Config) -> None:
    """Raise CompositionError for settings that need all data in one place."""
    share = config.values["evaluate"]["validation"]
    if share:
        raise CompositionError(
            f"evaluate.validation = {share:g} cannot be deployed: it would hold out samples of "
            "clients whose data are elsewhere; take evaluate.validation = 0"
        )


def at_server(fed: Folder) -> Experiment:
    """The run at the server. Raises ConfigError, DataError, CompositionError."""
    config, roll = settings_of(fed), read_roll(fed.roll_file)
    return experiment_of(config, roll, config.data().elsewhere(roll.as_data()))


def at_node(fed: Folder, data: FederatedData | None = None) -> Node:
    """The half of the folder's client. data: its own; None: its part of the data of the settings,
    to try a federation. Raises ConfigError, DataError, CompositionError.
    """
    client, config, roll = fed.client, settings_of(fed), read_roll(fed.roll_file)
    assert client is not None
    if client >= roll.population:
        raise ConfigError(
            f"there is no client {client}: the roll has clients 0 to {roll.population - 1}"
        )
    if data is None:
        data = config.data().only(client, tests=True)
    data = dataclasses.replace(data, roll=roll.as_data())
    loop = experiment_of(config, roll, data).build()
    run = fed.settings().run
    return Node(loop.plan, loop.fed, loop.net, client, states_folder(fed), run)


def states_folder(fed: Folder) -> Path:
    """Where a node keeps its client states."""
    return fed.path / "states"


def experiment_of(config: Config, roll: Clients, data: FederatedData) -> Experiment:
    """The run on what is known of the data at one place."""
    made = config.experiment(data)
    capacities = roll.capacities()
    if capacities is not None:
        made.capacities = capacities
    if made.evaluate.clients and data.test_clients is None:
        made.evaluate = dataclasses.replace(made.evaluate, clients=False)
    return made
