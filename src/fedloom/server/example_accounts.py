"""What local.dp has cost each client so far, and who may still take part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ..engines.client_results import ClientCost
from ..errors import ConfigError
from ..federation.federation import Federation
from ..federation.private_examples import ExamplePrivacy

_EVER = 10**9  # rounds


class ExampleAccounts:
    """What rounds of training cost; `rounds` is in how many each client has trained so far. No
    amplification by the draw of clients is claimed. Raises ConfigError if the budget allows nobody
    a round, and without dp-accounting.
    """

    def __init__(self, fed: Federation, dp: ExamplePrivacy) -> None:
        self._fed, self._dp = fed, dp
        self._allowed: dict[tuple[float, int], int] = {}
        self._spent(0, 1)  # what is missing is missed now
        if self.over({}):
            least = min(self._spent(i, 1) for i in range(fed.population))
            raise ConfigError(
                f"local.dp.max_epsilon = {dp.max_epsilon:g} is less than the {least:.3g} that one "
                "round costs; take more local.dp.noise, fewer steps, or a smaller batch"
            )

    def _work(self, client: int) -> tuple[float, int]:
        """The share q of a client's batches, and the steps of its round."""
        return self._fed.example_share(client), self._fed.steps(client)

    def _spent(self, client: int, rounds: int) -> float:
        fraction, steps = self._work(client)
        return self._dp.epsilon(fraction, steps * rounds)

    def allowed(self, client: int) -> int:
        """How many rounds the budget allows a client."""
        work = self._work(client)
        if work not in self._allowed:
            self._allowed[work] = self._dp.rounds_within(*work, _EVER)
        return self._allowed[work]

    def may(self, client: int, rounds: Mapping[int, int]) -> bool:
        """Whether the budget allows a client one more round."""
        return rounds.get(client, 0) < self.allowed(client)

    def left(self, clients: Iterable[int], rounds: Mapping[int, int]) -> list[int]:
        """Those of some clients that may take part."""
        return [i for i in clients if self.may(i, rounds)]

    def over(self, rounds: Mapping[int, int]) -> bool:
        """Whether nobody may take part any more."""
        return not any(self.may(i, rounds) for i in range(self._fed.population))

    # ------------------------------------------------------------------------------- what is told
    def worst(self, rounds: Mapping[int, int]) -> tuple[float, int]:
        """The largest epsilon after so many rounds of some clients, and whose it is; -1: nobody's.
        A client with fewer steps and a smaller share than another one need not be asked.
        """
        worst, most = (0.0, -1), 0
        works = [(*self._work(i), i) for i in rounds]
        for fraction, steps, i in sorted(works, key=lambda w: (-w[0], -w[1] * rounds[w[2]])):
            if steps * rounds[i] > most:
                most = steps * rounds[i]
                worst = max(worst, (self._dp.epsilon(fraction, most), i))
        return worst

    def columns(self, rounds: Mapping[int, int]) -> dict[str, Any]:
        """Of a round's row: the largest epsilon of a client, and how many have no budget left."""
        columns: dict[str, Any] = {"example_epsilon": self.worst(rounds)[0]}
        if self._dp.max_epsilon is not None:
            columns["spent_clients"] = sum(not self.may(i, rounds) for i in rounds)
        return columns

    def summary(self, rounds: Mapping[int, int]) -> dict[str, Any]:
        """Of the run's summary."""
        return {**self.columns(rounds), "example_delta": self._dp.delta}

    def values(self, rounds: Mapping[int, int]) -> list[float]:
        """The epsilon of every client."""
        return [self._spent(i, rounds.get(i, 0)) for i in range(self._fed.population)]


def count_rounds(rounds: Mapping[int, int], stats: Iterable[ClientCost]) -> dict[int, int]:
    """`rounds` after one more, of those that have trained, whether or not their updates count."""
    return dict(Counter(rounds) + Counter(cost.client for cost in stats if cost.steps))


def accounts_of(fed: Federation) -> ExampleAccounts | None:
    """The accounts of a run with local.dp. Raises ConfigError."""
    return None if fed.local.dp is None else ExampleAccounts(fed, fed.local.dp)
