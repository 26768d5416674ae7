"""Clients by name, as settings call them; and clients that never train, whose rows say how good a
model is where nobody has trained it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from fedloom.core.rng import generator
from fedloom.data.client_indices import Ragged
from fedloom.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from fedloom.data.federated import FederatedData


class ClientNumbers:
    """The clients' numbers by their names. names: one for each; none if they have no names.

    >>> clients = ClientNumbers(["lyon", "bonn"], 2)
    >>> clients.of("bonn", "cohort"), clients.of(0, "cohort")
    (1, 0)
    >>> clients.values({"bonn": 2.0, "lyon": 1.0}, "weighting")
    (1.0, 2.0)
    """

    def __init__(self, names: Sequence[str], population: int) -> None:
        self.names, self.population = names, population
        self._numbers = {name: i for i, name in enumerate(names)}

    def of(self, client: int | str, setting: str) -> int:
        """The number of a client that a setting names. Raises ConfigError if there is none."""
        if client in self._numbers:
            return self._numbers[str(client)]
        if isinstance(client, str) and client.isdecimal():  # the key of a table is a text
            client = int(client)
        if isinstance(client, int):
            if 0 <= client < self.population:
                return client
            why = f"clients are numbered 0 to {self.population - 1}"
            raise ConfigError(f"{setting} names client {client}; {why}")
        if not self.names:
            raise ConfigError(
                f"{setting} names client '{client}', and these data have no names of clients; give "
                f"numbers, 0 to {self.population - 1}"
            )
        raise ConfigError(
            f"{setting} names client '{client}', and there is none of this name; "
            f"{did_you_mean(client, self.names[:100])}"
        )

    def all_of(self, clients: Sequence[int | str], setting: str) -> tuple[int, ...]:
        """The numbers of clients. Raises ConfigError for one that is named twice."""
        numbers = tuple(self.of(client, setting) for client in clients)
        if len(set(numbers)) < len(numbers):
            raise ConfigError(f"{setting} names a client twice: {list(clients)}")
        return numbers

    def values(self, by_client: Mapping[Any, Any], setting: str) -> tuple[Any, ...]:
        """{client: value} as a value for each client. Raises ConfigError if one has none."""
        numbers = self.all_of(list(by_client), setting)
        if missing := set(range(self.population)) - set(numbers):
            first = min(missing)
            raise ConfigError(
                f"{setting} names {len(by_client)} of {self.population} clients, and not "
                f"'{self.names[first] if self.names else first}'; give each client its own"
            )
        by_number = dict(zip(numbers, by_client.values(), strict=True))
        return tuple(by_number[i] for i in range(self.population))


class Unseen(NamedTuple):
    """The rows of clients that never train. names: of each; inputs (n, ...) as stored and targets
    (n, ...) of all; clients: whose each row is.
    """

    names: tuple[str, ...]
    inputs: Tensor
    targets: Tensor
    clients: Ragged


def set_apart(data: FederatedData, which: float | Sequence[int | str], seed: int) -> FederatedData:
    """The data without some clients, whose rows, of training and of tests, only measure. which: by
    name or number, or a share of all, of which at least one, drawn from the seed. Raises
    ConfigError.
    """
    count, setting = data.population, "evaluate.unseen"
    if isinstance(which, Sequence):
        unseen = [*ClientNumbers(data.client_names, count).all_of(which, setting)]
    else:
        order = torch.randperm(count, generator=generator(seed, "unseen"))
        unseen = sorted(order[: max(1, round(which * count))].tolist())
    if len(unseen) >= count:
        raise ConfigError(f"{setting} sets all {count} clients apart; one at least must train")
    if data.roll is not None:
        raise ConfigError(f"{setting} is of a simulation: in a federation no rows leave their site")
    rest = [i for i in range(count) if i not in set(unseen)]
    parts = [data.client(i) for i in unseen]
    changes: dict[str, Any] = {}
    tests, inputs, targets = data.test_clients, data.test_inputs, data.test_targets
    if tests is not None and inputs is not None and targets is not None:
        lists = [tests.of(i) for i in unseen]
        parts = [
            (torch.cat([x, inputs[rows]]), torch.cat([y, targets[rows]]))
            for (x, y), rows in zip(parts, lists, strict=True)
        ]
        remaining = tests.select(rest)
        free = torch.ones(len(inputs), dtype=torch.bool)  # all but what others alone have
        free[tests.indices] = False
        free[remaining.indices] = True
        places = (free.cumsum(0) - 1)[remaining.indices]
        changes["test_clients"] = Ragged(remaining.offsets, places)
        changes |= {"test_inputs": inputs[free], "test_targets": targets[free]}
    names = tuple(map(data.client_name, unseen))
    owned = Ragged.from_sizes(torch.tensor([len(x) for x, _ in parts]))
    x, y = (torch.cat(arrays) for arrays in zip(*parts, strict=True))
    return dataclasses.replace(
        data,
        clients=data.clients.select(rest),
        client_names=tuple(map(data.client_name, rest)),  # without names the numbers that they had
        about={**data.about, "unseen": list(names)},
        unseen=Unseen(names, x, y, owned),
        **changes,
    )
