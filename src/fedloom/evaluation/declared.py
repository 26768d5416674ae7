"""The metrics that have names: direction, use, and who computes them. It needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

# what a metric of a whole set is where each site measures its own rows and sends its value alone
OF_SITES = "mean of the sites, weighted by rows"


class Declared(NamedTuple):
    """A metric by its name. higher_is_better: None where torchmetrics says it. class_name: a class
    of torchmetrics, "" for one of fedloom, with these options. refusal: of fedloom's own, what is
    said where the targets are others. unit: "share" is shown in per cent.
    """

    higher_is_better: bool | None
    class_name: str = ""
    options: Mapping[str, Any] = {}
    refusal: str = ""
    unit: str = ""


DECLARED = {
    "accuracy": Declared(True, unit="share"),
    "perplexity": Declared(False, refusal="is for texts, and the targets are no tokens"),
    "brier": Declared(False, refusal="is for classes, one of an example"),
    "dice": Declared(True, refusal="is for labels of pixels (n, H, W), and the targets are others"),
    "iou": Declared(True, refusal="is for labels of pixels (n, H, W), and the targets are others"),
    "concordance": Declared(
        True,
        refusal="is for times and events: give objective=cox, and both columns as targets",
    ),
    "auc": Declared(True, "AUROC"),
    "f1": Declared(True, "F1Score"),
    # the mean recall, of two classes too
    "balanced_accuracy": Declared(True, "Recall", {"task": "multiclass"}),
    "hamming_distance": Declared(None, "HammingDistance", {"average": "micro"}),
    "mae": Declared(False, "MeanAbsoluteError"),
    "mse": Declared(False, "MeanSquaredError"),
    "rmse": Declared(False, "MeanSquaredError", {"squared": False}),
    "r2": Declared(True, "R2Score"),
}
# names of users' own functions and of the loss
_USUAL = {"auroc": True, "loss": False, "error": False, "nll": False}
_DIRECTIONS = _USUAL | {name: metric.higher_is_better for name, metric in DECLARED.items()}


def higher_is_better(name: str, metric: Any = None) -> bool | None:
    """The metric's own attribute, or what is known of its name; None: unknown.

    >>> [higher_is_better(name) for name in ("accuracy", "mae", "error_rate")]
    [True, False, None]
    """
    value = getattr(metric, "higher_is_better", None)
    return _DIRECTIONS.get(name) if value is None else bool(value)


def unit_of(name: str) -> str:
    """The unit of a metric, "" for most.

    >>> unit_of("accuracy"), unit_of("auc")
    ('share', '')
    """
    return DECLARED[name].unit if name in DECLARED else ""
