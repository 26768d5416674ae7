"""When a run ends early, and which of its models is the best: both by a column of its rows."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ..core.hyper import NonNegative, Part, PositiveInt, hyper
from ..errors import ConfigError
from ..federation.federation import Federation
from .declared import higher_is_better

_log = logging.getLogger(__name__)


class EarlyStop(Part):
    """The run ends after so many evaluations in a row that are no better than the best before them
    (Prechelt, "Early Stopping - But When?", 1998, UP with a patience). It is then finished:
    a resume adds no round.
    """

    title: ClassVar[str] = "evaluate.stop"
    metric: str = hyper(
        "",
        "a column such as test_accuracy or validation_loss; empty: the headline metric, on "
        "validation rows where there are some, else on test rows",
    )
    patience: PositiveInt = hyper(20, "evaluations without a better value that end the run")
    least: NonNegative = hyper(0.0, "how much better a value must be")


@dataclass
class Best:
    """The best value of a column so far. setting: that asks for it; higher: whether higher is
    better; least: by how much; since: evaluations after it.

    >>> best = Best("evaluate.stop.metric", "test_loss", higher=False)
    >>> [best.see({"round": t, "test_loss": loss}) for t, loss in ((1, 2.0), (2, 3.0), (3, 1.0))]
    [True, False, True]
    >>> best.round, best.value, best.since
    (3, 1.0, 0)
    """

    setting: str
    column: str
    higher: bool
    least: float = 0.0
    value: float | None = None
    round: int = 0
    since: int = 0

    def see(self, row: Mapping[str, Any]) -> bool:
        """Take a row into account -> whether its value is the best. A row without one is none; a
        value that is not finite is never the best.
        """
        value = row.get(self.column)
        if value is None:
            return False
        self.since += 1
        gain = math.inf if self.value is None else value - self.value
        gain = gain if self.higher or self.value is None else -gain
        if not math.isfinite(value) or not gain > self.least:
            return False
        self.value, self.round, self.since = value, int(row["round"]), 0
        return True

    def as_dict(self) -> dict[str, Any] | None:
        """Metric, round and value, fit for JSON; None before the first value."""
        if self.value is None:
            return None
        return {"metric": self.column, "round": self.round, "value": self.value}


class Selection:
    """The column that ends a run, and the one that says which model is kept as the best."""

    def __init__(self, stop: Best | None, patience: int, best: Best | None) -> None:
        self.stop, self.patience, self.best = stop, patience, best

    def see(self, row: Mapping[str, Any]) -> bool:
        """Take a row into account, once each, in order -> whether its model is the best so far."""
        if self.stop is not None:
            self.stop.see(row)
        return self.best is not None and self.best.see(row)

    @property
    def over(self) -> bool:
        """Whether the run ends with the last row that was seen."""
        return self.stop is not None and self.stop.since >= self.patience

    def say(self) -> None:
        """Tell why the run ends."""
        stop = self.stop
        if stop is not None and self.over:
            better = "higher" if stop.higher else "lower"
            of = "" if stop.value is None else f" than {stop.value:.6g} of round {stop.round}"
            text = "evaluate.stop: %s has not been %s%s for %d evaluations: the run ends"
            _log.warning(text, stop.column, better, of, self.patience)


def selection_of(
    stop: EarlyStop | None,
    keep_best: str | None,
    every: int,
    fed: Federation,
    headline_higher: bool | None,
) -> Selection:
    """What a run watches. every: see Evaluation; headline_higher: whether a higher headline metric
    is better, None if nobody knows. Raises ConfigError for a column that no row has.
    """

    def best_of(setting: str, request: str, least: float = 0.0) -> Best:
        if not every:
            raise ConfigError(
                f"{setting}: evaluate.every = 0 evaluates the last round alone, so that there is "
                "nothing to compare; give evaluate.every = 1"
            )
        column, name = _column(setting, request, fed)
        first = next(iter(fed.metrics), "loss")
        higher = higher_is_better(name, fed.metrics.get(name))
        higher = headline_higher if name == first and name != "loss" else higher
        if higher is None:
            raise ConfigError(
                f"{setting} = '{column}': nothing says whether it is better higher or lower; set "
                f"{name}.higher_is_better = True or False beside the function"
            )
        return Best(setting, column, higher, least)

    watched = None if stop is None else best_of("evaluate.stop.metric", stop.metric, stop.least)
    best = None if keep_best is None else best_of("checkpoint.keep_best", keep_best)
    return Selection(watched, 0 if stop is None else stop.patience, best)


def _column(setting: str, request: str, fed: Federation) -> tuple[str, str]:
    """The column that is asked for, by default the headline metric's, and its metric."""
    data = fed.data
    tested = data.test_inputs is not None or data.roll is not None  # nodes have tests of their own
    available = {"validation": data.validation is not None, "test": tested}
    parts = [part for part, measured in available.items() if measured]
    if not parts:
        raise ConfigError(
            f"{setting}: '{data.name}' has neither test nor validation rows, so that nothing is "
            "measured; give test rows, or evaluate.validation = 0.1"
        )
    columns = {f"{part}_{name}": name for part in parts for name in (*fed.metrics, "loss")}
    column = request or next(iter(columns))
    if column not in columns:
        raise ConfigError(
            f"{setting} = '{column}': rows have no such column of the server's model; there are "
            f"{', '.join(columns)}"
        )
    return column, columns[column]
