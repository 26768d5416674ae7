"""The papers' losses in rounds of a federation: what clients remember, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedloom import FedAvg, Local
from fedloom.algorithms import FedACG
from fedloom.core.net import Net
from fedloom.core.vector import rec
from fedloom.data import from_clients
from fedloom.errors import CompositionError, ConfigError, DataError
from fedloom.objectives import MOON, OBJECTIVES, CrossEntropy, FedDecorr, FedLC, FedMLB, FedNTD
from losses import (
    D,
    blocks,
    ce,
    close,
    cos,
    three_blocks,
)
from tiny import small, trace


# -------------------------------------------------------------------------------- through rounds
def plain_data():
    source = np.random.default_rng(9)
    return from_clients(
        [
            (source.normal(size=(n, 3)), np.r_[0, 1, 2, source.integers(0, 3, n - 3)])
            for n in (6, 5, 7)
        ],
        dtype=torch.float64,
    )


def rounds_of(objective, cohorts, algorithm=None, **changes):
    settings = {
        "model": three_blocks().module,
        "data": plain_data(),
        "cohort": cohorts,
        "rounds": len(cohorts),
        "local": Local(steps=1, batch=None, lr=0.5),
        "objective": objective,
    }
    return small(algorithm or FedAvg(), torch.float64, **(settings | changes))


def test_moon_remembers_the_last_local_model_of_those_who_took_part():
    # one client per round: the server's model after it is that client's last local one
    cohorts, seen, after = [[0], [2], [0]], [], []
    for loop in trace(rounds_of(MOON(), cohorts), 3):
        after.append(loop.state.srv.x.clone())
        seen.append({i: row.obj for i, row in loop.memory.get(range(3)).items()})
    assert [sorted(s) for s in seen] == [[], [0], [0, 2], [0, 2]]
    assert all(float(row.seen) == 1 for s in seen for row in s.values())
    for t_, i, maker in [(1, 0, 1), (2, 0, 1), (2, 2, 2), (3, 0, 3), (3, 2, 2)]:
        close(seen[t_][i].prev, after[maker], 1e-14)


def test_moons_term_begins_with_a_clients_second_participation():
    cohorts = [[0], [2], [0]]
    ends = [
        [loop.state.srv.x.clone() for loop in trace(rounds_of(o, cohorts), 3)]
        for o in (MOON(mu=3.0), CrossEntropy())
    ]
    close(ends[0][1], ends[1][1], 1e-14)
    close(ends[0][2], ends[1][2], 1e-14)
    # the third round is one step of the formula, with the first round's model as the previous one
    data = plain_data()
    own = data.clients.of(0)
    inputs, labels = data.inputs[own].numpy(), data.targets[own].numpy()
    x1, x2 = (ends[0][k].numpy() for k in (1, 2))

    def loss(x):
        h, h_ref, h_prev = (blocks([v] * 3, inputs)[1] for v in (x, x2, x1))
        near, far = np.exp(cos(h, h_ref) / 0.5), np.exp(cos(h, h_prev) / 0.5)
        return (ce(blocks([x] * 3, inputs)[2], labels) - 3 * np.log(near / (near + far))).mean()

    h = 1e-5
    g = np.array([(loss(x2 + h * e) - loss(x2 - h * e)) / (2 * h) for e in np.eye(D)])
    close(ends[0][3], x2 - 0.5 * g, 1e-8)


def test_fedlc_remembers_its_own_label_counts():
    *_, loop = trace(rounds_of(FedLC(), [[0, 1], [1, 2], [0, 2]]), 3)
    data = loop.fed.data
    for i, row in loop.memory.get(range(3)).items():
        labels = data.targets[data.clients.of(i)].numpy()
        close(row.obj.counts, np.bincount(labels, minlength=3).astype(float), 0)


@pytest.mark.parametrize("name", ["moon", "fedmlb", "feddecorr", "fedlc", "fedntd"])
def test_each_changes_fedacg_and_stays_finite(name):
    ends = [
        [*trace(small(FedACG(), torch.float64, objective=o), 3)][-1].state.srv.x
        for o in (OBJECTIVES[name](), CrossEntropy())
    ]
    assert ends[0].isfinite().all()
    assert float((ends[0] - ends[1]).abs().max()) > 1e-6


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("moon", {"mu": 0.5}),
        ("moon", {"tau": 2.0}),
        ("fedmlb", {"lam1": 0.5}),
        ("fedmlb", {"lam2": 0.5}),
        ("fedmlb", {"tau": 2.0}),
        ("fedmlb", {"stop_gradient": True}),
        ("feddecorr", {"beta": 0.1}),
        ("fedlc", {"tau": 0.1}),
        ("fedntd", {"beta": 0.6}),
        ("fedntd", {"tau": 2.0}),
        ("fedntd", {"form": "official"}),
    ],
)
def test_every_hyper_parameter_changes_a_run(name, change):
    ends = [
        [*trace(small(FedAvg(), torch.float64, objective=OBJECTIVES[name](**o)), 3)][-1].state.srv.x
        for o in ({}, change)
    ]
    assert float((ends[0] - ends[1]).abs().max()) > 1e-9


# ------------------------------------------------------------------------------------- bad input
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: MOON(tau=0.0), "MOON.tau"),
        (lambda: MOON(mu=-1.0), "MOON.mu"),
        (lambda: FedMLB(tau=-1.0), "FedMLB.tau"),
        (lambda: FedDecorr(beta=-0.1), "FedDecorr.beta"),
        (lambda: FedLC(tau=-1.0), "FedLC.tau"),
        (lambda: FedNTD(form="other"), "FedNTD.form must be one of fedacg, official"),
        (lambda: FedNTD(beta=1.5), r"FedNTD.beta must be in \[0, 1\] with form 'fedacg'"),
    ],
)
def test_settings_out_of_range_are_refused(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


def test_the_official_form_takes_a_weight_above_one():
    assert FedNTD(form="official", beta=1.5).beta == 1.5


class Opaque(nn.Module):
    """No blocks."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(5, 3)

    def forward(self, inputs):
        return self.net(inputs)


@pytest.mark.parametrize("name", ["moon", "fedmlb", "feddecorr"])
def test_a_model_without_blocks_is_refused_by_name(name):
    experiment = small(FedAvg(), model=Opaque(), objective=OBJECTIVES[name]())
    with pytest.raises(CompositionError, match=f"{OBJECTIVES[name].__name__} and Opaque: .*blocks"):
        list(trace(experiment, 1))


@pytest.mark.parametrize("name", ["fedlc", "fedntd"])
def test_the_others_take_any_model(name):
    *_, loop = trace(small(FedAvg(), model=Opaque(), objective=OBJECTIVES[name]()), 2)
    assert loop.state.srv.x.isfinite().all()


@pytest.mark.parametrize("name", ["moon", "feddecorr"])
def test_features_that_nothing_trains_are_refused(name):
    model = nn.Sequential(nn.Flatten(), nn.Linear(5, 3))
    with pytest.raises(CompositionError, match="nothing before '1' has a trained parameter"):
        list(trace(small(FedAvg(), model=model, objective=OBJECTIVES[name]()), 1))


@pytest.mark.parametrize("name", ["moon", "fedmlb", "feddecorr"])
def test_check_tries_the_blocks_on_a_batch(name):
    class Squashed(nn.Sequential):
        blocks = ("0", "1")

        def forward(self, inputs):
            return self[1](torch.tanh(self[0](inputs)))

    wrong, objective = Net(Squashed(nn.Linear(5, 4), nn.Linear(4, 3))), OBJECTIVES[name]()
    with pytest.raises(CompositionError, match=f"{objective.name} and Squashed: .* 0, 1"):
        objective.check(wrong, torch.ones(2, 5))
    objective.check(Net(nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))), torch.ones(2, 5))


def test_fedlc_needs_labels():
    with pytest.raises(DataError, match="FedLC needs integer class labels"):
        FedLC().init(rec(counts=torch.zeros(0), d=3))
    numbers = from_clients([(np.ones((4, 5)), np.array([0.5, 1.0, 2.0, 0.1]))], dtype=torch.float32)
    with pytest.raises(DataError, match="labels"):
        list(trace(small(FedAvg(), data=numbers, cohort=1.0, objective=FedLC()), 1))
