"""What is said before round 1, and at the end of a run that has learnt nothing of use."""

import math
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedloom import Experiment, FedAvg, Local
from fedloom.data import from_clients
from fedloom.evaluation.stopping import DivergenceMonitor
from fedloom.experiment.probe import probe
from fedloom.objectives import OBJECTIVES, CrossEntropy, SquaredError, UserLoss
from tiny import clusters, small, weights


def net(*more):
    return nn.Sequential(nn.Linear(5, 4), *more, nn.Linear(4, 3))


class Mixed(nn.Linear):
    """Mixup with a number of numpy's and one of Python's."""

    def __init__(self):
        super().__init__(5, 3)

    def forward(self, x):
        if self.training:
            x = np.random.beta(0.4, 0.4) * x + random.random() * x[torch.randperm(len(x))]
        return super().forward(x)


class OwnGenerator(Mixed):
    draw = np.random.default_rng()

    def forward(self, x):
        return nn.Linear.forward(self, x * self.draw.uniform(0.5, 1.5))


class Remembers(Mixed):
    """Adds what it saw last, as a recurrent net that keeps its state."""

    last = None

    def forward(self, x):
        out = nn.Linear.forward(self, x)
        before, self.last = self.last, out.mean(0).detach()
        return out if before is None else out + before


class Margin(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 3))

    def forward(self, outputs, targets):
        return F.cross_entropy(outputs @ self.w, targets)


def hooked():
    module = net()
    module[0].weight.register_hook(lambda g: 0 * g)
    return module


def run(model=net, **changes):
    given = {"data": clusters(), "rounds": 2, "seed": 5, "engine": "serial", "device": "cpu"}
    local = Local(batch=4, lr=0.05)
    return Experiment(algorithm=FedAvg(), model=model, local=local, **(given | changes))


WORDS = "twice as large", "trainable values of its own", "two passes over one batch", "hooks on its"


def remarks(caplog):
    return sum(word in caplog.text for word in WORDS)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"objective": nn.CrossEntropyLoss(reduction="sum")}, "twice as large: it is a sum"),
        ({"objective": Margin(), "metrics": "accuracy"}, "has 9 trainable values of its own"),
        ({"model": OwnGenerator}, "two passes over one batch with one seed differ"),
        ({"model": Remembers}, "two passes over one batch with one seed differ"),
        ({"model": hooked}, "has gradient hooks on its parameters"),
        ({"model": hooked()}, "has gradient hooks on its parameters"),
    ],
)
def test_what_a_run_would_mistake_is_said_before_round_1(parts, words, caplog):
    run(**parts).run()
    assert words in caplog.text and remarks(caplog) == 1


def test_numpys_and_pythons_numbers_follow_from_the_seed(caplog):
    """In the model, its start too, and in every round; nobody else's generator moves."""

    class Drawn(Mixed):
        def __init__(self):
            super().__init__()
            self.weight.data += float(np.random.normal())

    ends = []
    for theirs, seed in ((3, 5), (4, 5), (4, 6)):
        np.random.seed(theirs)
        before = np.random.get_state()[1].tolist(), random.getstate()
        ends.append(weights(run(Drawn, seed=seed).run().model))
        assert (np.random.get_state()[1].tolist(), random.getstate()) == before
    assert ends[0] == ends[1] != ends[2] and not remarks(caplog)


@pytest.mark.parametrize(
    "parts",
    [
        {"model": lambda: net(nn.Dropout(0.5))},
        {"model": lambda: net(nn.GroupNorm(2, 4))},
        {"model": lambda: net(nn.BatchNorm1d(4)), "data": clusters(sizes=(4, 8, 12))},
        {"model": lambda: nn.Sequential(nn.Linear(5, 4).requires_grad_(False), nn.Linear(4, 3))},
        *({"objective": OBJECTIVES[name]()} for name in ("fedlc", "fedntd", "moon")),
        {"data": from_clients([(torch.randn(2, 5), torch.tensor([0, 1]))])},
    ],
)
def test_usual_models_and_objectives_are_left_alone(parts, caplog):
    run(**parts, rounds=1).run()
    assert not remarks(caplog)


def test_the_passes_cost_less_than_a_round():
    calls = []

    class Counted(nn.Linear):
        def forward(self, x):
            calls.append(len(x))
            return super().forward(x)

    loop = run(lambda: Counted(5, 3)).build()
    calls.clear()
    probe(loop.net, Counted(5, 3), loop.fed.data, loop.plan.objective)
    assert sum(calls) <= 8 * 4 and len(calls) <= 7


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
