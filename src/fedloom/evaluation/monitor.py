"""Warnings about a run that diverges or has learnt nothing, each once, only without doubt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from ..engines.scores import is_whole
from ..federation.federation import Federation
from ..objectives import CrossEntropy, Objective, SquaredError
from .metrics import exported

WORSE = 1000.0  # times the loss at the start: above that,
ROUNDS = 3  # for this many rounds in a row, a run diverges
SKEWED = 1.2  # times what equally many samples of each class give: then the majority is shown


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
