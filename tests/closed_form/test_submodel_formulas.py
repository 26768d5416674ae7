"""What the sub-model papers' formulas say of losses, slices, averages and evaluation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedloom import FedAvg, Local, models
from fedloom.core.dropout import seeded
from fedloom.core.net import Net, Variables
from fedloom.core.vector import rec
from fedloom.data import from_clients
from fedloom.engines.client_results import Request, TrainTask
from fedloom.errors import CompositionError
from fedloom.objectives import MaskedCrossEntropy, OrderedDistillation, SelfDistillation
from fedloom.submodels import FIARSE, FjORD, HeteroFL, ScaleFL
from fedloom.submodels.slicing import Cut, count_left, cut_net, largest_share, unscaled
from tiny import opened, small

pytestmark = pytest.mark.usefixtures("seed_zero")


def gaussian(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


prefix = lambda units, keep: torch.arange(keep)
multi = lambda: Net(models.cnn_fafed_fashion(widen=2, exits=True).double())


# ------------------------------------------------------------------------- who is in the average
def test_the_bound_follows_the_type_and_the_update():
    for dtype in (torch.float32, torch.float64):
        eps = torch.finfo(dtype).eps
        delta = torch.tensor([0.0, 0.5 * eps, 4 * eps, -2.0], dtype=dtype)
        for scale in (1.0, 2.0**20, 2.0**-20):
            assert FIARSE(count="nonzero").covered(scale * delta).tolist() == [0, 0, 1, 1]
    assert FIARSE(count="nonzero").covered(torch.zeros(3)).tolist() == [0, 0, 0]


# ------------------------------------------------------------------------- FIARSE: shards, momentum
def test_shards_have_thresholds_of_their_own_and_the_rest_is_exempt():
    net = Net(models.mlp(inputs=8, hidden=(16, 12), classes=5).double())
    rule = FIARSE(group="shard", shards=("fc1.*.weight", "fc*"))
    view = rule.view(net.init(), net, 0.25, 1)
    size = dict(zip(net.layout.names, view.layout.sizes, strict=True))
    assert size["fc1.linear.weight"] == 128 // 4
    second = ("fc1.linear.bias", "fc2.linear.weight", "fc2.linear.bias")
    assert sum(size[name] for name in second) == (16 + 192 + 12) // 4
    assert (size["head.weight"], size["head.bias"]) == (60, 5)  # fits no shard
    assert rule.counted(net) == (True, True, True, True, False, False)
    back = rule.again(rule.told(view), net, 0.25, 1)
    assert torch.equal(back.held, view.held) and torch.equal(back.fit.tau, view.fit.tau)


@pytest.mark.parametrize("capacity", [0.001, 0.02, 0.3, 0.9])
def test_a_mask_is_told_by_its_cheapest_coding(capacity):
    d = 4000
    net = Net(Variables(torch.zeros(d, dtype=torch.float64)))
    view = FIARSE().view(gaussian(d), net, capacity, 1)
    k, raw = len(view.held), FIARSE().told(view).mask
    entropy = -k * math.log2(k / d) - (d - k) * math.log2(1 - k / d)
    assert entropy / 8 * 0.9 < len(raw) <= 5 + min(d / 8, 4 * k)
    if capacity < 0.1:
        assert len(raw) < 1.15 * entropy / 8 + 8


def test_a_dropped_weight_stops_or_goes_on_by_its_momentum():
    x, fit = torch.tensor([0.5, 2.0]), rec(tau=torch.tensor([1.0, 1.0]))
    d = torch.tensor([3.0, 3.0])
    assert FIARSE().move(d, x, fit).tolist() == [3.0, 3.0]
    assert FIARSE(momentum_mask="update").move(d, x, fit).tolist() == [0.0, 3.0]
    static = FIARSE(momentum_mask="update", dynamic=False)
    assert static.move(d, x, fit).tolist() == [3.0, 3.0]


# ---------------------------------------------------------------- HeteroFL: scaler, masked entropy
def test_the_scaler_divides_in_training_and_not_in_tests():
    net = Net(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double())
    view, bare = (HeteroFL(scaler=s).view(None, net, 1 / 16, 0) for s in (True, False))
    x, inputs = view.take(net.init()), gaussian(5, 3)
    h = bare.net.module[0](inputs) / 0.25
    expected = bare.net.module[2](h.tanh())
    torch.testing.assert_close(view.net(x, inputs), expected, rtol=0, atol=1e-15)
    view.net.train(False)
    torch.testing.assert_close(view.net(x, inputs), bare.net(x, inputs), rtol=0, atol=0)


def test_a_scaler_that_is_always_on_goes_into_the_weights():
    net = Net(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double())
    small, _ = cut_net(net, Cut("ScaleFL", 0.5, prefix, True, "always"))
    module, inputs = small.export(small.init()), gaussian(4, 3)
    before = module(inputs)
    assert type(unscaled(module)[0]) is nn.Linear
    torch.testing.assert_close(module(inputs), before, rtol=0, atol=1e-14)


def test_absent_classes_are_constants_of_the_masked_cross_entropy():
    net = Net(nn.Linear(4, 3).double())
    inputs, labels = gaussian(6, 4), torch.tensor([0, 2, 0, 2, 2, 0])
    counts = torch.tensor([3.0, 0.0, 3.0], dtype=torch.float64)
    z = net(net.init(), inputs)
    for absent, total in (("zero", 1.0), ("out", 0.0)):
        loss = MaskedCrossEntropy(absent=absent)
        got = loss.loss(net, net.init(), (inputs, labels), net.init(), rec(counts=counts))
        own = z.exp()[:, [0, 2]].sum(1) + total
        torch.testing.assert_close(got, own.log() - z[torch.arange(6), labels])
        g = torch.func.grad(
            lambda x, loss=loss: loss.mean(net, x, (inputs, labels), x, rec(counts=counts))
        )(net.init())
        rows = net.layout.views(g)
        assert not rows["weight"][1].any() and not rows["bias"][1].any()
        assert rows["weight"][[0, 2]].abs().min() > 0


@pytest.mark.parametrize("capacity", [0.02, 0.1, 0.5])
def test_the_budget_is_kept_as_nearly_as_64ths_of_the_width_can(capacity):
    net = Net(models.mlp(inputs=30, hidden=(64, 128), classes=10))
    how = Cut("HeteroFL", 1.0, prefix)
    share = largest_share(net, how, capacity)
    m = lambda k: len(cut_net(net, how._replace(share=k / 64))[1])
    k = round(share * 64)
    assert m(k) <= capacity * net.layout.d < m(k + 1)
    assert all(count_left(net, how._replace(share=j / 64)) == m(j) for j in (1, k, 63))
    view = HeteroFL(width="budget").view(None, net, capacity, 0)
    assert len(view.held) == m(k)


def test_the_parameters_of_convolutions_are_counted_and_may_fill_the_budget_to_the_last():
    net = Net(nn.Sequential(nn.Conv2d(1, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 4)))
    how = Cut("HeteroFL", 1.0, prefix)
    k = 16  # filters with 3 x 3 weights and a bias; as many columns of 4 outputs, and their biases
    left = 16 * (9 + 1) + 16 * 4 + 4
    assert count_left(net, how._replace(share=k / 64)) == left
    assert largest_share(net, how, left / net.layout.d) == k / 64
    assert largest_share(net, how, (left - 1) / net.layout.d) == (k - 1) / 64


# ------------------------------------------------------------------------------------------ ScaleFL
@pytest.mark.parametrize("code", [False, True])
def test_the_loss_of_all_exits_is_the_formula(code):
    net, inputs = multi(), gaussian(5, 1, 28, 28)
    labels, T, beta = torch.tensor([0, 3, 3, 9, 1]), 3.0, 0.4
    out = net.raw(net.init(), inputs)
    z = [*out.earlier, out.logits]
    ce = [F.cross_entropy(v, labels, reduction="none") for v in z]
    kl = [
        F.kl_div((v / T).log_softmax(1), (z[-1] / T).softmax(1), reduction="none").sum(1)
        for v in z[:-1]
    ]
    kl = [v / 10 for v in kl] if code else kl
    expected = (3 * ce[2] + 1 * (ce[0] + beta * 9 * kl[0]) + 2 * (ce[1] + beta * 9 * kl[1])) / 6
    loss = SelfDistillation(beta=beta, tau=T, code=code)
    got = loss.loss(net, net.init(), (inputs, labels), net.init(), rec())
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=0)


def test_the_teaching_begins_after_so_many_rounds():
    net, inputs, labels = multi(), gaussian(5, 1, 28, 28), torch.tensor([0, 3, 3, 9, 1])
    late, never, always = (SelfDistillation(beta=0.4, after=2), SelfDistillation(beta=0.0),
                           SelfDistillation(beta=0.4))  # fmt: skip
    mem = late.init(rec(counts=torch.zeros(10, dtype=torch.float64)))
    for t, same in ((0, never), (1, never), (2, always), (7, always)):
        mem = late.begin(mem, rec(round=t, last=-1.0, first=0))
        got = late.loss(net, net.init(), (inputs, labels), net.init(), mem)
        want = same.loss(net, net.init(), (inputs, labels), net.init(), rec())
        torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert always.init(rec(counts=torch.zeros(10))) == rec()


def test_the_teacher_gets_no_gradient_from_what_it_teaches():
    net, inputs, labels = multi(), gaussian(5, 1, 28, 28), torch.tensor([0, 3, 3, 9, 1])
    g = lambda **on: net.layout.views(
        torch.func.grad(lambda x: SelfDistillation(**on).mean(net, x, (inputs, labels), x, rec()))(
            net.init()
        )
    )["head.weight"]
    torch.testing.assert_close(g(beta=5.0), g(beta=0.0), rtol=0, atol=1e-15)
    assert (g(beta=5.0, code=True) - g(beta=0.0)).abs().max() > 1e-4


def test_a_shallow_part_is_the_model_up_to_its_exit():
    net, inputs = multi(), gaussian(2, 1, 28, 28)
    x = net.init() + 0.1 * gaussian(net.layout.d)
    small, held = cut_net(net, Cut("ScaleFL", 1.0, prefix, exits=2))
    assert small.layout.names == tuple(
        n for n in net.layout.names if not n.startswith(("fc1", "head"))
    )
    answers, whole = small.raw(x[held], inputs), net.raw(x, inputs)
    torch.testing.assert_close(answers.logits, whole.earlier[1], rtol=0, atol=1e-14)
    torch.testing.assert_close(answers.earlier[0], whole.earlier[0], rtol=0, atol=1e-14)
    small.train(False)
    torch.testing.assert_close(small(x[held], inputs), answers.logits, rtol=0, atol=0)


@pytest.mark.parametrize(("capacity", "share", "exits"), [(0.25, 1.0, 2), (1e-6, 1 / 64, 1)])
def test_a_scalefl_part_ends_early_and_where_nothing_fits_it_is_the_smallest(
    capacity, share, exits
):
    net = multi()  # half of its width with all exits is more than a quarter
    expected = cut_net(net, Cut("ScaleFL", share, prefix, exits=exits))[1]
    assert torch.equal(ScaleFL().view(None, net, capacity, 0).held, expected)


@pytest.mark.slow
def test_depth_gives_way_before_half_of_the_width():
    net = multi()
    how = Cut("ScaleFL", 1.0, prefix)
    left = {
        h: [count_left(net, how._replace(share=k / 64, exits=h)) for k in range(1, 65)]
        for h in (1, 2, 3)
    }
    for capacity in (1 / 64, 0.04, 1 / 16, 0.16, 1 / 4, 0.36, 0.64):
        view = ScaleFL().view(None, net, capacity, 0)
        fits = {h: sum(m <= capacity * net.layout.d for m in left[h]) for h in left}
        wide = [h for h in fits if fits[h] >= 32]
        depth = max(wide) if wide else max(fits, key=lambda h: (fits[h], h))
        expected = cut_net(net, how._replace(share=fits[depth] / 64, exits=depth))[1]
        assert torch.equal(view.held, expected)


@pytest.mark.slow
def test_scalefl_on_resnet18_has_the_golden_depths_and_shares():
    net = Net(models.resnet18_fiarse(exits=True))
    golden = {1 / 64: (2, 0.0153), 1 / 16: (3, 0.0623), 1 / 4: (3, 0.2486), 0.04: (2, 0.0385),
              0.16: (3, 0.158), 0.36: (4, 0.353), 0.64: (4, 0.635)}  # fmt: skip
    for capacity, (depth, share) in golden.items():
        view = ScaleFL().view(None, net, capacity, 0)
        inner = view.net.module
        assert len(inner.exits) + (inner.stages[-1] == "head") == depth
        assert len(view.held) / net.layout.d == pytest.approx(share, abs=6e-4)


# ------------------------------------------------------------------------------------------- FjORD
def test_a_step_of_fjord_is_that_of_the_narrower_network_it_drew():
    net = Net(models.mlp(inputs=3, hidden=(8, 8), classes=3).double())
    view = FjORD(widths=(0.25, 0.5, 1.0)).view(None, net, 0.25, 0)
    x, inputs, seen = view.take(net.init()), gaussian(4, 3), set()
    slices = []
    for share in (0.25, 0.5):
        small, held = cut_net(net, Cut("FjORD", share, prefix))
        slices.append((small, torch.searchsorted(view.held, held)))
    f = lambda n: torch.func.grad(lambda y: (n(y, inputs) ** 2).sum())
    for seed in range(12):
        with seeded(seed):
            g = f(view.net)(x)
            same = f(view.net)(x)
        assert torch.equal(g, same)
        for width, (small, place) in enumerate(slices):
            expected = torch.zeros_like(x).index_copy(0, place, f(small)(x[place]))
            if torch.allclose(g, expected, rtol=0, atol=1e-13):
                seen.add(width)
                break
        else:
            raise AssertionError("the gradient is that of no width")
    assert seen == {0, 1}


def test_fjord_draws_every_width_as_often_and_aggregates_over_holders():
    net = Net(models.mlp(inputs=3, hidden=(8,), classes=3))
    view = FjORD(widths=(0.25, 0.5, 0.75, 1.0)).view(None, net, 1.0, 0)
    x, inputs, times = net.init() + 0.5, torch.ones(1, 3), dict.fromkeys(range(4), 0)
    for seed in range(400):
        with seeded(seed):
            g = torch.func.grad(lambda y: view.net(y, inputs).sum())(x)
        live = int((net.layout.views(g)["fc1.linear.bias"] != 0).sum())
        times[[2, 4, 6, 8].index(live)] += 1
    assert all(70 <= n <= 130 for n in times.values()), times  # 100 +- 3.5 deviations
    assert view.held is None


def test_the_distilled_loss_is_the_formula():
    net = Net(models.mlp(inputs=3, hidden=(8,), classes=3).double())
    view = FjORD(widths=(0.25, 1.0)).view(None, net, 1.0, 0)
    x, inputs, labels = net.init(), gaussian(4, 3), torch.tensor([0, 1, 2, 2])
    loss = OrderedDistillation(alpha=0.3, tau=2.0)
    with seeded(3):
        part = view.net(x, inputs)
        got = loss.loss(view.net, x, (inputs, labels), x, rec())
    full = net(x, inputs)
    ce = lambda z: F.cross_entropy(z, labels, reduction="none")
    kl = F.kl_div((part / 2).log_softmax(1), (full / 2).softmax(1), reduction="none").sum(1)
    torch.testing.assert_close(got, ce(full) + 0.7 * ce(part) + 0.3 * 4 * kl)


# -------------------------------------------------------------------- HeteroFL: who owns a class
def _owners_round(owners: bool):
    """Three clients with classes {0, 1}, {1}, {0} of four; the last one holds a quarter."""
    draw = np.random.default_rng(5)
    sets = [([0, 1], 4), ([1], 3), ([0], 2)]
    pairs = [(draw.normal(size=(n, 2)), np.resize(labels, n)) for labels, n in sets]
    torch.manual_seed(2)
    parts = {
        "model": models.mlp(inputs=2, hidden=(4,), classes=4).double(),
        "data": from_clients(pairs, test=(np.zeros((1, 2)), np.array([3])), dtype=torch.float64),
        "cohort": 1.0,
        "weighting": "uniform",
        "local": Local(steps=2, lr=0.5),
        "submodel": HeteroFL(owners=owners, scaler=False),
        "capacities": [1.0, 1.0, 0.25],
    }
    with opened(small(FedAvg(), torch.float64, **parts)) as loop:
        split, before = loop.net.layout.views, loop.state.srv.x
        sent = rec(x=before), loop.state.buffers, {}
        tasks = [TrainTask(*sent, [i], 0) for i in range(3)]
        alone = [loop.engine.map(Request.TRAIN, task).nodes[0][2] for task in tasks]
        loop.until(1)
    return split(before), split(loop.state.srv.x), [split(part.delta) for part in alone]


def test_a_class_is_averaged_over_its_owners():
    before, after, counted = _owners_round(True)
    _, plain, deltas = _owners_round(False)
    w = [d["head.weight"] for d in deltas]
    base, new = before["head.weight"], after["head.weight"]
    # clients 0 and 2 have class 0; of its columns client 2 holds the first two
    near = lambda got, want: torch.testing.assert_close(got, want, rtol=0, atol=1e-15)
    near(new[0, :2], (base + (w[0] + w[2]) / 2)[0, :2])
    near(new[0, 2:], (base + w[0])[0, 2:])
    near(new[1], (base + (w[0] + w[1]) / 2)[1])
    assert torch.equal(new[2:], base[2:])  # nobody has classes 2 and 3
    near(plain["head.weight"][1, 2:], (base + (w[0] + w[1]) / 2)[1, 2:])
    near(plain["head.weight"][1, :2], (base + (w[0] + w[1] + w[2]) / 3)[1, :2])
    b = [d["head.bias"] for d in deltas]
    near(after["head.bias"][0], (before["head.bias"] + (b[0] + b[2]) / 2)[0])
    assert torch.equal(after["head.bias"][2:], before["head.bias"][2:])
    assert not counted[1]["head.weight"][0].any() and not counted[2]["head.bias"][1].any()
    for name in ("fc1.linear.weight", "fc1.linear.bias"):
        assert torch.equal(after[name], plain[name])


def test_rows_are_those_of_every_exit():
    net = Net(models.cnn_fafed_fashion(exits=True))
    rows = net.layout.views(HeteroFL(owners=True).rows(net))
    heads = [n for n in rows if n.startswith(("exit_", "head"))]
    assert len(heads) == 6
    for name, at in rows.items():
        want = torch.arange(10) if name in heads else torch.tensor([-1])
        assert torch.equal(at.unique(), want)
        assert name not in heads or torch.equal(at.reshape(10, -1)[:, 0], torch.arange(10))
    assert HeteroFL().rows(net) is None


def test_owners_need_classes():
    numbers = from_clients([(np.zeros((3, 2)), np.zeros((3, 1)))] * 2)
    parts = {"submodel": HeteroFL(owners=True), "capacities": [0.25, 1.0], "cohort": 2}
    model = models.mlp(inputs=2, hidden=(4,), classes=1)
    with pytest.raises(CompositionError, match=r"HeteroFL averages .* submodel.owners = false"):
        small(FedAvg(), data=numbers, model=model, **parts).build()
