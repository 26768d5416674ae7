"""Values per client: only what is known of single examples, and as the metric's own mean says."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedloom import Evaluation, FedAvg
from fedloom.data import from_clients
from fedloom.submodels import HeteroFL
from tiny import small

ENGINES = ["serial", "workers:2", "vectorised:2"]
UPWARDS = {"higher_is_better": True}


def mean_accuracy(outputs, targets):
    return (outputs.argmax(1) == targets).float().mean()


def with_tests(sizes=(3, 5, 8, 4)):
    """Clients with test sets of their own, of several sizes."""
    draw = np.random.default_rng(4)

    def sample(n):
        labels = draw.integers(0, 3, n)
        return (draw.normal(size=(n, 5)) + labels[:, None]).astype("float32"), labels

    return from_clients([sample(n) for n in sizes], client_tests=[sample(2 * n) for n in sizes])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("own", [True, False])
def test_a_mean_of_batches_has_no_value_per_client(engine, own, engine_of, tmp_path):
    made = engine if engine.startswith("vec") else engine_of(engine)
    parts = {"data": with_tests()} if own else {}
    metrics = {"acc": mean_accuracy, "each": lambda o, t: (o.argmax(1) == t).float()}
    result = small(FedAvg(), engine=made, metrics=metrics, **parts, **UPWARDS).run(tmp_path / "run")
    assert result.last == pytest.approx(result.history[-1]["test_each"])
    assert result.clients == [None] * len(result.clients)
    told = json.loads((tmp_path / "run" / "clients.json").read_text())
    assert told["basis"] == "not measured" and not any(told["values"])
    assert not [k for k in [*result.history[-1], *result.summary] if k.startswith("client_")]


@pytest.mark.parametrize("engine", ENGINES)
def test_some_batches_of_means_leave_no_value_per_client(engine, engine_of):
    def mixed(outputs, targets):
        found = (outputs.argmax(1) == targets).float()
        return found if len(found) == 500 else found.mean()

    made = engine if engine.startswith("vec") else engine_of(engine)
    data = with_tests((3, 5, 8, 542))  # 1,116 examples are 500, 500 and 116
    result = small(FedAvg(), engine=made, metrics={"mixed": mixed}, data=data, **UPWARDS).run()
    assert 0 < result.last < 1 and result.clients == [None] * 4


def test_sub_models_have_no_value_per_client_of_a_mean_of_batches():
    parts = {"submodel": HeteroFL(), "capacities": [0.5, 1.0, 1.0, 1.0], "data": with_tests()}
    parts |= {"evaluate": Evaluation(sizes=(0.75,)), "metrics": {"acc": mean_accuracy}}
    result = small(FedAvg(), **parts, **UPWARDS).run()
    assert result.history[-1]["test_acc@0.5"] > 0
    assert not [k for k in result.history[-1] if k.startswith("local_")]
    assert result.summary["sizes"]["unseen"][0]["outside"] is None


class Surprise:
    """exp of the mean loss of the examples, of which those of class 1 count three times."""

    higher_is_better = False

    def __call__(self, outputs, targets):
        return F.cross_entropy(outputs, targets, reduction="none")

    def weight(self, targets):
        return 1 + 2 * (targets == 1).int()

    @staticmethod
    def final(mean):
        return math.exp(mean)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("own", [True, False])
def test_values_per_client_heed_weights_and_final(engine, own, engine_of):
    made = engine if engine.startswith("vec") else engine_of(engine)
    parts = {"data": with_tests()} if own else {}
    experiment = small(FedAvg(), engine=made, metrics={"it": Surprise()}, **parts)
    result, data = experiment.run(), experiment.data
    with torch.no_grad():
        outputs, labels = result.model(data.test_inputs), data.test_targets
    each, weight = Surprise()(outputs, labels).double(), Surprise().weight(labels).double()
    for i, found in enumerate(result.clients):
        if own:
            much = torch.zeros(len(labels)).index_fill_(0, data.test_clients.of(i), 1.0)
        else:  # a test set in which each class is as frequent as at the client
            of_class = torch.bincount(labels, minlength=3)
            much = (data.label_counts()[i] / of_class)[labels]
        mean = (much * weight * each).sum() / (much * weight).sum()
        assert found == pytest.approx(Surprise.final(mean), rel=1e-6)
