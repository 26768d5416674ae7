"""How sub-models with a batch norm that keeps no statistics are evaluated."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedloom import Experiment, FedAvg, Local
from fedloom.data import from_clients
from fedloom.evaluation.scorer import samples
from fedloom.evaluation.settings import Evaluation
from fedloom.evaluation.sizes import part_of
from fedloom.models import with_statistics
from fedloom.submodels import FIARSE, HeteroFL


def net() -> nn.Module:
    torch.manual_seed(4)
    norm = nn.BatchNorm1d(6, track_running_stats=False)
    return nn.Sequential(nn.Linear(3, 6), norm, nn.ReLU(), nn.Linear(6, 3)).double()


def built(rule, statistics: str):
    """Three clients with test sets of 5, 4 and 2, and batches of three."""
    draw = np.random.default_rng(1)
    sample = lambda n, at: (draw.normal(size=(n, 3)) + at, draw.integers(3, size=n))
    data = from_clients(
        [sample(n, at) for n, at in ((7, 0), (6, 3), (8, -3))],
        client_tests=[sample(n, at) for n, at in ((5, 0), (4, 3), (2, -3))],
        dtype=torch.float64,
    )
    loop = Experiment(
        algorithm=FedAvg(),
        model=net(),
        data=data,
        rounds=1,
        local=Local(steps=2, batch=3, lr=0.1),
        submodel=rule,
        capacities=[0.25, 1.0] if rule else None,
        evaluate=Evaluation(statistics=statistics),
        device="cpu",
    ).build()
    loop.engine.open(loop.plan, loop.fed, loop.net)
    loop.begin()
    loop.until(1)
    return loop


def sub_model(loop, rule, capacity: float) -> nn.Module:
    return part_of(rule, loop.net, loop.state.srv.x, capacity, 1)[1].requires_grad_(False)


@pytest.mark.parametrize("rule", [HeteroFL(scaler=False), FIARSE()], ids=repr)
def test_static_statistics_are_of_all_training_samples_and_of_the_size(rule):
    loop = built(rule, "static")
    data = loop.fed.data
    for capacity in (0.25, 1.0):
        module = with_statistics(sub_model(loop, rule, capacity), samples(loop.fed))
        right = (module(data.test_inputs).argmax(1) == data.test_targets).double()
        score = loop.size_scores()[capacity]
        assert torch.equal(next(iter(score.each.values())), right)
    of_all, of_whole = loop.scores()["test"].each, loop.size_scores()[1.0].each
    assert of_all.keys() == of_whole.keys()
    assert all(torch.equal(of_all[name], of_whole[name]) for name in of_all)


@pytest.mark.parametrize("rule", [HeteroFL(scaler=False), FIARSE()], ids=repr)
def test_by_batches_are_those_of_one_client_as_large_as_in_training(rule):
    loop = built(rule, "batch")
    data = loop.fed.data
    for capacity in (0.25, 1.0):
        module = sub_model(loop, rule, capacity)
        want = torch.zeros(11, dtype=torch.float64)
        loss = 0.0
        for own in map(data.test_clients.of, range(3)):
            cuts = [3, 2] if len(own) == 5 else [len(own)]  # of 4, the last one joins the others
            for index in torch.split(own, cuts):
                out = module(data.test_inputs[index])
                want[index] = (out.argmax(1) == data.test_targets[index]).double()
                targets = data.test_targets[index]
                loss += float(nn.functional.cross_entropy(out, targets, reduction="sum"))
        score = loop.size_scores()[capacity]
        assert torch.equal(next(iter(score.each.values())), want)
        assert score.loss == pytest.approx(loss, rel=1e-12)
    of_all, of_whole = loop.scores()["test"].each, loop.size_scores()[1.0].each
    assert of_all.keys() == of_whole.keys()
    assert all(torch.equal(of_all[name], of_whole[name]) for name in of_all)


@pytest.mark.parametrize("statistics", ["static", "batch"])
def test_a_run_without_sub_models_is_evaluated_alike(statistics):
    loop = built(None, statistics)
    got = loop.scores()["test"]
    with_sizes = built(FIARSE(), statistics)
    with_sizes.state = with_sizes.state._replace(srv=loop.state.srv, buffers=loop.state.buffers)
    want = with_sizes.scores()["test"]
    assert got.loss == want.loss and got.examples == want.examples
    other = built(None, "batch" if statistics == "static" else "static")
    assert other.scores()["test"].loss != got.loss
