"""A node's own account of what local.dp has cost: it sends nothing that its budget does not allow,
whatever the server counts.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from ..errors import CheckpointError, ClientError
from ..federation.federation import Federation
from ..federation.private_examples import ExamplePrivacy
from ..storage.atomic import write_atomic

_log = logging.getLogger(__name__)


class NodeAccount:
    """The rounds that one client has computed in each run, in a file of its states' folder."""

    def __init__(
        self, folder: Path, run: str, fed: Federation, dp: ExamplePrivacy, client: int
    ) -> None:
        self._file, self._run, self._dp = folder / "examples.json", run, dp
        self._share, self._steps = fed.example_share(client), fed.steps(client)

    def pay(self) -> None:
        """Count one more round, on the disk before it is computed: one that is lost, or computed
        again with other noise, is paid too. Raises ClientError if the budget does not allow it,
        CheckpointError for a damaged file, OSError.
        """
        rounds = self._counted()
        spent = self._dp.epsilon(self._share, self._steps * (rounds.get(self._run, 0) + 1))
        limit = self._dp.max_epsilon
        if limit is not None and spent > limit:
            raise ClientError(
                f"its privacy budget is spent: one more round would make epsilon {spent:.3g}, more "
                f"than local.dp.max_epsilon = {limit:g}"
            )
        rounds[self._run] = rounds.get(self._run, 0) + 1
        write_atomic(self._file, json.dumps(rounds))
        _log.info("%s: epsilon %.4g after %d rounds", self._run, spent, rounds[self._run])

    def _counted(self) -> dict[str, int]:
        """{run: rounds}."""
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
            return {str(run): int(count) for run, count in found.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, AttributeError, TypeError):
            raise CheckpointError(
                f"the account of privacy '{self._file}' is damaged; put it back from a backup: "
                "without it nobody knows what is spent"
            ) from None
