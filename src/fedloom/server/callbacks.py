"""A user's functions and measures, called after a round or an evaluation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch import nn

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
