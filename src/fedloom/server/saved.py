"""What a checkpoint holds of the server, and what is said if it cannot be written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from ..core.vector import Rec, rec
from ..storage.atomic import remedy
from .arrivals import versions
from .choosing import UnderWay
from .evaluation import Curve
from .server_step import Learnt
from .submodel_evaluation import Sizes

_log = logging.getLogger(__name__)
Mean = tuple[int, float, int, float]  # of Ledger.means


def whole_record(
    learnt: Learnt, at_down: Rec, sizes: Sizes | None, under_way: UnderWay | None
) -> Rec:
    """The server's record and states: of stages by their names, of the aggregation, of sub-models
    and of an asynchronous clock if there are any.
    """
    stages = learnt.stages._asdict()
    record = rec(**{"srv": learnt.srv, "link": stages["link"], "down": at_down} | stages)
    if learnt.gathered._fields:
        record = rec(**record._asdict(), gathered=learnt.gathered)
    if sizes is not None:
        record = rec(**record._asdict(), sizes=sizes.state())
    if under_way is not None:
        record = rec(**record._asdict(), told=versions(under_way))
    return record


def continued(asked: Curve, saved: dict[str, Any], means: Callable[[], Iterator[Mean]]) -> Curve:
    """A checkpoint's curve, with the target that is asked for now. means: see Ledger.means."""
    curve = Curve(**saved)
    if asked.ema != curve.ema:
        told = "evaluate.ema stays %g: the moving averages until now were made with it"
        _log.warning(told, curve.ema)
    curve.higher_is_better = asked.higher_is_better
    if asked.target != curve.target:
        curve.aim(asked.target, means())
    return curve


def unwritten(round: int, error: OSError, resume: str) -> str:
    """The sentence about a checkpoint that could not be written. resume: the command to go on."""
    return (
        f"the checkpoint after round {round} could not be written: {error.strerror or error}; the "
        f"one before it is whole: {remedy(error)}, then {resume}"
    )
