"""The papers' losses against their formulas in numpy, and the cases where a loss is known."""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import grad, vmap

from fedloom import FedAvg, Local
from fedloom.algorithms import FedACG
from fedloom.data import from_clients
from fedloom.errors import CompositionError, ConfigError, DataError
from fedloom.net import Net
from fedloom.objectives import (
    MOON,
    OBJECTIVES,
    CrossEntropy,
    FedDecorr,
    FedLC,
    FedMLB,
    FedNTD,
)
from fedloom.objectives.feddecorr import decorrelation
from fedloom.objectives.moon import contrast
from fedloom.vector import rec
from tiny import small, trace

WIDTHS = (3, 4, 5, 3)
D = sum((a + 1) * b for a, b in pairwise(WIDTHS))
draw = np.random.default_rng(7)
INPUTS, LABELS = draw.normal(size=(6, 3)), np.array([0, 2, 1, 2, 2, 0])
X, REF, PREV = draw.normal(size=(3, D)) * 0.8
COUNTS = np.array([16.0, 1.0, 5.0])


def three_blocks():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        low = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
        mid = nn.Sequential(nn.Linear(4, 5), nn.Tanh())
        parts = OrderedDict(low=low, mid=mid, head=nn.Linear(5, 3))
    return Net(nn.Sequential(parts), torch.float64)


def t(a):
    return torch.as_tensor(np.asarray(a))


BATCH = (t(INPUTS), t(LABELS))


# ------------------------------------------------------------------------ the formulas, in numpy
def blocks(xs, inputs, first=0):
    """The outputs of the blocks from `first` on, block b with the vector xs[b - first]."""
    out, at = [], 0
    for b, (a, c) in enumerate(pairwise(WIDTHS)):
        if first <= b < first + len(xs):
            x = xs[b - first]
            w, bias = x[at : at + a * c].reshape(c, a), x[at + a * c : at + (a + 1) * c]
            inputs = inputs @ w.T + bias
            inputs = np.tanh(inputs) if b < 2 else inputs
            out.append(inputs)
        at += (a + 1) * c
    return out


def softmax(z):
    e = np.exp(z)
    return e / e.sum(-1, keepdims=True)


def ce(z, y=LABELS):
    return -np.log(softmax(z)[np.arange(len(y)), y])


def cos(a, b):
    return (a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))


def kl(p, q):
    return (p * np.log(p / q)).sum(1)


def moon(x, mu=1.0, tau=0.5, prev=PREV, ref=REF):
    h, h_ref, h_prev = (blocks([v] * 3, INPUTS)[1] for v in (x, ref, prev))
    near, far = np.exp(cos(h, h_ref) / tau), np.exp(cos(h, h_prev) / tau)
    return ce(blocks([x] * 3, INPUTS)[2]) - mu * np.log(near / (near + far))


def fedmlb(x, lam1=1.0, lam2=1.0, tau=1.0, teacher=None):
    """teacher: where the hybrid paths' distributions in the divergence are taken, if not at x."""
    z = blocks([x] * 3, INPUTS)[2]
    total = ce(z)
    for b in (1, 2):
        z_b, z_p = (blocks([v] * b + [REF] * (3 - b), INPUTS)[2] for v in (x, teacher))
        total = total + (lam1 * ce(z_b) + lam2 * kl(softmax(z_p / tau), softmax(z / tau))) / 2
    return total


def feddecorr(x, beta=0.01):
    h, z = blocks([x] * 3, INPUTS)[1:]
    n, f = h.shape
    s = (h - h.mean(0)) / np.sqrt(1e-8 + h.var(0, ddof=1))
    m = s.T @ s
    off = sum(m[i, j] ** 2 for i in range(f) for j in range(f) if i != j)
    return ce(z).mean() + beta * off / (f * (f - 1)) / n


def fedlc(x, tau=1.0):
    return ce(blocks([x] * 3, INPUTS)[2] - tau * COUNTS**-0.25)


def ntd(x, tau=1.0):
    z, z_ref = (blocks([v] * 3, INPUTS)[2] for v in (x, REF))
    rows = []
    for a, b, y in zip(z, z_ref, LABELS, strict=True):
        rows.append(kl(softmax(np.delete(b, y)[None] / tau), softmax(np.delete(a, y)[None] / tau)))
    return np.concatenate(rows), ce(z)


def fedntd(x, keep, distil, tau):
    term, plain = ntd(x, tau)
    return keep * plain + distil * term


SEEN = rec(prev=t(PREV), seen=t(1.0))
NOTHING = rec()
# name: objective, memory, its formula
CASES = {
    "moon": (MOON(), SEEN, moon),
    "moon other": (MOON(mu=5.0, tau=0.2), SEEN, lambda x: moon(x, 5.0, 0.2)),
    "fedmlb": (FedMLB(), NOTHING, lambda x: fedmlb(x, teacher=x)),
    "fedmlb other": (
        FedMLB(lam1=0.5, lam2=3.0, tau=2.0),
        NOTHING,
        lambda x: fedmlb(x, 0.5, 3.0, 2.0, teacher=x),
    ),
    "fedmlb stopped": (FedMLB(stop_gradient=True), NOTHING, lambda x: fedmlb(x, teacher=X)),
    "feddecorr": (FedDecorr(), NOTHING, feddecorr),
    "feddecorr other": (FedDecorr(beta=2.0), NOTHING, lambda x: feddecorr(x, 2.0)),
    "fedlc": (FedLC(), rec(counts=t(COUNTS)), fedlc),
    "fedlc other": (FedLC(tau=0.3), rec(counts=t(COUNTS)), lambda x: fedlc(x, 0.3)),
    "fedntd": (FedNTD(), NOTHING, lambda x: fedntd(x, 0.7, 0.3, 1.0)),
    "fedntd cool": (FedNTD(beta=0.2, tau=3.0), NOTHING, lambda x: fedntd(x, 0.8, 0.2, 3.0)),
    "fedntd official": (
        FedNTD(form="official", beta=0.5, tau=3.0),
        NOTHING,
        lambda x: fedntd(x, 1.0, 0.5 * 9, 3.0),
    ),
}
each_case = pytest.mark.parametrize("case", CASES)


def close(a, b, tol=1e-12):
    torch.testing.assert_close(t(a), t(b), rtol=tol, atol=tol)


def live_gradient(net, objective, mem, x=X, ref=REF):
    """As the serial engine takes it."""
    net.train()
    handle = net.live(t(x))
    value = objective.mean(net, handle, BATCH, t(ref), mem)
    parts = torch.autograd.grad(value, [*net.params, handle], allow_unused=True)
    assert parts[-1] is None
    return torch.cat([g.reshape(-1) for g in parts[:-1]]), value.detach()


# ----------------------------------------------------------------------------------- every one
@each_case
def test_values_are_the_formulas(case):
    objective, mem, formula = CASES[case]
    loss = objective.loss(three_blocks(), t(X), BATCH, t(REF), mem)
    assert loss.shape == (() if objective.whole else (len(LABELS),))
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


@pytest.mark.parametrize("case", [c for c in CASES if not CASES[c][0].whole])
def test_an_example_does_not_see_the_others(case):
    objective, mem, _ = CASES[case]
    net, some = three_blocks(), [4, 0]
    whole = objective.loss(net, t(X), BATCH, t(REF), mem)
    part = objective.loss(net, t(X), tuple(v[some] for v in BATCH), t(REF), mem)
    close(part, whole[some])


@each_case
def test_a_label_that_the_client_lacks_gives_no_nan_at_weight_zero(case):
    objective, mem, _ = CASES[case]
    if mem._fields == ("counts",):
        mem = rec(counts=t(np.array([16.0, 1.0, 0.0])))  # LABELS has 2
    if objective.whole:
        pytest.skip("such a batch is never padded")
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
        "loss": objective,
    }
    return small(algorithm or FedAvg(), torch.float64, **(settings | changes))


def test_moon_remembers_the_last_local_model_of_those_who_took_part():
    # one client per round: the server's model after it is that client's last local one
    cohorts, seen, after = [[0], [2], [0]], [], []
    for loop in trace(rounds_of(MOON(), cohorts), 3):
        after.append(loop.srv.x.clone())
        seen.append({i: row.obj for i, row in loop.memory.get(range(3)).items()})
    assert [sorted(s) for s in seen] == [[], [0], [0, 2], [0, 2]]
    assert all(float(row.seen) == 1 for s in seen for row in s.values())
    for t_, i, maker in [(1, 0, 1), (2, 0, 1), (2, 2, 2), (3, 0, 3), (3, 2, 2)]:
        close(seen[t_][i].prev, after[maker], 1e-14)


def test_moons_term_begins_with_a_clients_second_participation():
    cohorts = [[0], [2], [0]]
    ends = [
        [loop.srv.x.clone() for loop in trace(rounds_of(o, cohorts), 3)]
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
        [*trace(small(FedACG(), torch.float64, loss=o), 3)][-1].srv.x
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
        [*trace(small(FedAvg(), torch.float64, loss=OBJECTIVES[name](**o)), 3)][-1].srv.x
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
    experiment = small(FedAvg(), model=Opaque(), loss=OBJECTIVES[name]())
    with pytest.raises(CompositionError, match=f"{OBJECTIVES[name].__name__} and Opaque: .*blocks"):
        list(trace(experiment, 1))


@pytest.mark.parametrize("name", ["fedlc", "fedntd"])
def test_the_others_take_any_model(name):
    *_, loop = trace(small(FedAvg(), model=Opaque(), loss=OBJECTIVES[name]()), 2)
    assert loop.srv.x.isfinite().all()


@pytest.mark.parametrize("name", ["moon", "feddecorr"])
def test_features_that_nothing_trains_are_refused(name):
    model = nn.Sequential(nn.Flatten(), nn.Linear(5, 3))
    with pytest.raises(CompositionError, match="nothing before '1' has a trained parameter"):
        list(trace(small(FedAvg(), model=model, loss=OBJECTIVES[name]()), 1))


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
        list(trace(small(FedAvg(), data=numbers, cohort=1.0, loss=FedLC()), 1))
