"""Clients by name: settings may call clients as the data do, and a run has their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedloom.errors import ConfigError, did_you_mean


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
