"""The row of a round: its columns in the log, and who hears of it."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from torch import nn

from ..core.arithmetic import average, plain_number
from ..engines.base import Remote
from ..engines.client_results import ClientCost
from ..errors import ConfigError, StopRun
from ..evaluation.stopping import DivergenceMonitor, Selection
from .exchanges import Bill, RoundOutcome
from .state import State

if TYPE_CHECKING:
    from .rounds import Run

_log = logging.getLogger(__name__)
Row = dict[str, Any]
# what tells who took part, and how many: not in the log where noise cannot be made again, because
# the accounts of privacy rely on nobody knowing it
_CLIENTS = ("cohort", "clients", "client_names", "answered", "skipped", "skipped_names")
_COSTS = ("steps", "gradients", "loss_values", "bytes_up", "bytes_down", "seconds")
_UNPUBLISHED = {*_CLIENTS, *_COSTS, "example_epsilon", "spent_clients"}


def row_of(
    run: Run, before: State, after: State, outcome: RoundOutcome, bill: Bill, reported: Row
) -> Row:
    """The row of a round before its evaluation: state before and after it, what came of it and what
    it cost. reported: by the method. Raises ConfigError for a name of its own that is taken.
    """
    aggregation, sizes = run.plan.aggregation, run.evaluator.sizes
    any_update = any(s.answered for s in bill.cohort)
    if not any_update and not aggregation.private and outcome.fewest is None:
        _log.warning("round %d: no client update arrived; the model stays as it was", after.round)
    row = _columns(run, before, after, outcome, bill)
    if aggregation.unkeyed:
        row = {k: v for k, v in row.items() if k.partition(".")[0] not in _UNPUBLISHED}
    if sizes is not None:
        row |= sizes.explored(after.explored)
    return row | own_columns(reported, row, "report()")


def _columns(run: Run, before: State, after: State, outcome: RoundOutcome, bill: Bill) -> Row:
    """The columns of a round. Those are empty that a private or masked aggregation may not tell."""
    t, fed, participants = before.round, run.fed, outcome.participants
    aggregation = run.plan.aggregation
    hidden = aggregation.private or aggregation.masked
    row: Row = {"round": after.round, "lr": fed.local.rate(t, 0)}
    row |= _of_clients(run, outcome, bill, after.round, hidden)
    if outcome.fewest is not None:
        row["needed"] = outcome.fewest
    for way in ("down", "up"):
        now, was = getattr(after.ledger, way), getattr(before.ledger, way)
        traffic = {name: count - was.get(name, 0) for name, count in now.items()}
        row[f"bytes_{way}"] = sum(traffic.values())
        for name, count in traffic.items():
            if count:
                row[f"bytes_{way}.{name}"] = count
    row["seconds"] = round(bill.seconds, 6)
    if bill.simulated is not None:
        row["simulated_seconds"] = bill.simulated
    # if delta is compressed: means over the updates, the error norms of CFedAvg's figures
    if squares := [s.squares for s in bill.cohort if s.squares is not None]:
        names = ("delta_square", "residual_square")
        for name, values in zip(names, zip(*squares, strict=True), strict=True):
            row[name] = None if hidden else average(values)
    row |= participants.columns
    if "dropped" in participants.columns:
        row["bytes_wasted"] = sum(sum(s.bytes_down.values()) for s in bill.absent)
    if run.accounts is not None:
        row |= run.accounts.columns(after.trained)
    if fed.hostile:
        row["hostile"] = [s.client for s in bill.cohort if s.client in fed.hostile]
    return row | dict(aggregation.report(after.aggregation, t))


def _of_clients(run: Run, outcome: RoundOutcome, bill: Bill, round: int, hidden: bool) -> Row:
    """The columns about the clients, named where more than a draw decides who takes part."""
    stats, names = bill.cohort, run.fed.data.client_names
    updates = [s for s in stats if s.answered]
    losses = [s.loss for s in updates if s.loss is not None]
    row: Row = {"cohort": len(stats)}
    if outcome.participants.names_clients:
        clients = sorted(s.client for s in stats)
        row["clients"] = clients
        if names:
            row["client_names"] = [names[client] for client in clients]
    row["answered"] = len(updates)
    explained = outcome.fewest is not None or isinstance(run.engine, Remote)
    row |= skipped(stats, round, names, explained)
    row["train_loss"] = average(losses) if losses and not hidden else None
    row["steps"] = sum(s.steps for s in stats)
    row["gradients"] = sum(s.gradients for s in stats)
    if values := sum(s.values for s in (*stats, *bill.others)):  # without a gradient
        row["loss_values"] = values
    return row


def skipped(
    stats: list[ClientCost], round: int, names: Sequence[str] = (), explained: bool = False
) -> Row:
    """The clients that are left out as not finite, with a warning unless `explained`."""
    out = [s.client for s in stats if not s.answered]
    if not out:
        return {}
    client_names = [names[i] for i in out] if names else []
    some = ", ".join(map(str, (client_names or out)[:10])) + (", ..." if len(out) > 10 else "")
    if not explained:
        _log.warning("round %d: left out, as not finite: the updates of clients %s", round, some)
    return {"skipped": out} | ({"skipped_names": client_names} if client_names else {})


def own_columns(columns: Any, row: Row, source: str) -> Row:
    """A user's columns as Python's numbers. Raises ConfigError for a name that is taken."""
    if not isinstance(columns, Mapping) or not all(isinstance(name, str) for name in columns):
        raise ConfigError(
            f"{source} must give numbers by their names, {{'norm': 0.5}}, got {columns!r}"
        )
    if duplicates := sorted(columns.keys() & row.keys()):
        raise ConfigError(f"{source}: a round has a column '{duplicates[0]}' already; rename it")
    numbers = {name: plain_number(value) for name, value in columns.items()}
    for name, value in numbers.items():
        if value is not None and not isinstance(value, int | float | str):
            raise ConfigError(f"{source}: column '{name}' must be a number, got {value!r}")
    return numbers


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
        """Call the functions with the last row, once -> whether one of them ends the run."""
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
