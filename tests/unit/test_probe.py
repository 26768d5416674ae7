"""The passes before round 1: what they notice, and that they change nothing."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedloom import Experiment, FedAvg, Local
from fedloom.data import from_clients
from fedloom.experiment.probe import probe
from fedloom.objectives import OBJECTIVES
from tiny import clusters, weights


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
