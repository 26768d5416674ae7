"""What a node remembers of what it gave away, in files of its states: which models it has measured,
what its updates have cost of its privacy. A node does nothing that these do not allow, whatever the
server counts or prepares.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError

from fedloom.aggregation import accounting
from fedloom.aggregation.discrete_gaussian import DiscreteGaussian
from fedloom.errors import CheckpointError, ClientError, WireError
from fedloom.federation.private_examples import ExamplePrivacy
from fedloom.storage.atomic import write_atomic

_log = logging.getLogger(__name__)
R = TypeVar("R", bound=BaseModel)


class Record(BaseModel):
    """The content of a file."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


def read_record(kind: type[R], file: Path, what: str, cure: str) -> R | None:
    """What a file holds, None if there is none. what, cure: for the error. Raises CheckpointError
    for a damaged file, OSError.
    """
    try:
        return kind.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        raise CheckpointError(f"{what} '{file}' is damaged; {cure}") from None


class Measured(Record):
    """models: of a round, a digest of the model."""

    run: str
    models: dict[str, str] = {}


class MeasuredModels:
    """Which models a node has measured: one a round, for a server that asked of many could learn
    single test examples.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "measured.json"

    def note(self, run: str, round: int, model: str) -> None:
        """Note that a model, a digest of it, is measured in a round; the same one may be measured
        again. Raises WireError for another one, CheckpointError for a damaged file, OSError.
        """
        cure = "put it back from a backup, or begin another run"
        measured = read_record(Measured, self._file, "the list of measured models", cure)
        if measured is None or measured.run != run:
            measured = Measured(run=run)
        if (previous := measured.models.get(str(round))) == model:
            return
        if previous is not None:
            raise WireError(
                f"this node has measured the model of round {round}, and measures one a round: "
                "many models together tell single test rows"
            )
        updated = Measured(run=run, models=measured.models | {str(round): model})
        write_atomic(self._file, updated.model_dump_json())


class Spent(Record):
    """rounds, steps: all that this folder has computed; share, noise: the largest and the smallest
    of them, with which every step is counted.
    """

    rounds: int = Field(ge=0)
    steps: int = Field(ge=0)
    share: float = Field(gt=0, le=1)
    noise: float = Field(gt=0)


class _Account(RootModel[dict[str, Spent]]):
    """What each mechanism has spent."""


class NodeAccount:
    """The account of one mechanism, in a file of the states' folder: one a folder, for all its runs
    and whatever its rows become. share: of the examples in a batch, 1 of a mechanism that hides
    whole clients; steps: of a round.
    """

    def __init__(
        self, folder: Path, mechanism: ExamplePrivacy | DiscreteGaussian, share: float, steps: int
    ) -> None:
        self._file, self._mechanism = folder / "examples.json", mechanism
        self._name = "local.dp" if isinstance(mechanism, ExamplePrivacy) else "aggregation"
        self._share, self._steps = share, steps

    def pay(self) -> None:
        """Count one more round, on the disk before it is computed: one that is lost, or computed
        again with other noise, is paid too. Raises ClientError if the budget does not allow it,
        CheckpointError for a damaged file, OSError.
        """
        cure = "put it back from a backup: without it nobody knows what is spent"
        accounts = read_record(_Account, self._file, "the account of privacy", cure)
        all_spent, noise = {} if accounts is None else accounts.root, self._mechanism.noise
        previous = all_spent.get(self._name)
        spent = Spent(
            rounds=1 + (previous.rounds if previous else 0),
            steps=self._steps + (previous.steps if previous else 0),
            share=max(self._share, previous.share if previous else 0.0),
            noise=min(noise, previous.noise if previous else noise),
        )
        self._check(spent)
        updated = _Account(all_spent | {self._name: spent})
        write_atomic(self._file, updated.model_dump_json())

    def _check(self, spent: Spent) -> None:
        """Raise ClientError for more than the budget allows, if there is one."""
        limit = self._mechanism.max_epsilon
        if limit is None or not spent.steps:
            return
        cost = accounting.epsilon(spent.noise, spent.share, self._mechanism.delta, spent.steps)
        if cost > limit:
            raise ClientError(
                f"its privacy budget is spent: one more round would make epsilon {cost:.3g}, more "
                f"than {self._name}.max_epsilon = {limit:g}"
            )
        _log.info("%s: epsilon %.4g after %d rounds", self._name, cost, spent.rounds)
