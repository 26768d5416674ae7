"""The papers' losses against their formulas in numpy, in rounds, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import grad

from fedloom import FedAvg, Local
from fedloom.core.net import Net
from fedloom.core.vector import rec
from fedloom.data import from_clients
from fedloom.errors import CompositionError, ConfigError, DataError
from fedloom.objectives import MOON, OBJECTIVES, CrossEntropy, FedDecorr, FedLC, FedNTD
from fedloom.objectives.feddecorr import decorrelation
from fedloom.objectives.fedntd import not_true
from losses import (
    BATCH,
    CASES,
    COUNTS,
    INPUTS,
    LABELS,
    REF,
    D,
    X,
    blocks,
    ce,
    close,
    cos,
    live_gradient,
    t,
    three_blocks,
)
from tiny import small, trace

each_case = pytest.mark.parametrize("case", CASES)
# a batch that is seen as a whole is never padded
each_example = pytest.mark.parametrize(
    "case", [c for c in CASES if not isinstance(CASES[c][0], FedDecorr)]
)


# ----------------------------------------------------------------------------------- every one
@each_case
def test_values_are_the_formulas(case):
    objective, mem, formula = CASES[case]
    loss = objective.loss(three_blocks(), t(X), BATCH, t(REF), mem)
    assert loss.shape == (() if isinstance(objective, FedDecorr) else (len(LABELS),))
    close(loss, formula(X))
    close(objective.mean(three_blocks(), t(X), BATCH, t(REF), mem), np.mean(formula(X)))
    z = blocks([X] * 3, INPUTS)[2]
    close(objective.score(t(z), BATCH), ce(z))


@each_case
def test_gradients_are_the_formulas_differences(case):
    """On the live path, and by functional transforms; the module is left in training mode."""
    objective, mem, formula = CASES[case]
    net, h = three_blocks(), 1e-5
    want = [(formula(X + h * e).mean() - formula(X - h * e).mean()) / (2 * h) for e in np.eye(D)]
    result, value = live_gradient(net, objective, mem)
    close(result, np.array(want), 1e-8)
    assert all(m.training for m in net.module.modules())
    mean = lambda x: objective.mean(net, x, BATCH, t(REF), mem)
    close(grad(mean)(t(X)), result)
    close(mean(t(X)), value)


@each_example
def test_an_example_does_not_see_the_others(case):
    objective, mem, _ = CASES[case]
    net, some = three_blocks(), [4, 0]
    whole = objective.loss(net, t(X), BATCH, t(REF), mem)
    part = objective.loss(net, t(X), tuple(v[some] for v in BATCH), t(REF), mem)
    close(part, whole[some])


@each_example
def test_a_label_that_the_client_lacks_gives_no_nan_at_weight_zero(case):
    objective, mem, _ = CASES[case]
    if mem._fields == ("counts",):
        mem = rec(counts=t(np.array([16.0, 1.0, 0.0])))  # LABELS has 2
    weight = (BATCH[1] != 2).double()
    net = three_blocks()
    value = lambda x: (weight * objective.loss(net, x, BATCH, t(REF), mem)).sum() / weight.sum()
    assert value(t(X)).isfinite()
    assert grad(value)(t(X)).isfinite().all()


@each_case
def test_dead_features_give_finite_gradients(case):
    objective, mem, _ = CASES[case]
    x = np.where(np.arange(D) < D - 18, 0.0, X)  # everything before the head is zero
    g, value = live_gradient(three_blocks(), objective, mem, x)
    assert value.isfinite()
    assert g.isfinite().all()


# ------------------------------------------------------------------------------ what is known


@pytest.mark.parametrize("counts", [[4.0, 0.0, 9.0], [4.0, 0.0, 9.0, 0.0], [4.0]])
def test_fedlc_gives_absent_classes_no_gradient(counts):
    # a label per present class; the model may know more classes than the data have
    net = Net(nn.Linear(2, 4), torch.float64)
    x = t(np.random.default_rng(0).normal(size=12))
    present = [c for c, n in enumerate(counts) if n]
    batch = (t(np.ones((3, 2))), t(np.array([present[0], present[-1], present[0]])))
    mem = rec(counts=t(np.array(counts)))
    g = grad(lambda x: FedLC().mean(net, x, batch, x, mem))(x)
    rows = torch.cat([g[:8].view(4, 2), g[8:, None]], 1)
    absent = [c for c in range(4) if c not in present]
    assert not rows[absent].any()
    assert g.isfinite().all()
    assert len(present) == 1 or rows[present].abs().min() > 1e-3


def test_one_class_alone_has_nothing_to_distil():
    z = t(np.array([[2.0], [3.0]])).requires_grad_()
    value = not_true(z, z.detach() + 1, t(np.array([0, 0])), 1.0)
    (g,) = torch.autograd.grad(value.sum(), z)
    close(value.detach(), np.zeros(2), 0)
    close(g, np.zeros((2, 1)), 0)


def test_moon_needs_no_finite_model_at_zero():
    class Weighed(nn.Linear):  # divides by the norm of its weights
        def forward(self, a):
            return nn.functional.linear(a, self.weight / self.weight.norm(), self.bias)

    net = Net(nn.Sequential(Weighed(3, 4), nn.Linear(4, 3)), torch.float64)
    mem = MOON().init(rec(counts=t(COUNTS), d=net.layout.d))
    loss = MOON().loss(net, net.init(), BATCH, net.init(), mem)
    assert loss.isfinite().all()


@pytest.mark.parametrize("shape", [(1, 4), (6, 1)])
def test_one_example_or_one_feature_has_no_correlation(shape):
    h = t(np.random.default_rng(1).normal(size=shape)).requires_grad_()
    value = decorrelation(h)
    (g,) = torch.autograd.grad(value, h)
    close(value.detach(), 0.0, 1e-7)
    assert g.isfinite().all()


@pytest.mark.parametrize("classes", [2, 10, 16, 17])
def test_cross_entropy_of_every_example_and_its_gradient_in_numpy(classes):
    rng = np.random.default_rng(classes)
    z = rng.normal(size=(6, classes)) * 30  # exp() alone would overflow in float32
    z[2, 1] = -np.inf  # a class that is masked out
    labels = np.array([0, 1, 0, classes - 1, -100, 1])
    top = z.max(1, keepdims=True)
    p = np.exp(z - top) / np.exp(z - top).sum(1, keepdims=True)
    want = [0.0 if y == -100 else -np.log(p[i, y]) for i, y in enumerate(labels)]
    slope = [(y != -100) * (p[i] - np.eye(classes)[max(y, 0)]) for i, y in enumerate(labels)]
    outputs, targets = torch.tensor(z, requires_grad=True), torch.tensor(labels)
    each = CrossEntropy().score(outputs, (None, targets))
    close(each.detach(), np.array(want))
    close(torch.autograd.grad(each.sum(), outputs)[0], np.array(slope))
    single = CrossEntropy().score(outputs.detach().float() * 30, (None, targets))
    assert bool(torch.isfinite(single).all())


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


def rounds_of(objective, cohorts):
    settings = {
        "model": three_blocks().module,
        "data": plain_data(),
        "cohort": cohorts,
        "rounds": len(cohorts),
        "local": Local(steps=1, batch=None, lr=0.5),
        "objective": objective,
    }
    return small(FedAvg(), torch.float64, **settings)


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


# ------------------------------------------------------------------------------------- bad input
def test_fedntds_forms_have_weights_of_their_own():
    for given, says in (
        ({"form": "other"}, "FedNTD.form must be one of fedacg, official"),
        ({"beta": 1.5}, r"FedNTD.beta must be in \[0, 1\] with form 'fedacg'"),
    ):
        with pytest.raises(ConfigError, match=says):
            FedNTD(**given)
    assert FedNTD(form="official", beta=1.5).beta == 1.5


@pytest.mark.parametrize("name", ["moon", "fedmlb", "feddecorr"])
def test_a_model_without_blocks_is_refused_by_name(name):
    experiment = small(FedAvg(), model=nn.Linear(5, 3), objective=OBJECTIVES[name]())
    with pytest.raises(CompositionError, match=f"{OBJECTIVES[name].__name__} and Linear: .*blocks"):
        list(trace(experiment, 1))


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
