"""Metrics. A function of outputs and targets is a mean over examples; it may have weight(targets)
-> (B,) and final(mean). An object with update(outputs, targets) and compute() is measured on the
whole set, on a copy after reset(). Either may have higher_is_better.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data import FederatedData
from ..objectives import Objective, SquaredError
from ..objectives.base import Needs, by_class, example_mean, is_one
from ..objectives.cox import columns

_AT_ONCE = 1000  # events that concordance compares with everybody together


def accuracy(outputs: Any, targets: Any) -> Tensor:
    """1 where the largest output is the target's, else 0: (B, C) and (B,) -> (B,); sequences (B, T,
    C) or (B, C, T) -> their share. One output (B, 1) is the logit of class 1.

    >>> import torch
    >>> accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
    tensor([1., 0.])
    """
    one = is_one(outputs, targets)
    predicted = (outputs[:, 0] > 0).long() if one else by_class(outputs, targets).argmax(1)
    return example_mean((predicted == targets).float(), None)


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
    likely, labels = chances(outputs, targets), targets.reshape(-1).long()
    if likely.shape[1] == 2:
        return (likely[:, 1] - labels).square()
    return (likely - F.one_hot(labels, likely.shape[1])).square().sum(1)


@dataclass(frozen=True)
class Tokens:
    """A mean over the tokens, or pixels, of all examples. ignore: a target that is not counted."""

    ignore: int | None = None
    exported: ClassVar[str] = ""  # what an exported script calls it

    def mask(self, targets: Tensor) -> Tensor | None:
        """Mask of the targets that count, of their shape; None: all of them."""
        return None if self.ignore is None else targets != self.ignore

    def weight(self, targets: Tensor) -> Tensor:
        """How many tokens an example has, (B,)."""
        mask = self.mask(targets)
        if mask is None:
            return targets.new_full((len(targets),), targets[0].numel())
        return mask.reshape(len(targets), -1).sum(1)


class TokenAccuracy(Tokens):
    """The share of tokens, or pixels, whose largest output is the target's."""

    exported = "token accuracy"

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """-> each example's share (B,)."""
        right = (by_class(outputs, targets).argmax(1) == targets).float()
        return example_mean(right, self.mask(targets))


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
        return example_mean(each, self.mask(targets))

    @staticmethod
    def final(mean: float) -> float:
        """The mean loss of a token -> the perplexity; infinite where a float cannot hold it."""
        return math.exp(mean) if mean < 700 else math.inf


class Concordance:
    """Harrell's concordance index on a whole set, are those whose event comes first those with the
    higher risk: the share of comparable pairs in which the one with the earlier event has the
    higher output; equal outputs count half.

    A pair is comparable if the earlier time is that of an event; of two at the same time, an event
    comes before a censored example, and two events are not compared (as lifelines counts them).
    Targets are (n, 2), time and event; the outputs are risks.

    >>> metric = Concordance()
    >>> metric.update(torch.tensor([2.0, 3.0, 1.0]), torch.tensor([[1.0, 1], [2, 1], [3, 0]]))
    >>> round(metric.compute(), 4)
    0.6667
    """

    higher_is_better = True

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        self._batches: list[tuple[Tensor, ...]] = []

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Add one batch: outputs (B,) or (B, 1), targets (B, 2)."""
        self._batches.append((outputs.detach().reshape(-1), *columns(outputs, targets)))

    def compute(self) -> float:
        """The index; NaN where no pair is comparable."""
        if not self._batches:
            return math.nan
        risks, times, events = map(torch.cat, zip(*self._batches, strict=True))
        right, pairs = 0.0, 0
        for some in torch.split((events > 0).nonzero()[:, 0], _AT_ONCE):
            later = (times > times[some, None]) | (
                (times == times[some, None]) & (events == 0)
            )  # (k, n)
            gap = risks[some, None] - risks
            right += float(((gap > 0) & later).sum()) + 0.5 * float(((gap == 0) & later).sum())
            pairs += int(later.sum())
        return right / pairs if pairs else math.nan


class Overlap:
    """How well the predicted pixels of a class are the true ones, on a whole set: the mean over the
    classes, without those that neither the truth nor the prediction has.

    kind "dice": 2 |P and T| / (|P| + |T|); "iou": |P and T| / |P or T|, the Jaccard index, with P
    and T the pixels of a class as predicted and in truth, of all examples together. ignore: a
    target that is not counted. torchmetrics has both, but its mean is of the second class alone if
    there are two, and it is an extra.

    >>> metric = Overlap("iou")
    >>> outputs = torch.tensor([[[[2.0, 2.0, 0.0]], [[0.0, 0.0, 1.0]], [[-1.0, -1.0, -1.0]]]])
    >>> metric.update(outputs, torch.tensor([[[0, 1, 1]]]))
    >>> metric.compute()  # 1/2 of both classes; nobody has the third
    0.5
    """

    higher_is_better = True

    def __init__(self, kind: str, ignore: int | None = None) -> None:
        self.kind, self.ignore = kind, ignore
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        self._pairs = torch.zeros(0, 0, dtype=torch.int64)  # pixels (C, C): truth, prediction

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Add one batch: outputs (B, C, ...), targets (B, ...)."""
        logits = by_class(outputs, targets)
        classes, predicted = logits.shape[1], logits.argmax(1)
        if self.ignore is not None:
            mask = targets != self.ignore
            targets, predicted = targets[mask], predicted[mask]
        pairs = torch.bincount((targets * classes + predicted).flatten(), minlength=classes**2)
        pairs = pairs.view(classes, classes)
        self._pairs = self._pairs + pairs if len(self._pairs) else pairs

    def compute(self) -> float:
        """The mean; NaN where no pixel counts."""
        both = self._pairs.diagonal().double()
        sizes = (self._pairs.sum(0) + self._pairs.sum(1)).double()
        present = sizes > 0
        parts = 2 * both / sizes if self.kind == "dice" else both / (sizes - both)
        return float(parts[present].mean())


def exported(metric: Any) -> str:
    """What an exported script calls a metric that it can measure; empty for others."""
    if metric is accuracy or metric is brier:
        return str(metric.__name__)
    return str(getattr(metric, "exported", ""))


def exported_metric(metrics: Mapping[str, Any], objective: Objective) -> dict[str, Any] | None:
    """The first metric of a run that an exported script can measure, by its name and kind, or its
    loss if it has no metric, fit for JSON. None where all are others, such as a user's functions.

    >>> from fedloom.objectives import SquaredError
    >>> exported_metric({"accuracy": accuracy}, SquaredError()), exported_metric({}, SquaredError())
    ({'name': 'accuracy', 'kind': 'accuracy'}, {'name': 'loss', 'kind': 'squared error'})
    """
    for name, metric in metrics.items():
        if kind := exported(metric):
            more = {"ignore": metric.ignore} if isinstance(metric, Tokens) else {}
            return {"name": name, "kind": kind, **more}
    squared = not metrics and type(objective) is SquaredError
    return {"name": "loss", "kind": "squared error"} if squared else None


def default_metrics(objective: Objective, data: FederatedData) -> dict[str, Any]:
    """Accuracy if the targets are labels, also of pixels, perplexity and accuracy if they are the
    tokens of a text, concordance for times to an event, none for numbers: there the loss is the
    measure.
    """
    if objective.needs is Needs.SURVIVAL:
        return {"concordance": Concordance()}
    if data.classes is None:
        return {}
    if data.targets.ndim == 1:
        return {"accuracy": accuracy}
    ignore = getattr(objective, "ignore", None)
    if data.outcome == "pixels":
        return {"accuracy": TokenAccuracy(data.ignored)}
    return {"perplexity": Perplexity(ignore), "accuracy": TokenAccuracy(ignore)}
