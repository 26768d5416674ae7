"""What an aggregation adds to the row of a round."""

from __future__ import annotations

from typing import Any

from ..aggregation import Aggregation
from ..core.vector import Rec
from ..engines.client_round import ClientCost
from ..errors import CheckpointError
from ..federation.federation import Federation
from ..storage.run_directory import State

_TELLING = ("cohort", "clients", "client_names", "answered", "skipped", "skipped_names")
_PRIVATE = ("example_epsilon", "spent_clients")
_COSTS = ("steps", "gradients", "loss_values", "bytes_up", "bytes_down", "seconds")


def published(rule: Aggregation, row: dict[str, Any]) -> dict[str, Any]:
    """A round's row. Where noise cannot be made again, without what tells who took part: the
    accounts of privacy rely on nobody knowing it.
    """
    if not rule.unkeyed:
        return row
    return {
        k: v for k, v in row.items() if k.partition(".")[0] not in (*_TELLING, *_PRIVATE, *_COSTS)
    }


def check_spent(rule: Aggregation, done: int, state: State | None) -> None:
    """Raise CheckpointError if a run with noise that cannot be made again would go back to a
    checkpoint, or its beginning, although more rounds are done.
    """
    saved = 0 if state is None else state.round
    if rule.unkeyed and done > saved:
        raise CheckpointError(
            f"this private run has done {done} rounds, and its newest whole checkpoint has "
            f"{saved}: the others would be paid twice; put back the newest checkpoint from a "
            "backup, or begin another run"
        )


def aggregated(
    rule: Aggregation, state: Rec, round: int, stats: list[ClientCost], fed: Federation
) -> dict[str, Any]:
    """Columns of a round's row (from 0): hostile clients, what the aggregation reports; empty ones
    instead of what a private or masked one may not tell.
    """
    found: dict[str, Any] = {}
    if rule.private or rule.masked:
        found["train_loss"] = None
        if any(s.squares for s in stats):
            found |= {"delta_square": None, "residual_square": None}
    if fed.hostile:
        found["hostile"] = [s.client for s in stats if s.client in fed.hostile]
    return found | dict(rule.report(state, round))
