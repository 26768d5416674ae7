"""The rows of a run, and who hears of them: a user's functions and measures."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import nn

from ..errors import StopRun
from ..evaluation.monitor import DivergenceMonitor
from ..evaluation.stopping import Selection

Row = dict[str, Any]
NOTHING_SELECTED = Selection(None, 0, None)  # which holds nothing of a run


def takes_model(call: Callable[..., Any]) -> bool:
    """True if a function wants the model beside the row: its second argument is called `model`, or
    has no default.

    >>> takes_model(lambda row: None), takes_model(lambda row, model: None), takes_model(print)
    (False, True, False)
    """
    try:
        parameters = [*inspect.signature(call).parameters.values()]
    except (TypeError, ValueError):
        return False
    second = parameters[1] if len(parameters) > 1 else None
    if second is None or second.kind not in (second.POSITIONAL_ONLY, second.POSITIONAL_OR_KEYWORD):
        return False
    return second.name == "model" or second.default is second.empty


@runtime_checkable
class Measuring(Protocol):
    """A look at a run between two rounds, every so many of them: -> columns of the round's row. It
    changes nothing. It is called with the run (rounds.Run).
    """

    @property
    def every(self) -> int: ...

    def __call__(self, run: Any, /) -> Mapping[str, float]: ...


class RunLog:
    """The rows of a run's rounds. history: all of them; logged: how many of these are evaluated and
    written; notified: how many the functions below have heard of. monitor: says what to warn of;
    selection: which row ends the run, and which has the best model.
    on_round, on_evaluation: of the user, called with a row; watching: of a tracker or a bar.
    """

    def __init__(
        self,
        monitor: DivergenceMonitor,
        on_round: Sequence[Callable[[Row], object]] = (),
        on_evaluation: Sequence[Callable[..., object]] = (),
        selection: Selection = NOTHING_SELECTED,
    ) -> None:
        self.logged = self.notified = 0
        self.history: list[Row] = []
        self.monitor, self.selection = monitor, selection
        self.on_round, self.on_evaluation = [*on_round], [*on_evaluation]
        self.watching: list[Callable[[Row], None]] = []

    def begin(self, history: Sequence[Row], logged: int) -> None:
        """Take over the rows of a run that goes on, of which so many are written."""
        self.history, self.logged, self.notified = [*history], logged, logged

    @property
    def pending(self) -> list[Row]:
        """The rows that are neither evaluated nor written: one at most."""
        return self.history[self.logged :]

    def tell(self, model: Callable[[], nn.Module]) -> bool:
        """Call the functions with the last row, once -> whether one of them ends the run. model:
        makes it in evaluation mode.
        """
        if self.notified == self.logged:
            return False
        self.notified, row = self.logged, self.history[-1]
        calls: list[Callable[[], object]] = []
        if "test_loss" in row or "validation_loss" in row:
            model_wanted = [takes_model(call) for call in self.on_evaluation]
            module = model() if any(model_wanted) else None
            for call, with_model in zip(self.on_evaluation, model_wanted, strict=True):
                arguments = (row, module) if with_model else (row,)
                calls.append(functools.partial(call, *arguments))
        calls += [functools.partial(call, row) for call in (*self.on_round, *self.watching)]
        stops = False
        for one in calls:
            try:
                one()
            except StopRun:
                stops = True
        return stops
