"""A user's functions and measures, called after a round or an evaluation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch import nn

from ..engines.base import Expecting
from ..engines.batch_statistics import keeps_no_statistics
from ..engines.evaluation import Score
from .ledger import own_columns, put

Row = dict[str, Any]


def takes_model(call: Callable[..., Any]) -> bool:
    """True if a function wants the model beside the row: its second argument is called `model`, or
    has no default.

    >>> takes_model(lambda row: None), takes_model(lambda row, model: None), takes_model(print)
    (False, True, False)
    """
    try:
        given = [*inspect.signature(call).parameters.values()]
    except (TypeError, ValueError):
        return False
    second = given[1] if len(given) > 1 else None
    if second is None or second.kind not in (second.POSITIONAL_ONLY, second.POSITIONAL_OR_KEYWORD):
        return False
    return second.name == "model" or second.default is second.empty


def tell(
    evaluated: Sequence[Callable[..., Any]],
    others: Sequence[Callable[..., Any]],
    row: Row,
    model: Callable[[], nn.Module],
) -> None:
    """Call the functions of an evaluation, with the model if they take it, and those of a round.
    model: makes it, once for all, in evaluation mode.
    """
    wanted = [takes_model(call) for call in evaluated]
    made = model() if any(wanted) else None
    for call, with_model in zip(evaluated, wanted, strict=True):
        call(row, made) if with_model else call(row)
    for call in others:
        call(row)


class Measuring(Protocol):
    """A look at a run between two rounds, every so many of them: -> columns of the round's row. It
    changes nothing. It is called with the run's rounds.Loop.
    """

    @property
    def every(self) -> int: ...

    def __call__(self, loop: Any, /) -> Mapping[str, float]: ...


def beside(loop: Any) -> bool:
    """Evaluate the last round beside the next one, if the engine can. A function of the user, a
    measure and sub-models are not kept waiting: False.
    """
    data, engine = loop.fed.data, loop.engine
    waits = loop.on_round or loop.on_evaluation or loop.measures or loop.sizes
    if waits or not isinstance(engine, Expecting) or data.test_inputs is None:
        return False
    pending = len(loop.history) > loop.logged and loop.evaluation.due(loop.round)
    if not pending or keeps_no_statistics(loop.net.module):
        return False
    return engine.expect(loop.model(), loop.buffers, data.test_inputs, data.test_targets)


def columns(loop: Any, scores: Mapping[str, Score], last: bool) -> Row:
    """The columns of an evaluation, and of the measures that are due. last: no round follows."""
    row: Row = {}
    if loop.sizes and (loop.evaluation.sizes_due(loop.round) or last):
        row |= loop.sizes.columns(loop.size_scores(scores.get("test")))
    tests = loop.fed.data.test_clients is not None or loop.at_nodes
    if "test" in scores and tests and loop.evaluation.clients and loop.sizes is None:
        found = loop.client_values(scores["test"])
        better, names = loop.curve.higher_is_better, loop.fed.data.client_names
        row |= found.columns(loop.fed.metrics, better, names)
    row |= own_columns(_measured(loop, last), loop.history[-1], "measures")
    for part, score in scores.items():
        put(row, part, score, loop.fed.metrics)
    return row


def _measured(loop: Any, last: bool) -> Row:
    found: Row = {}
    for measure in loop.measures:
        if loop.round % measure.every == 0 or last:
            found |= own_columns(measure(loop), found, "measures")
    return found
