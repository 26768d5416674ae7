"""Rules that choose the clients of a round by what is known: past rows, and candidates' losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..core.hyper import Part, PositiveInt, hyper
from ..core.registry import Registry
from ..core.rng import generator
from ..errors import ConfigError


class Known(NamedTuple):
    """What a rule may look at before a round.

    round: 0, 1, ...; size: how many clients to choose; there: the available clients, sorted;
    examples: of each of all clients; rows: of the rounds so far, each with `clients`, who took
    part; seed: the run's; attempt: how many cohorts of this round failed because too few
    answered.
    """

    round: int
    size: int
    there: Sequence[int]
    examples: Sequence[int]
    rows: Sequence[Mapping[str, Any]]
    seed: int
    attempt: int = 0

    def generator(self) -> torch.Generator:
        """The source of this round's draws: the same in a run that is repeated or resumed."""
        again = (self.attempt,) if self.attempt else ()
        return generator(self.seed, "choice", self.round, *again)


class ClientChoice(Part):
    """Chooses the cohort of every round. Subclasses become frozen dataclasses whose fields are the
    hyper-parameters; methods are pure and see only their arguments.
    """

    @property
    def name(self) -> str:
        """The name in errors."""
        return type(self).__name__

    def candidates(self, known: Known) -> Sequence[int]:
        """-> who is sent the model and asked for the loss on all its data; the bytes count."""
        return ()

    def cohort(self, known: Known, losses: Mapping[int, float]) -> Sequence[int]:
        """-> 1 to `known.size` of the available clients, each once. losses: the candidates'."""
        raise NotImplementedError


class PowerOfChoice(ClientChoice):
    """Power-of-choice (Cho, Wang & Joshi, AISTATS 2022, Algorithm 1): of `candidates` clients,
    drawn by their numbers of examples, those with the largest losses.

    Differs from the paper: equal losses go by the client's number; the updates are weighted as the
    experiment says (the paper: uniformly, as the draw is by examples already).
    Reference: https://arxiv.org/abs/2010.01243
    """

    among: PositiveInt = hyper(
        default=10, meaning="how many candidates are asked", source="d of pow-d: 2m to 10m"
    )

    def candidates(self, known: Known) -> Sequence[int]:
        most = len(known.there)
        if self.among < min(known.size, most):
            raise ConfigError(
                f"choose.among = {self.among} candidates are fewer than the {known.size} clients "
                "of a round; give more of them, or a smaller cohort"
            )
        examples = torch.tensor([known.examples[i] for i in known.there], dtype=torch.float64)
        draws = torch.multinomial(examples, min(self.among, most), generator=known.generator())
        return [known.there[k] for k in draws.tolist()]

    def cohort(self, known: Known, losses: Mapping[int, float]) -> Sequence[int]:
        key = lambda i: (losses[i] == losses[i], -losses[i], i)  # not a number: the largest
        return sorted(sorted(losses), key=key)[: known.size]


CHOICES: Registry[type[ClientChoice]] = Registry(
    "client choice", {"power_of_choice": PowerOfChoice}, own=ClientChoice
)


def checked(choice: ClientChoice, method: str, answer: Any, known: Known) -> list[int]:
    """What a rule gave, sorted. Raises ConfigError unless it is some of the available clients."""
    most = len(known.there) if method == "candidates" else known.size
    least = 0 if method == "candidates" else 1
    try:
        clients = sorted(int(i) for i in answer)
    except (TypeError, ValueError):
        clients = None
    available = {*known.there}
    good = clients is not None and least <= len(clients) <= most and not {*clients} - available
    if clients is not None and good and len({*clients}) == len(clients):
        return clients
    raise ConfigError(
        f"{choice.name}.{method}() gives {answer!r} in round {known.round + 1}; it must give "
        f"{least} to {most} of the {len(available)} available clients, each once"
    )
