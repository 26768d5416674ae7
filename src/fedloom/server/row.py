"""The row of a round: its columns in the log."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..aggregation import Aggregation
from ..core.arithmetic import average, plain_number
from ..core.vector import Rec
from ..engines.base import Remote
from ..engines.client_results import ClientCost
from ..engines.evaluation import Score
from ..errors import ConfigError
from ..federation.federation import Federation
from .billing import Bill
from .exchanges import RoundOutcome
from .state import State

if TYPE_CHECKING:
    from .rounds import Run

_log = logging.getLogger(__name__)
Row = dict[str, Any]
_TELLING = ("cohort", "clients", "client_names", "answered", "skipped", "skipped_names")
_PRIVATE = ("example_epsilon", "spent_clients")
_COSTS = ("steps", "gradients", "loss_values", "bytes_up", "bytes_down", "seconds")


def row_of(run: Run, before: State, after: State, done: RoundOutcome, bill: Bill, own: Row) -> Row:
    """The row of a round before its evaluation: state before and after it, what came of it and what
    it cost. own: what the method reports. Raises ConfigError for a name of its own that is taken.
    """
    t, rule, few = before.round, run.plan.aggregation, done.needed is not None
    explained, names = few or isinstance(run.engine, Remote), run.fed.data.client_names
    if not any(s.answered for s in bill.cohort) and not rule.private and not few:
        _log.warning("round %d: no client update arrived; the model stays as it was", t + 1)
    private = {} if run.accounts is None else run.accounts.columns(after.trained)
    row = {
        "round": after.round,
        "lr": run.fed.local.rate(t, 0),
        **of_clients(bill.cohort, bill.others, after.round, done.chosen.named, names, explained),
        **({"needed": done.needed} if few else {}),
        **bytes_of("down", after.ledger.down, before.ledger.down),
        **bytes_of("up", after.ledger.up, before.ledger.up),
        "seconds": round(bill.seconds, 6),
        **({} if bill.simulated is None else {"simulated_seconds": bill.simulated}),
        **squares(bill.cohort),
        **wasted(done.chosen.columns, bill.absent),
        **private,
        **aggregated(rule, after.aggregation, t, bill.cohort, run.fed),
    }
    row = published(rule, row)
    if run.evaluator.sizes is not None:
        row |= run.evaluator.sizes.explored(after.explored)
    return row | own_columns(own, row, "report()")


def skipped(
    stats: list[ClientCost], round: int, names: Sequence[str] = (), explained: bool = False
) -> Row:
    """The clients whose updates are left out; with a warning that they were not finite, unless the
    engine has explained it.
    """
    out = [s.client for s in stats if not s.answered]
    if not out:
        return {}
    called = [names[i] for i in out] if names else []
    some = ", ".join(map(str, (called or out)[:10])) + (", ..." if len(out) > 10 else "")
    if not explained:
        _log.warning("round %d: left out, as not finite: the updates of clients %s", round, some)
    return {"skipped": out} | ({"skipped_names": called} if called else {})


def of_clients(
    stats: list[ClientCost],
    others: list[ClientCost],
    round: int,
    named: bool,
    names: Sequence[str] = (),
    explained: bool = False,
) -> Row:
    """A round's columns about its clients. others: candidates that did not take part; named:
    whether the clients are named, as where more than a draw decides who takes part. names: of all
    clients, if they have some; explained: see skipped().
    """
    listed: Row = {"clients": sorted(s.client for s in stats)} if named else {}
    if named and names:
        listed["client_names"] = [names[client] for client in listed["clients"]]
    answered = [s for s in stats if s.answered]
    losses = [s.loss for s in answered if s.loss is not None]
    values = sum(s.values for s in (*stats, *others))
    return {
        "cohort": len(stats),
        **listed,
        "answered": len(answered),
        **skipped(stats, round, names, explained),
        "train_loss": average(losses) if losses else None,
        "steps": sum(s.steps for s in stats),
        "gradients": sum(s.gradients for s in stats),
        **({"loss_values": values} if values else {}),  # without a gradient
    }


def own_columns(found: Any, row: Row, whose: str) -> Row:
    """found, a user's columns for a row that has none of these names, with Python's numbers. Raises
    ConfigError.
    """
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise ConfigError(
            f"{whose} must give numbers by their names, {{'norm': 0.5}}, got {found!r}"
        )
    if taken := sorted(found.keys() & row.keys()):
        raise ConfigError(f"{whose}: a round has a column '{taken[0]}' already; rename it")
    made = {name: plain_number(value) for name, value in found.items()}
    for name, value in made.items():
        if value is not None and not isinstance(value, int | float | str):
            raise ConfigError(f"{whose}: column '{name}' must be a number, got {value!r}")
    return made


def bytes_of(way: str, now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """A round's bytes: in all, and by field."""
    moved = {name: count - before.get(name, 0) for name, count in now.items()}
    fields = {f"bytes_{way}.{name}": count for name, count in moved.items() if count}
    return {f"bytes_{way}": sum(moved.values()), **fields}


def squares(stats: list[ClientCost]) -> dict[str, float]:
    """The means over the updates of ||delta||^2 and ||e||^2, if delta is compressed: the error
    norms of CFedAvg's figures.
    """
    found = [s.squares for s in stats if s.squares is not None]
    if not found:
        return {}
    means = [average(v) for v in zip(*found, strict=True)]
    return {"delta_square": means[0], "residual_square": means[1]}


def put(row: Row, part: str, score: Score, metrics: dict[str, Any]) -> None:
    """Write the loss and the metrics of a score as columns."""
    row[f"{part}_loss"] = score.loss / max(score.examples, 1)
    row.update({f"{part}_{k}": score.mean(k, metrics[k]) for k in score.values})


def wasted(columns: Mapping[str, Any], absent: list[ClientCost]) -> dict[str, Any]:
    """A row's columns about who did not answer. columns: the others of the choice of clients."""
    if "dropped" not in columns:
        return {**columns}
    return {**columns, "bytes_wasted": sum(sum(s.bytes_down.values()) for s in absent)}


def published(rule: Aggregation, row: dict[str, Any]) -> dict[str, Any]:
    """A round's row. Where noise cannot be made again, without what tells who took part: the
    accounts of privacy rely on nobody knowing it.
    """
    if not rule.unkeyed:
        return row
    return {
        k: v for k, v in row.items() if k.partition(".")[0] not in (*_TELLING, *_PRIVATE, *_COSTS)
    }


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
