"""Who may be in a masked sum, by a node's own settings: a server cannot name a smaller one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from fedloom.errors import WireError
from fedloom.federation.sampling import Cohorts


class Expected(NamedTuple):
    """The cohorts that a node's own settings have. removed: clients that its own clients.toml marks
    so.
    """

    cohorts: Cohorts
    removed: Callable[[], Collection[int]] = frozenset

    def check(self, members: Sequence[int], round: int) -> None:
        """Raise WireError for a sum of fewer clients, or of others, than the settings have."""
        size, removed = self.cohorts.size, {*self.removed()}
        if isinstance(size, Sequence):
            wanted = {*size[round % len(size)]} - removed
            if {*members} != wanted:
                raise WireError(
                    f"the masked sum is said to be of the clients {[*members]}, and the list of "
                    f"round {round + 1} has {sorted(wanted)}"
                )
            return
        count = min(self.cohorts.largest, self.cohorts.population - len(removed))
        if len(members) != count:
            raise WireError(
                f"the masked sum is said to be of {len(members)} clients, and a round has {count} "
                "by this node's own run.toml and clients.toml; a site that was taken out is marked "
                "removed = true there"
            )
