"""What a run watches of its rows: when it ends early, which model is best, and what is wrong."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from ..core.hyper import NonNegative, Part, PositiveInt, hyper
from ..engines.scores import is_whole
from ..errors import ConfigError
from ..federation.federation import Federation
from ..objectives import CrossEntropy, Objective, SquaredError
from .declared import higher_is_better
from .metrics import exported

WORSE = 1000.0  # times the loss at the start: above that,
ROUNDS = 3  # for this many rounds in a row, a run diverges
SKEWED = 1.2  # times what equally many samples of each class give: then the majority is shown

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


class Majority(NamedTuple):
    """What a model that always gives the test set's largest class has right. equal: what it would
    have with equally many samples of each class.
    """

    name: str
    share: float
    equal: float

    def beats(self, measured: float) -> str:
        """A warning if an accuracy is not above it; else empty."""
        if measured > self.share or self.share in (0.0, 1.0):
            return ""
        return (
            f"the accuracy is {measured:.2%}, and a model that always says '{self.name}' has "
            f"{self.share:.2%} on this test set: nothing of use was learnt; try more rounds or "
            "another local.lr, and look at the data"
        )


def majority(targets: Tensor, names: Sequence[str]) -> Majority:
    """The largest class of test labels (n,).

    >>> import torch
    >>> majority(torch.tensor([1, 0, 1, 1]), ("dead", "alive"))
    Majority(name='alive', share=0.75, equal=0.5)
    """
    counts = targets.cpu().bincount()
    most = int(counts.argmax())
    name = names[most] if most < len(names) else str(most)
    return Majority(name, int(counts[most]) / len(targets), 1 / int((counts > 0).sum()))


def uninformed_loss(fed: Federation, objective: Objective) -> float:
    """About the loss of a model that knows nothing; infinite if the loss has no known scale."""
    data = fed.data
    if isinstance(objective, CrossEntropy) and data.classes is not None and data.classes > 1:
        return math.log(data.classes)
    if isinstance(objective, SquaredError):  # of a model that says 0
        return float(data.targets.double().square().mean()) or math.inf
    return math.inf


class DivergenceMonitor:
    """Reads every row of a run, in order. It changes no number. first: said after the first row.
    objective: tells the loss of a model that knows nothing, if that is known. used: whether anybody
    uses the common model.
    """

    def __init__(
        self, fed: Federation, first: str, objective: Objective, used: bool = True
    ) -> None:
        tests, classes = fed.data.test_targets, fed.data.classes
        self._majority = Majority("", 0.0, 0.0)
        accuracy = used and exported(fed.metrics.get("accuracy")) == "accuracy"
        if accuracy and classes is not None and classes > 1 and tests is not None and len(tests):
            self._majority = majority(tests, fed.data.class_names)
        self._metrics = fed.metrics
        self._start, self._uninformed = math.inf, uninformed_loss(fed, objective)
        self._worse = 0
        self._warned: set[str] = set()
        self._at_first = [first] if first else []
        self._verdict: list[str] = []

    @property
    def verdict(self) -> dict[str, Any]:
        """Entries of summary.json: the score of the majority's class, and warnings of the end."""
        skewed = self._majority.share > SKEWED * self._majority.equal
        entries = {"majority": self._majority._asdict()} if skewed else {}
        return entries | ({"warnings": self._verdict} if self._verdict else {})

    def see(self, row: Mapping[str, Any], last: bool = False) -> list[str]:
        """-> the warnings after this row; last: of the run."""
        out, self._at_first = self._at_first, []
        loss, measured = row["train_loss"], row.get("test_accuracy")
        if loss is not None:
            self._start = min(loss, self._uninformed) if self._start == math.inf else self._start
            self._worse = self._worse + 1 if loss > WORSE * self._start > 0 else 0
        diverges = ""
        if self._worse:
            diverges = (
                f"the run diverges: train_loss is {loss:.3g}, and was at most {self._start:.3g} "
                "before anything was learnt; lower local.lr, or set local.clip"
            )
        if diverges and (self._worse >= ROUNDS or last) and self._first("worse"):
            out.append(f"round {row['round']}: {diverges}")
        for name, metric in self._metrics.items():
            value = row.get(f"test_{name}")
            if value is not None and math.isnan(value) and self._first(f"nan of {name}"):
                out.append(f"round {row['round']}: metric '{name}' is nan{_why(metric)}")
        poor = self._majority.beats(measured) if last and measured is not None else ""
        self._verdict = [text for text in (diverges, poor) if text]
        return [*out, poor] if poor else out

    def _first(self, what: str) -> bool:
        new = what not in self._warned
        self._warned.add(what)
        return new


def _why(metric: Any) -> str:
    if is_whole(metric):
        return " on the whole set"
    return (
        " in a batch of the evaluation; what is no mean over examples needs all of them: give an "
        "object with update() and compute()"
    )
