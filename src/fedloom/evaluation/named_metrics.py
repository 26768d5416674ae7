"""Metrics by name: fedloom's own, a user's by their file, and those of torchmetrics for classes or
numbers. Whether classes are two or many, and how many, follows from the run's data and the model's
outputs.
"""

from __future__ import annotations

import importlib
import inspect
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.extras import install
from ..core.own_parts import check_pair, explained, find, is_own, short, split
from ..data import FederatedData
from ..engines.scores import is_whole
from ..errors import ConfigError, did_you_mean
from ..objectives import Objective
from .declared import DECLARED, Declared
from .metrics import Overlap, accuracy, brier, chances, default_metrics
from .threshold import DecidedAccuracy, Threshold

_OWN = [name for name, declared in DECLARED.items() if not declared.class_name]
# torchmetrics counts a class without positive or negative examples as 0 in their mean, and as 0 in
# the mean recall once the model predicts it
_RANKED = ("AUROC", "AveragePrecision")
_CORRELATION = "MatthewsCorrCoef"  # 0 in scikit-learn where all examples are of one class
_AVERAGED = "macro"  # over the classes: "micro", the default of some, is the accuracy


def names_of(text: str) -> tuple[str, ...]:
    """The names in a text with commas.

    >>> names_of("auc, f1")
    ('auc', 'f1')
    """
    return tuple(name.strip() for name in text.split(",") if name.strip())


def column_of(name: str) -> str:
    """What a metric's columns are called.

    >>> column_of("auc"), column_of("/home/me/my_metrics.py:sensitivity")
    ('auc', 'sensitivity')
    """
    return split(name)[1] if is_own(name) else name


def check_name(name: str) -> None:
    """Raise ConfigError for a name of no metric of fedloom, torchmetrics or a loaded file."""
    if is_own(name):
        _by_file(name)
    elif name not in _OWN:
        _kind_of(name)


def _by_file(name: str) -> Any:
    """A user's own metric: a function, an object, or one of a class that needs no arguments. Raises
    ConfigError.
    """
    metric = find(name)
    if isinstance(metric, type):
        with explained(name):
            metric = metric()
    if not (callable(metric) or is_whole(metric)):
        raise ConfigError(
            f"metric '{short(name)}' is of the type {type(metric).__name__}; give a function "
            "f(outputs, targets), or a class with update(outputs, targets) and compute()"
        )
    check_pair(f"metric '{short(name)}'", metric.update if is_whole(metric) else metric)
    return metric


def by_name(
    metrics: Mapping[str, Any] | None,
    objective: Objective,
    data: FederatedData,
    threshold: Threshold | None = None,
) -> dict[str, Any]:
    """The same metrics with objects in place of names; None: those that follow from the data.
    threshold: of a binary outcome. Raises ConfigError for a name that these data have no use for.
    """
    usual, threshold = default_metrics(objective, data), threshold or Threshold()
    if not threshold.usual:
        if not _binary(data):
            targets = f"{data.classes} classes" if data.outcome == "classes" else data.outcome
            raise ConfigError(
                f"evaluate.threshold = {threshold.rule} is for two classes, and the targets are "
                f"{targets}"
            )
        if usual.get("accuracy") is accuracy:
            usual["accuracy"] = DecidedAccuracy(threshold)
    if metrics is None:
        return usual
    result = dict(metrics)
    for column, name in metrics.items():
        if isinstance(name, str):
            result[column] = usual.get(name) or _make_metric(name, objective, data, threshold)
    return result


def _binary(data: FederatedData) -> bool:
    marks = data.outcome == "marks" and data.targets[:1].numel() == 1
    return marks or (data.outcome == "classes" and data.classes == 2)


def _make_metric(name: str, objective: Objective, data: FederatedData, threshold: Threshold) -> Any:
    """A metric that these data do not have of themselves. Raises ConfigError."""
    if is_own(name):
        return _by_file(name)
    columns, marks = data.targets[:1].numel(), data.outcome == "marks"
    if name == "brier" and (data.outcome == "classes" or (marks and columns == 1)):
        return brier
    if name in ("dice", "iou") and data.outcome == "pixels":
        return Overlap(name, data.ignored)
    if name in DECLARED and (refusal := DECLARED[name].refusal):
        raise ConfigError(f"metrics: '{name}' {refusal}")
    kind, labels = _kind_of(name), data.classes is not None
    if kind.classes and not (labels or marks):
        raise ConfigError(f"metrics: '{name}' is for classes, and the targets are numbers")
    if not kind.classes and labels:
        raise ConfigError(f"metrics: '{name}' is for numbers, and the targets are classes")
    several = columns if marks and columns > 1 else 0
    exported = "auc" if kind.name == "AUROC" and _binary(data) else ""
    ignore = getattr(objective, "ignore", data.ignored)
    return TorchMetric(name, kind, several, ignore, threshold, exported)


class _Kind(NamedTuple):
    """A class of torchmetrics, what it is given, and whether it is for classes."""

    name: str
    make: Callable[..., Any]
    options: Mapping[str, Any]
    classes: bool


def _kind_of(name: str) -> _Kind:
    """What a name stands for in torchmetrics. Raises ConfigError."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of its optional parts
            lib = importlib.import_module("torchmetrics")
    except ImportError:
        raise ConfigError(
            f"metrics: '{name}' is none of fedloom's own ({', '.join(_OWN)}), and torchmetrics, "
            f"which may have it, is not installed; {install('metrics')}"
        ) from None
    kinds = {n: getattr(lib, n) for n in lib.__all__ if inspect.isclass(getattr(lib, n, 0))}
    fields = {n: kind.__module__.split(".")[1] for n, kind in kinds.items()}
    usable = [n for n, field in fields.items() if field in ("classification", "regression")]
    match = {n.lower(): n for n in usable}.get(name.replace("_", "").lower(), "")
    declared = DECLARED.get(name, Declared(None))
    kind = declared.class_name or match
    if kind not in usable:
        hint = did_you_mean(name, [*DECLARED, *usable])
        raise ConfigError(
            f"metrics: neither fedloom nor torchmetrics has a metric '{name}'; {hint}"
        )
    return _Kind(kind, kinds[kind], declared.options, fields[kind] == "classification")


class TorchMetric:
    """A metric of torchmetrics on a whole set. It is made at the first batch, which tells how many
    outputs the model has: with two it is the metric of the second class.

    several: labels of an example, 0 for one class. ignore: a target that is not counted.
    threshold: of two classes, for metrics of classes that are decided for. exported: what an
    exported script calls it, if it has it.
    """

    def __init__(
        self,
        name: str,
        kind: _Kind,
        several: int,
        ignore: int | None,
        threshold: Threshold,
        exported: str,
    ) -> None:
        self._kind, self._several, self._ignore = kind, several, ignore
        self._threshold, self.exported = threshold, exported
        maker = kind.make.__new__ if kind.classes else kind.make
        self._arguments = frozenset(inspect.signature(maker).parameters)
        # whether the values of the classes are averaged here
        self._by_class = kind.name in _RANKED or name == "balanced_accuracy"
        try:
            self.higher_is_better = self._make_metric(2).higher_is_better
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"metrics: '{name}' cannot be made by its name alone ({error}); in Python give "
                f"metrics={{'{name}': torchmetrics.{kind.name}(...)}}"
            ) from None
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        self._metric: Any = None
        self._positive, self._count = torch.zeros(0), 0  # examples of every class, and in all

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Add one batch: outputs (B, C), or (B,) and (B, 1) of two classes; targets as data have
        them.
        """
        predictions, labels, classes = self._prepared(outputs.detach(), targets)
        if self._metric is None:
            self._metric = self._make_metric(classes)
            self._positive = torch.zeros(max(classes, 1))
        self._metric.update(predictions, labels)
        if self._by_class or self._kind.name == _CORRELATION:
            self._count_classes(labels)

    def compute(self) -> float | Tensor:
        """The value, as scikit-learn's: a class without examples counts in no mean of recalls or
        areas. NaN for an area where no class has positive and negative examples.
        """
        if self._metric is None:
            return math.nan
        with warnings.catch_warnings(action="ignore"):  # of classes without examples
            value: Tensor = self._metric.compute()
        present = self._positive > 0
        if self._kind.name == _CORRELATION and not self._several:
            one_class = not present.any() or self._positive.max() == self._count
            return 0.0 if one_class else value
        if not self._by_class:
            return value
        if self._kind.name in _RANKED:
            present &= self._positive < self._count
        return value.reshape(-1)[present].mean() if present.any() else math.nan

    def _prepared(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, int]:
        """Predictions and targets as torchmetrics takes them, and the number of classes."""
        if not self._kind.classes:
            same = outputs.numel() == targets.numel()
            return (outputs.reshape(targets.shape) if same else outputs), targets, 0
        if self._several:
            return outputs.sigmoid().reshape(targets.shape), targets.long(), self._several
        likely = chances(outputs, targets)
        if targets.is_floating_point() or outputs.numel() == targets.numel():
            targets = targets.long().reshape(-1)
        if not self._threshold.usual and "threshold" in self._arguments:  # not of probabilities
            likely = F.one_hot(self._threshold.places(likely), 2).to(likely.dtype)
        two = likely.shape[1] == 2 and "task" not in self._kind.options
        return (likely[:, 1], targets, 1) if two else (likely, targets, likely.shape[1])

    def _make_metric(self, classes: int) -> Any:
        options = dict(self._kind.options)
        if self._kind.classes:
            one = {"task": "binary" if classes == 1 else "multiclass", "num_classes": classes}
            several = {"task": "multilabel", "num_labels": self._several}
            options |= several if self._several else one
            if "average" in self._arguments:
                options.setdefault("average", "none" if self._by_class else _AVERAGED)
            if self._ignore is not None and "ignore_index" in self._arguments:
                options["ignore_index"] = self._ignore
        with warnings.catch_warnings(action="ignore"):  # of the memory that it will take
            return self._kind.make(**options)

    def _count_classes(self, labels: Tensor) -> None:
        classes = len(self._positive)
        if not self._several and self._ignore is not None:
            labels = labels[labels != self._ignore]
        if self._several or classes == 1:
            rows = labels.reshape(-1, classes)
            self._positive += rows.sum(0)
        else:
            rows = labels.reshape(-1)
            self._positive += torch.bincount(rows, minlength=classes)
        self._count += len(rows)
