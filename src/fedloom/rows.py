"""What a round's line of the log says of its answers and its scores."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from .arithmetic import average
from .engines.base import Score
from .engines.client import Stats

__all__ = ["bytes_of", "put", "skipped", "squares"]

_log = logging.getLogger(__name__)
Row = dict[str, Any]


def skipped(stats: list[Stats], round: int) -> Row:
    """Whose answers were not finite, and left out; said aloud too."""
    out = [s.client for s in stats if not s.answered]
    if not out:
        return {}
    some = ", ".join(map(str, out[:10])) + (", ..." if len(out) > 10 else "")
    _log.warning("round %d: left out, as not finite: the answers of clients %s", round, some)
    return {"skipped": out}


def bytes_of(way: str, now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """A round's bytes: in all, and of every field that was sent."""
    moved = {name: count - before.get(name, 0) for name, count in now.items()}
    fields = {f"bytes_{way}.{name}": count for name, count in moved.items() if count}
    return {f"bytes_{way}": sum(moved.values()), **fields}


def squares(stats: list[Stats]) -> dict[str, float]:
    """The means over the answers of ||delta||^2 and ||e||^2, where delta is coded: CFedAvg's
    figures of error norms.
    """
    found = [s.squares for s in stats if s.squares is not None]
    if not found:
        return {}
    means = [average(v) for v in zip(*found, strict=True)]
    return {"delta_square": means[0], "residual_square": means[1]}


def put(row: Row, part: str, score: Score, metrics: dict[str, Any]) -> None:
    """The loss and the metrics of a score, as columns."""
    row[f"{part}_loss"] = score.loss / max(score.examples, 1)
    row.update({f"{part}_{k}": score.mean(k, metrics[k]) for k in score.values})
