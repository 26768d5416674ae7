"""The passes before round 1: what they notice, and that they change nothing."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedloom import Experiment, FedAvg, Local
from fedloom.data import from_clients
from fedloom.objectives import OBJECTIVES
from tiny import clusters


def net(*more: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), *more, nn.Linear(4, 3))


class Mixed(nn.Module):
    """Mixup with a number of numpy's and one of Python's."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            x = np.random.beta(0.4, 0.4) * x + random.random() * x[torch.randperm(len(x))]
        return self.a(x)


class OwnGenerator(Mixed):
    def __init__(self) -> None:
        super().__init__()
        self.draw = np.random.default_rng()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x * self.draw.uniform(0.5, 1.5))


class Remembers(Mixed):
    """Adds what it saw last, as a recurrent net that keeps its state."""

    last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.a(x)
        mean = out.mean(0).detach()
        self.last, before = mean, self.last
        return out if before is None else out + before


class Margin(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 3))

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(outputs @ self.w, targets)


def hooked() -> nn.Module:
    module = net()
    module[0].weight.register_hook(lambda g: 0 * g)
    return module


def run(model=net, objective=None, **changes) -> Experiment:
    given = {"data": clusters(), "rounds": 2, "seed": 5, "engine": "serial", "device": "cpu"}
    local = Local(batch=4, lr=0.05)
    return Experiment(
        algorithm=FedAvg(), model=model, objective=objective, local=local, **(given | changes)
    )


WORDS = "twice as large", "trainable values of its own", "two passes over one batch", "hooks on its"


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
    assert words in caplog.text
    assert sum(w in caplog.text for w in WORDS) == 1


def test_numpys_and_pythons_numbers_follow_from_the_seed(caplog):
    """In the model, its start too, and in every round; nobody else's generator moves."""

    class Drawn(Mixed):
        def __init__(self) -> None:
            super().__init__()
            self.a.weight.data += float(np.random.normal())

    np.random.seed(3)
    before = np.random.get_state()[1].tolist(), random.getstate()
    one = run(Drawn).run()
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before
    np.random.seed(4)
    other = run(Drawn).run()
    assert torch.equal(one.model.a.weight, other.model.a.weight)
    longer = run(Drawn, seed=6).run()
    assert not torch.equal(one.model.a.weight, longer.model.a.weight)
    assert not any(w in caplog.text for w in WORDS)


USUAL = {
    "dropout": lambda: net(nn.Dropout(0.5)),
    "batch norm": lambda: net(nn.BatchNorm1d(4)),
    "group norm": lambda: net(nn.GroupNorm(2, 4)),
    "frozen": lambda: nn.Sequential(nn.Linear(5, 4).requires_grad_(False), nn.Linear(4, 3)),
}


@pytest.mark.parametrize("model", USUAL)
def test_usual_models_are_left_alone_and_have_the_bits_that_they_had(model, caplog, monkeypatch):
    given = {"model": USUAL[model], "data": clusters(sizes=(4, 8, 12))}
    one = run(**given).run()
    assert not any(w in caplog.text for w in WORDS)
    monkeypatch.setattr("fedloom.experiment.experiment.probe", lambda *_: [])
    other = run(**given).run()
    for a, b in zip(
        one.model.state_dict().values(), other.model.state_dict().values(), strict=True
    ):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    "name", [n for n in OBJECTIVES if n in ("fedlc", "fedntd", "moon", "cross_entropy")]
)
def test_objectives_of_fedloom_are_left_alone(name, caplog):
    run(objective=OBJECTIVES[name](), rounds=1).run()
    assert not any(w in caplog.text for w in WORDS)


def test_a_model_that_the_passes_cannot_call_is_left_to_the_run(caplog):
    """One example and a batch norm: the run says that itself, or does without."""
    data = from_clients([(torch.randn(2, 5), torch.tensor([0, 1]))])
    run(data=data, rounds=1).run()
    assert not any(w in caplog.text for w in WORDS)


def test_the_passes_cost_less_than_a_round():
    calls = []

    class Counted(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(len(x))
            return super().forward(x)

    from fedloom.experiment.probe import probe

    loop = run(lambda: Counted(5, 3)).build()
    calls.clear()
    probe(loop.net, Counted(5, 3), loop.fed.data, loop.plan.objective)
    assert sum(calls) <= 8 * 4 and len(calls) <= 7
