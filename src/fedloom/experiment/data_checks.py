"""Of the data before a run: are targets what was meant, classes or numbers? And the data as a run
sees them.
"""

from __future__ import annotations

import copy
import logging
from typing import Any

import torch
from torch import Tensor

from ..data import FederatedData
from ..errors import DataError
from ..federation.attacks import Attack
from ..objectives.base import by_class

_log = logging.getLogger(__name__)
_ROUNDED = 1e-3  # how far from 1 probabilities may sum
_FEW = 20  # different whole numbers: up to so many may be meant as classes


def check_targets(data: FederatedData, loss_inferred: bool) -> None:
    """Raise DataError for classes given as floats in columns, one 1 or probabilities in a row, if
    the loss is inferred from the targets' type. Warn of numbers that may be meant as classes, of
    labels that do not begin at 0, and if most of the data is held out.
    """
    y = data.targets
    _warn_of_values(data, loss_inferred)
    rows = loss_inferred and y.is_floating_point() and y.ndim > 1 and y.shape[1] > 1
    if rows and bool((y >= 0).all()) and bool(((y.sum(1) - 1).abs() < _ROUNDED).all()):
        one = bool((y.amax(1) == 1).all())
        how = (
            "targets.argmax(1)" if one else "the loss: objective=torch.nn.functional.cross_entropy"
        )
        raise DataError(
            f"the targets are floats of shape {list(y.shape)}, and every row "
            f"{'has one 1' if one else 'sums to 1, as probabilities of classes do'}: for classes "
            f"give {how}, for a regression on them objective=SquaredError()"
        )


def _warn_of_values(data: FederatedData, loss_inferred: bool) -> None:
    y = data.targets
    if y.is_floating_point():
        few = loss_inferred and y[0].numel() == 1 and bool((y == y.round()).all())
        values = sorted({*y.flatten().tolist()}) if few else []
        if 1 < len(values) <= _FEW:
            _log.warning(
                "the targets are the real numbers %s, so this is a regression (squared error); for "
                "classes give integers (0 and not 0.0), for a regression objective=squared_error",
                ", ".join(f"{v:.1f}" for v in values[:5]) + (", ..." if len(values) > 5 else ""),
            )
    elif y.ndim == 1 and data.roll is None and (least := _least(data)):
        _log.warning(
            "the labels are %d to %d, and classes are counted from 0: no sample is of class 0, for "
            "which the model has an output; subtract %d from the labels",
            *(least, (data.classes or 1) - 1, least),
        )
    elif data.outcome == "pixels" and data.roll is None:
        present = data.label_counts().sum(0) > 0
        classes = max(len(present), len(data.class_names))
        absent = [c for c in range(classes) if c >= len(present) or not present[c]]
        if absent:
            _log.warning(
                "no training row has a pixel of class %s, so no model can learn it here",
                ", ".join(data.class_names[c] if data.class_names else str(c) for c in absent),
            )


def _least(data: FederatedData) -> int:
    """The lowest label of all."""
    y, tests = data.targets, data.test_targets
    least = int(y.min())
    return least if tests is None or not len(tests) else min(least, int(tests.min()))


def check_classes(outputs: Any, targets: Tensor, data: FederatedData) -> None:
    """Raise DataError if the model's outputs for a few samples do not suit cross-entropy on their
    targets, or are too few for all classes.
    """
    classes = data.classes
    if classes is None:
        raise DataError(
            f"cross-entropy needs integer labels, but the targets are {targets.dtype}; write "
            "classes as integers (0 and not 0.0, targets.long() in Python), or take "
            "objective=squared_error for a regression"
        )
    shape = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    if not isinstance(outputs, Tensor) or outputs.ndim < 2:
        raise DataError(f"cross-entropy needs outputs (batch, classes) of the model, got {shape}")
    logits = by_class(outputs, targets)
    if logits.shape[:1] + logits.shape[2:] != targets.shape:
        raise DataError(
            f"the model gives {shape} for targets of shape {list(targets.shape)}; cross-entropy "
            "needs (batch, classes) for labels, (batch, length, classes) for the tokens of a text, "
            "(batch, classes, height, width) for labels of pixels (batch, height, width)"
            + ": give targets[:, 0]"
            * (targets.ndim > 3 and targets.shape[1] == 1)
        )
    if logits.shape[1] < classes:
        least = _least(data)
        if logits.shape[1] >= classes - least:
            raise DataError(
                f"the labels are {least} to {classes - 1}, but classes are counted from 0: "
                f"subtract {least} from the labels, or give a model with {classes} outputs"
            )
        pixels = (
            f"; if {classes - 1} marks pixels that do not count, give objective.ignore = "
            f"{classes - 1} (CrossEntropy(ignore={classes - 1}) in Python)"
        ) * (data.outcome == "pixels")
        raise DataError(
            f"the model gives {logits.shape[1]} outputs per example, "
            f"but labels go up to {classes - 1}; it needs {classes}{pixels}"
        )


def on_device(
    data: FederatedData, device: torch.device, dtype: torch.dtype | None = None
) -> FederatedData:
    """The data with their arrays on this device, and floating targets of this type; the lists of
    indices stay on the CPU, where clients and batches are drawn.
    """
    kind = dtype if dtype and data.targets.is_floating_point() else data.targets.dtype
    if data.inputs.device == device and data.targets.dtype == kind:
        return data
    out = copy.copy(data)  # checked already
    for name in ("inputs", "targets", "test_inputs", "test_targets"):
        if (array := getattr(data, name)) is not None:
            object.__setattr__(out, name, array.to(device, kind if "targets" in name else None))
    if data.unseen is not None:
        unseen = data.unseen.inputs.to(device), data.unseen.targets.to(device, kind)
        object.__setattr__(out, "unseen", data.unseen._replace(inputs=unseen[0], targets=unseen[1]))
    return out


def flipped(data: FederatedData, attack: Attack | None, seed: int) -> FederatedData:
    """The data as hostile clients have changed their own."""
    if attack is None:
        return data
    return attack.data(data, attack.hostile(data.population, seed, data.client_names))
