"""What is said at the end of a run that has learnt nothing of use."""

import math

import pytest
import torch

from fedloom import FedAvg
from fedloom.evaluation.stopping import DivergenceMonitor
from fedloom.objectives import CrossEntropy, SquaredError, UserLoss
from tiny import small


def watch(objective, **data):
    """Of a federation with three classes, whose data may be changed."""
    fed = small(FedAvg()).build().fed
    for name, value in data.items():
        object.__setattr__(fed.data, name, value)
    return DivergenceMonitor(fed, "", objective)


def row(loss, **more):
    return {"round": 1, "train_loss": loss, **more}


@pytest.mark.parametrize(
    ("objective", "scale"),
    [(CrossEntropy(), math.log(3)), (UserLoss(call=lambda outputs, targets: outputs.sum()), None)],
)
def test_a_loss_that_explodes_in_round_1_is_told_from_one_of_a_large_scale(objective, scale):
    monitor = watch(objective)
    assert not monitor.see(row(7e21))
    said = monitor.see(row(3e5), last=True)
    start = "round 1: the run diverges: train_loss is 3e+05"
    assert [s.startswith(start) for s in said] == ([] if scale is None else [True])
    assert ("warnings" in monitor.verdict) == (scale is not None)
    thousandfold = row(1000 * (scale or 1.0))
    assert not watch(objective).see(thousandfold, last=True), "a thousand times is not above it"


@pytest.mark.parametrize(("loss", "diverges"), [(12_500.0, False), (12_501.0, True)])
def test_a_regression_is_measured_by_its_targets(loss, diverges):
    monitor = watch(SquaredError(), targets=torch.tensor([3.0, -4.0]))  # their mean square: 12.5
    assert bool(monitor.see(row(loss), last=True)) == diverges


def test_an_accuracy_that_the_largest_class_has_is_said_at_the_end():
    names = ("none", "some", "alive")
    seen = watch(CrossEntropy(), test_targets=torch.tensor([0, 2, 2, 2]), class_names=names)
    majority = {"name": "alive", "share": 0.75, "equal": 0.5}
    assert not seen.see(row(1.0, test_accuracy=0.5)), "more rounds may help"
    assert not seen.see(row(1.0, test_accuracy=0.76), last=True)
    assert seen.verdict == {"majority": majority}
    (said,) = seen.see(row(1.0, test_accuracy=0.75), last=True)
    assert "the accuracy is 75.00%, and a model that always says 'alive' has 75.00%" in said
    assert seen.verdict == {"majority": majority, "warnings": [said]}
    half = watch(CrossEntropy(), test_targets=torch.tensor([0, 1, 2, 2])).verdict
    assert "majority" in half, "a half is above 1.2 thirds"
    assert watch(CrossEntropy(), test_targets=torch.tensor([0, 1, 2])).verdict == {}
