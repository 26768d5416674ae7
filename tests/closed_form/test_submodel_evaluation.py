"""What the log has of sub-models, and how those with a batch norm that keeps no statistics are
evaluated.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from cases import CASES
from fedloom import Experiment, FedAvg, Local
from fedloom.checks.tiny_federation import experiment, run
from fedloom.core.net import Variables
from fedloom.data import from_clients
from fedloom.engines.client_results import Request, TrainTask
from fedloom.evaluation.scorer import samples
from fedloom.evaluation.settings import Evaluation
from fedloom.evaluation.sizes import part_of
from fedloom.models import with_statistics
from fedloom.objectives import Function
from fedloom.submodels import FIARSE, SUBMODELS, HeteroFL, SubModel, behind_mask
from tiny import opened


@pytest.mark.parametrize("case", [*SUBMODELS, "fiarse, shards", "heterofl, budget"])
def test_the_sizes_are_in_the_log_and_a_smaller_client_costs_less(case):
    given = CASES[case].make(rounds=2)
    row = run(given).history[-1]
    for kind in ("test_accuracy", "local_accuracy", "explored", "trained", "replaced"):
        for size in ("0.25", "0.5", "1"):
            assert 0 <= row[f"{kind}@{size}"] <= 1
    sizes = [row[f"test_accuracy@{size}"] for size in ("0.25", "0.5", "1")]
    assert row["test_accuracy@mean"] == pytest.approx(sum(sizes) / 3)
    with opened(given) as loop:
        task = TrainTask(loop.message()[0], loop.state.buffers, {}, [0, 1, 2], 0)
        stats = loop.engine.map(Request.TRAIN, task).stats
    up = [sum(s.bytes_up.values()) for s in stats]  # capacities 1, 1/2, 1/4
    down = [sum(s.bytes_down.values()) for s in stats]
    assert up[0] > up[1] >= up[2] and down[0] > down[1] >= down[2]  # a small net has few widths


def test_the_columns_are_the_means_over_sizes_and_over_the_clients_of_a_size():
    trial = experiment(submodel=FIARSE(), capacities=[1.0, 0.5, 0.25], rounds=2)
    result = trial.run()
    loop, row = trial.loop, result.history[-1]
    data, x = loop.fed.data, loop.state.srv.x
    values, own = {}, {}
    for capacity in (1.0, 0.5, 0.25):
        view = FIARSE().view(x, loop.net, capacity, 2)
        module = loop.net.export(view.seen(view.take(x)))
        right = (module(data.test_inputs).argmax(1) == data.test_targets).double()
        values[capacity] = float(right.mean())
        per_class = torch.stack([right[data.test_targets == c].mean() for c in range(3)])
        shares = data.label_counts().double()
        own[capacity] = (shares * per_class.nan_to_num()).sum(1) / shares.sum(1)
        assert row[f"test_accuracy@{capacity:g}"] == pytest.approx(values[capacity])
        mine = [float(own[capacity][i]) for i in range(6) if loop.fed.capacity(i) == capacity]
        assert row[f"local_accuracy@{capacity:g}"] == pytest.approx(sum(mine) / 2)
    assert row["test_accuracy@mean"] == pytest.approx(sum(values.values()) / 3)
    every = [float(own[loop.fed.capacity(i)][i]) for i in range(6)]
    assert row["local_accuracy@mean"] == pytest.approx(sum(every) / 6)


class Window(SubModel):
    """Holds 4 of 10 coordinates, one further in round 1, two more in round 2, and so on."""

    def view(self, x, net, capacity, round):
        t = round
        held = (torch.arange(4) + t * (t + 1) // 2) % 10
        return behind_mask(held.sort().values, net.layout)


def test_exploration_and_difference_are_counted_by_hand():
    data = from_clients([(np.zeros((1, 1)), np.zeros((1, 10))) for _ in range(4)])
    trial = Experiment(
        algorithm=FedAvg(),
        model=Variables(torch.ones(10)),
        data=data,
        rounds=4,
        cohort=[[1], [0], [1], [1]],
        objective=Function(f=lambda x, inputs, targets: (x * targets.mean(0)).sum()),
        submodel=Window(),
        capacities=[0.4, 0.5],  # two sizes; clients 0 and 2 have the first
        device="cpu",
    )
    rows = trial.run().history
    # windows 0-3, 1-4, 3-6, 6-9, 0-3; client 0 trained in the second round only, on 1-4
    assert [r["explored@0.4"] for r in rows] == [0.5, 0.7, 1.0, 1.0]
    assert [r["trained@0.4"] for r in rows] == [0.0, 0.4, 0.4, 0.4]
    assert [r["trained@0.5"] for r in rows] == [0.4, 0.4, 0.7, 1.0]
    assert [r["replaced@0.4"] for r in rows] == [0.25, 0.5, 0.75, 1.0]
    assert [r["untrained"] for r in rows] == pytest.approx([0.5, 0.3, 0.0, 0.0])


# ---------------------------------------------------------------------------- statistics of batches
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


def assert_alike(loop):
    """The whole model has the scores of a client of capacity 1."""
    of_all, of_whole = loop.scores()["test"].each, loop.size_scores()[1.0].each
    assert of_all.keys() == of_whole.keys()
    assert all(torch.equal(of_all[name], of_whole[name]) for name in of_all)


@pytest.mark.parametrize("rule", [HeteroFL(scaler=False), FIARSE()], ids=repr)
def test_static_statistics_are_of_all_training_samples_and_of_the_size(rule):
    loop = built(rule, "static")
    data = loop.fed.data
    for capacity in (0.25, 1.0):
        module = with_statistics(sub_model(loop, rule, capacity), samples(loop.fed))
        right = (module(data.test_inputs).argmax(1) == data.test_targets).double()
        score = loop.size_scores()[capacity]
        assert torch.equal(next(iter(score.each.values())), right)
    assert_alike(loop)


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
    assert_alike(loop)


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
