"""A node's own account of what privacy its updates have cost: it sends nothing that its budget does
not allow, whatever the server counts or prepares.
"""

from __future__ import annotations

import logging
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ..aggregation import accounting
from ..aggregation.discrete_gaussian import DiscreteGaussian
from ..errors import CheckpointError, ClientError
from ..federation.private_examples import ExamplePrivacy
from ..storage.atomic import write_atomic

_log = logging.getLogger(__name__)


class _Spent(BaseModel):
    """rounds, steps: all that this folder has computed; share, noise: the largest and the smallest
    of them, with which every step is counted.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    rounds: int = Field(ge=0)
    steps: int = Field(ge=0)
    share: float = Field(gt=0, le=1)
    noise: float = Field(gt=0)


_FILE = TypeAdapter(dict[str, _Spent])


class NodeAccount:
    """The account of one mechanism, in a file of the states' folder: one a folder, for all its runs
    and whatever its rows become. share: of the examples in a batch, 1 of a mechanism that hides
    whole clients; steps: of a round.
    """

    def __init__(
        self, folder: Path, mechanism: ExamplePrivacy | DiscreteGaussian, share: float, steps: int
    ) -> None:
        self._file, self._of = folder / "examples.json", mechanism
        self._name = "local.dp" if isinstance(mechanism, ExamplePrivacy) else "aggregation"
        self._share, self._steps = share, steps

    def pay(self) -> None:
        """Count one more round, on the disk before it is computed: one that is lost, or computed
        again with other noise, is paid too. Raises ClientError if the budget does not allow it,
        CheckpointError for a damaged file, OSError.
        """
        all_spent, noise = self._read(), self._of.noise
        before = all_spent.get(self._name)
        spent = _Spent(
            rounds=1 + (before.rounds if before else 0),
            steps=self._steps + (before.steps if before else 0),
            share=max(self._share, before.share if before else 0.0),
            noise=min(noise, before.noise if before else noise),
        )
        self._check(spent)
        write_atomic(self._file, _FILE.dump_json(all_spent | {self._name: spent}).decode())

    def _check(self, spent: _Spent) -> None:
        """Raise ClientError for more than the budget allows, if there is one."""
        limit = self._of.max_epsilon
        if limit is None or not spent.steps:
            return
        cost = accounting.epsilon(spent.noise, spent.share, self._of.delta, spent.steps)
        if cost > limit:
            raise ClientError(
                f"its privacy budget is spent: one more round would make epsilon {cost:.3g}, more "
                f"than {self._name}.max_epsilon = {limit:g}"
            )
        _log.info("%s: epsilon %.4g after %d rounds", self._name, cost, spent.rounds)

    def _read(self) -> dict[str, _Spent]:
        try:
            return _FILE.validate_json(self._file.read_bytes())
        except FileNotFoundError:
            return {}
        except ValidationError:
            raise CheckpointError(
                f"the account of privacy '{self._file}' is damaged; put it back from a backup: "
                "without it nobody knows what is spent"
            ) from None
