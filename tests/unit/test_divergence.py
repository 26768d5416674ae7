"""What is said at the end of a run that has learnt nothing of use."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fedloom import FedAvg
from fedloom.evaluation.monitor import DivergenceMonitor
from fedloom.objectives import CrossEntropy, Objective, SquaredError, UserLoss
from tiny import small


def watch(objective: Objective, **changes: Any) -> DivergenceMonitor:
    """Of a federation with three classes."""
    return DivergenceMonitor(small(FedAvg(), **changes).build().fed, "", objective)


def row(loss: float, **more: Any) -> dict[str, Any]:
    return {"round": 1, "train_loss": loss, **more}


@pytest.mark.parametrize(
    ("objective", "scale"),
    [(CrossEntropy(), math.log(3)), (UserLoss(call=lambda outputs, targets: outputs.sum()), None)],
)
def test_a_loss_that_explodes_in_round_1_is_told_from_one_of_a_large_scale(
    objective: Objective, scale: float | None
) -> None:
    seen = watch(objective)
    assert not seen.see(row(7e21))
    said = seen.see(row(3e5), last=True)
    assert [s.startswith("round 1: the run diverges: train_loss is 3e+05") for s in said] == (
        [] if scale is None else [True]
    )
    assert ("warnings" in seen.verdict) == (scale is not None)
    limit = watch(objective)
    assert not limit.see(row(1000 * (scale or 1.0)), last=True), "a thousand times is not above it"


def test_a_regression_is_measured_by_its_targets() -> None:
    fed = small(FedAvg()).build().fed
    object.__setattr__(fed.data, "targets", torch.tensor([3.0, -4.0]))  # their mean square: 12.5
    for loss, diverges in ((12_500.0, False), (12_501.0, True)):
        assert (
            bool(DivergenceMonitor(fed, "", SquaredError()).see(row(loss), last=True)) == diverges
        )


def test_an_accuracy_that_the_largest_class_has_is_said_at_the_end() -> None:
    fed = small(FedAvg()).build().fed
    object.__setattr__(fed.data, "test_targets", torch.tensor([0, 2, 2, 2]))
    object.__setattr__(fed.data, "class_names", ("none", "some", "alive"))
    seen = DivergenceMonitor(fed, "", CrossEntropy())
    majority = {"name": "alive", "share": 0.75, "equal": 0.5}
    assert not seen.see(row(1.0, test_accuracy=0.5)), "more rounds may help"
    assert not seen.see(row(1.0, test_accuracy=0.76), last=True)
    assert seen.verdict == {"majority": majority}
    (said,) = seen.see(row(1.0, test_accuracy=0.75), last=True)
    assert "the accuracy is 75.00%, and a model that always says 'alive' has 75.00%" in said
    assert seen.verdict == {"majority": majority, "warnings": [said]}


def test_equal_classes_have_no_majority_to_show() -> None:
    fed = small(FedAvg()).build().fed
    object.__setattr__(fed.data, "test_targets", torch.tensor([0, 1, 2, 2]))
    assert "majority" in DivergenceMonitor(fed, "", CrossEntropy()).verdict, (
        "a half is above 1.2 thirds"
    )
    object.__setattr__(fed.data, "test_targets", torch.tensor([0, 1, 2]))
    assert DivergenceMonitor(fed, "", CrossEntropy()).verdict == {}
