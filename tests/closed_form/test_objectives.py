"""The papers' losses against their formulas in numpy, and the cases where a loss is known."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import grad, vmap

from fedloom.core.net import Net
from fedloom.core.vector import rec
from fedloom.objectives import MOON, CrossEntropy, FedDecorr, FedLC, FedMLB, FedNTD
from fedloom.objectives.feddecorr import decorrelation
from fedloom.objectives.fedntd import not_true
from fedloom.objectives.moon import contrast
from losses import (
    BATCH,
    CASES,
    COUNTS,
    INPUTS,
    LABELS,
    NOTHING,
    REF,
    SEEN,
    D,
    X,
    blocks,
    ce,
    close,
    live_gradient,
    t,
    three_blocks,
)

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


@each_case
def test_gradients_are_the_formulas_differences(case):
    objective, mem, formula = CASES[case]
    h = 1e-5
    want = [(formula(X + h * e).mean() - formula(X - h * e).mean()) / (2 * h) for e in np.eye(D)]
    got, _ = live_gradient(three_blocks(), objective, mem)
    close(got, np.array(want), 1e-8)


@each_case
def test_the_live_path_and_functional_transforms_agree(case):
    objective, mem, _ = CASES[case]
    net = three_blocks()
    want, value = live_gradient(net, objective, mem)
    mean = lambda x: objective.mean(net, x, BATCH, t(REF), mem)
    close(grad(mean)(t(X)), want)
    close(mean(t(X)), value)


@each_case
def test_three_clients_together_are_the_three_one_by_one(case):
    objective, mem, _ = CASES[case]
    net = three_blocks()
    source = np.random.default_rng(3)
    xs, inputs = t(source.normal(size=(3, D))), t(source.normal(size=(3, 5, 3)))
    labels = t(source.integers(0, 3, size=(3, 5)))
    memories = [type(mem)(*[v * (1 + c) for v in mem]) for c in range(3)]
    stacked = type(mem)(*map(torch.stack, zip(*memories, strict=True)))
    total = lambda x, a, y, m: objective.loss(net, x, (a, y), t(REF), m).mean()
    together = vmap(grad(total))(xs, inputs, labels, stacked)
    for c in range(3):
        close(together[c], grad(total)(xs[c], inputs[c], labels[c], memories[c]))


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


@each_case
def test_the_score_is_plain_cross_entropy(case):
    z = blocks([X] * 3, INPUTS)[2]
    close(CASES[case][0].score(t(z), BATCH), ce(z))


@each_case
def test_the_module_is_left_in_training_mode(case):
    objective, mem, _ = CASES[case]
    net = three_blocks()
    live_gradient(net, objective, mem)
    assert all(m.training for m in net.module.modules())


@pytest.mark.parametrize("case", ["fedntd", "fedlc", "fedmlb"])
def test_sequences_are_the_mean_over_their_places(case):
    objective, mem, _ = CASES[case]
    source = np.random.default_rng(5)
    inputs, labels = t(source.normal(size=(2, 3, 4))), t(source.integers(0, 3, size=(2, 4)))

    class Along(nn.Module):  # (B, C, T): every place alone
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, a):
            return self.inner(a.transpose(1, 2)).transpose(1, 2)

    plain = three_blocks()
    children = plain.module.named_children()
    net = Net(nn.Sequential(OrderedDict((n, Along(m)) for n, m in children)))
    got = objective.loss(net, t(X), (inputs, labels), t(REF), mem)
    flat = (inputs.transpose(1, 2).reshape(8, 3), labels.reshape(8))
    want = objective.loss(plain, t(X), flat, t(REF), mem).view(2, 4).mean(1)
    close(got, want)


# ------------------------------------------------------------------------------ what is known
def test_fedlc_without_tau_is_cross_entropy():
    net = three_blocks()
    mem = rec(counts=t(COUNTS))
    close(FedLC(tau=0.0).loss(net, t(X), BATCH, t(REF), mem), ce(blocks([X] * 3, INPUTS)[2]))


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


def test_fedmlb_begins_at_twice_the_cross_entropy():
    net, plain = three_blocks(), ce(blocks([X] * 3, INPUTS)[2])
    for b in range(3):
        close(net.path([t(X)] * b + [t(X).clone()] * (3 - b), BATCH[0]), net(t(X), BATCH[0]), 0)
    close(FedMLB().loss(net, t(X), BATCH, t(X), NOTHING), 2 * plain)
    close(FedMLB(lam1=0.25, lam2=9.0).loss(net, t(X), BATCH, t(X), NOTHING), 1.25 * plain)


def test_fedmlb_trains_local_blocks_through_received_ones():
    # without the main path's loss the head would still get a gradient from the divergence only
    alone = FedMLB(lam1=1.0, lam2=0.0)
    got, _ = live_gradient(three_blocks(), alone, NOTHING)
    main, _ = live_gradient(three_blocks(), CrossEntropy(), NOTHING)
    through = got - main
    assert float(through[: D - 18].abs().max()) > 1e-3
    close(through[D - 18 :], torch.zeros(18, dtype=torch.float64), 1e-15)


def test_stopping_the_gradient_changes_it_and_not_the_loss():
    (g, a), (h, b) = (
        live_gradient(three_blocks(), FedMLB(stop_gradient=s), NOTHING) for s in (False, True)
    )
    close(a, b, 0)
    assert float((g - h).abs().max()) > 1e-3


def test_fedntd_begins_at_the_cross_entropys_share():
    net, plain = three_blocks(), ce(blocks([X] * 3, INPUTS)[2])
    close(FedNTD(beta=0.3).loss(net, t(X), BATCH, t(X), NOTHING), 0.7 * plain)
    got, _ = live_gradient(net, FedNTD(form="official"), NOTHING, X, X)
    close(got, live_gradient(net, CrossEntropy(), NOTHING)[0])  # the divergence is at its minimum


def test_one_class_alone_has_nothing_to_distil():
    z = t(np.array([[2.0], [3.0]])).requires_grad_()
    value = not_true(z, z.detach() + 1, t(np.array([0, 0])), 1.0)
    (g,) = torch.autograd.grad(value.sum(), z)
    close(value.detach(), np.zeros(2), 0)
    close(g, np.zeros((2, 1)), 0)


def test_moon_with_the_received_model_as_the_previous_one_is_constant():
    h = blocks([X] * 3, INPUTS)[1]
    close(contrast(t(h), t(h) * 2, t(h) * 2, 0.5), np.full(6, np.log(2)))
    mem = SEEN._replace(prev=t(REF))
    got, value = live_gradient(three_blocks(), MOON(), mem)
    want, plain = live_gradient(three_blocks(), CrossEntropy(), mem)
    close(got, want)
    close(value, plain + np.log(2))


def test_moon_without_a_previous_model_is_cross_entropy():
    net, info = three_blocks(), rec(counts=t(COUNTS), d=D)
    mem = MOON().init(info)
    assert mem.prev.shape == (D,)
    got, value = live_gradient(net, MOON(mu=100.0), mem)
    want, plain = live_gradient(net, CrossEntropy(), mem)
    close(got, want, 1e-15)
    close(value, plain, 1e-15)


def test_moon_needs_no_finite_model_at_zero():
    class Weighed(nn.Linear):  # divides by the norm of its weights
        def forward(self, a):
            return nn.functional.linear(a, self.weight / self.weight.norm(), self.bias)

    net = Net(nn.Sequential(Weighed(3, 4), nn.Linear(4, 3)), torch.float64)
    mem = MOON().init(rec(counts=t(COUNTS), d=net.layout.d))
    loss = MOON().loss(net, net.init(), BATCH, net.init(), mem)
    assert loss.isfinite().all()


@pytest.mark.parametrize("shape", [(4, 7), (9, 3), (5, 5)])
def test_decorrelation_is_a_multiple_of_the_mean_squared_correlation(shape):
    h = np.random.default_rng(1).normal(size=shape)
    n, f = shape
    corr = np.corrcoef(h.T)
    off = corr[~np.eye(f, dtype=bool)]
    close(decorrelation(t(h)), (n - 1) ** 2 / n * (off**2).mean(), 1e-7)  # 1e-8 beside a variance


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


def test_a_label_that_is_no_class_is_an_error():
    for label in (3, -1):
        with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
            CrossEntropy().score(torch.zeros(2, 3), (None, torch.tensor([0, label])))
