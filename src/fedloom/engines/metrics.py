"""Metrics: any function of outputs and targets, measured beside the loss.

A function is a mean over examples, and is called batch by batch. It may also have `weight(targets)
-> (B,)`, how much each example counts in the mean, and `final(mean) -> float`, the value made from
the mean. An object with `update(outputs, targets)` and `compute()`, as in torchmetrics, is measured
on the whole set: on a copy of it, after reset() if it has that. Either may have an attribute
`higher_is_better`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data import FederatedData
from ..errors import DataError
from ..objectives import Objective, SquaredError
from ..objectives.base import Needs, by_class, example_mean, is_one
from .author_rules import noted
from .concordance import Concordance


def is_whole(metric: Any) -> bool:
    """True if a metric is an object that is measured on a whole set."""
    return all(callable(getattr(metric, name, None)) for name in ("update", "compute"))


class Whole:
    """Copies of the metrics that are measured on a whole set, for one set."""

    def __init__(self, metrics: Mapping[str, Any]) -> None:
        self._own = {k: copy.deepcopy(m) for k, m in metrics.items() if is_whole(m)}
        for metric in self._own.values():
            if callable(reset := getattr(metric, "reset", None)):
                reset()

    def update(self, outputs: Any, targets: Tensor) -> None:
        """Add one batch, on the CPU, because such objects keep what they gather."""
        given = outputs.cpu() if isinstance(outputs, Tensor) else outputs, targets.cpu()
        for name, metric in self._own.items():
            noted(f"metric '{name}'", metric.update, *given)

    def values(self) -> dict[str, float]:
        """{name: value}. Raises DataError for a value that is no number."""
        called = {k: noted(f"metric '{k}'", metric.compute) for k, metric in self._own.items()}
        return {name: _number(name, value) for name, value in called.items()}


def _number(name: str, value: Any) -> float:
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value)
    if isinstance(value, Real):
        return float(value)
    got = f"shape {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
    raise DataError(f"metric '{name}': compute() gave {got}; it must give one number")


def accuracy(outputs: Any, targets: Any) -> Tensor:
    """1 where the largest output is the target's, else 0: (B, C) and (B,) -> (B,); sequences (B, T,
    C) or (B, C, T) -> their share. One output (B, 1) is the logit of class 1.

    >>> import torch
    >>> accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
    tensor([1., 0.])
    """
    one = is_one(outputs, targets)
    told = (outputs[:, 0] > 0).long() if one else by_class(outputs, targets).argmax(1)
    right: Tensor = (told == targets).float()
    return right if right.ndim == 1 else right.flatten(1).mean(1)


def chances(outputs: Any, targets: Tensor) -> Tensor:
    """Probabilities of classes (B, C). One output is the logit of the second class of two.

    >>> chances(torch.tensor([0.0]), torch.tensor([1])).tolist()
    [[0.5, 0.5]]
    """
    if targets.is_floating_point() or outputs.numel() == targets.numel():
        one = outputs.sigmoid().reshape(-1)
        return torch.stack([1 - one, one], 1)
    return by_class(outputs, targets).softmax(1)


def brier(outputs: Any, targets: Tensor) -> Tensor:
    """The Brier score (B,) of class labels (B,): (p - y)^2 of two classes, the sum over the classes
    of more. Source: Brier, Monthly Weather Review 78 (1950), where two classes have twice that.

    >>> brier(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
    tensor([0.2500])
    """
    likely, wanted = chances(outputs, targets), targets.reshape(-1).long()
    if likely.shape[1] == 2:
        return (likely[:, 1] - wanted).square()
    return (likely - F.one_hot(wanted, likely.shape[1])).square().sum(1)


@dataclass(frozen=True)
class Tokens:
    """A mean over the tokens of all examples. ignore: a target that is not counted."""

    ignore: int | None = None
    exported: ClassVar[str] = ""  # what an exported script calls it

    def told(self, targets: Tensor) -> Tensor | None:
        """Mask of the targets that count, of their shape; None: all of them."""
        return None if self.ignore is None else targets != self.ignore

    def weight(self, targets: Tensor) -> Tensor:
        """How many tokens an example has, (B,)."""
        told = self.told(targets)
        if told is None:
            return targets.new_full((len(targets),), targets[0].numel())
        return told.reshape(len(targets), -1).sum(1)


class TokenAccuracy(Tokens):
    """The share of tokens whose largest output is the target's."""

    exported = "token accuracy"

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """-> each example's share (B,)."""
        right = (by_class(outputs, targets).argmax(1) == targets).float()
        return example_mean(right, self.told(targets))


class Perplexity(Tokens):
    """exp of the mean cross-entropy of a token, in nats: the number of equally likely tokens that a
    model with this loss would guess among.

    >>> import torch
    >>> each = Perplexity()(torch.zeros(2, 3, 5), torch.zeros(2, 3, dtype=torch.int64))
    >>> round(Perplexity.final(float(each.mean())), 4)
    5.0
    """

    exported = "perplexity"

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """-> each example's mean loss per token (B,)."""
        each = F.cross_entropy(by_class(outputs, targets), targets, reduction="none")
        return example_mean(each, self.told(targets))

    @staticmethod
    def final(mean: float) -> float:
        """The mean loss of a token -> the perplexity; infinite where a float cannot hold it."""
        return math.exp(mean) if mean < 700 else math.inf


def exported(metric: Any) -> str:
    """What an exported script calls a metric that it can measure; empty for others."""
    if metric is accuracy or metric is brier:
        return str(metric.__name__)
    return str(getattr(metric, "exported", ""))


def told(metrics: Mapping[str, Any], objective: Objective) -> dict[str, Any] | None:
    """The first metric of a run that an exported script can measure, by its name and kind, or its
    loss if it has no metric, fit for JSON. None where all are others, such as a user's functions.

    >>> from fedloom.objectives import SquaredError
    >>> told({"accuracy": accuracy}, SquaredError()), told({}, SquaredError())
    ({'name': 'accuracy', 'kind': 'accuracy'}, {'name': 'loss', 'kind': 'squared error'})
    """
    for name, metric in metrics.items():
        if kind := exported(metric):
            more = {"ignore": metric.ignore} if isinstance(metric, Tokens) else {}
            return {"name": name, "kind": kind, **more}
    squared = not metrics and type(objective) is SquaredError
    return {"name": "loss", "kind": "squared error"} if squared else None


def default_metrics(objective: Objective, data: FederatedData) -> dict[str, Any]:
    """Accuracy if the targets are labels, perplexity and accuracy if they are the tokens of a text,
    concordance for times to an event, none for numbers: there the loss is the measure.
    """
    if objective.needs is Needs.SURVIVAL:
        return {"concordance": Concordance()}
    if data.classes is None:
        return {}
    if data.targets.ndim == 1:
        return {"accuracy": accuracy}
    ignore = getattr(objective, "ignore", None)
    return {"perplexity": Perplexity(ignore), "accuracy": TokenAccuracy(ignore)}
