"""What FIARSE's formulas say about its views, checked against the formulas."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedloom import models
from fedloom.core.net import Net, Variables
from fedloom.core.vector import rec
from fedloom.submodels import FIARSE, greedy
from resnet import gaussian, resnet18

pytestmark = pytest.mark.usefixtures("seed_zero")

CAPACITIES = (1 / 64, 0.04, 1 / 16, 0.16, 1 / 4, 0.36, 0.64)


def vector(d: int) -> Net:
    return Net(Variables(torch.zeros(d, dtype=torch.float64)))


# ------------------------------------------------------------------------------ FIARSE, Eq. 2 and 3
def test_the_gradient_is_the_product_rule_on_x_times_the_surrogate_mask():
    # d/dx F(x m(|x|)) by the product rule: F' at the binary mask, times M + x dm/dx, where m is
    # Appendix B's clip((a - tau) / (a + tau), 0, 1); every derivative by central differences
    f = lambda y: (y.sin() * y.roll(1).cos() + y**3 / 3).sum()
    x, h = gaussian(40), 1e-6
    view = FIARSE().view(x, vector(40), 0.4, 0)
    part, tau = view.take(x), view.fit.tau[0]
    full = lambda y: f(view.seen(y))

    m = lambda y: ((y.abs() - tau) / (y.abs() + tau)).clamp(0, 1)
    # one-sided at the threshold itself: the kink of the clip, where Eq. 3 takes the upper slope
    outward = part.sign() * h
    slope = (m(part + outward) - m(part)) / outward
    outer = torch.stack(
        [(full(part + h * e) - full(part - h * e)) / (2 * h) for e in torch.eye(16)]
    )
    expected = outer * (1 + part * slope)

    got = FIARSE().grad(torch.func.grad(full), part, view.fit)
    assert len(part) == 16
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-7)


@given(st.floats(1e-30, 1e6), st.floats(1e-30, 1e6), st.sampled_from([1.0, -1.0]))
def test_the_factor_lies_between_1_and_one_and_a_half(tau, more, sign):
    x = torch.tensor([sign * (tau + more)], dtype=torch.float64)
    fit = rec(tau=torch.tensor([tau], dtype=torch.float64), groups=None)
    factor = float(FIARSE().grad(torch.ones_like, x, fit))
    assert 1 <= factor <= 1.5 + 1e-15
    if more < 1e6 * tau:  # beyond, 1 + 2 |x| tau / (|x| + tau)^2 is 1 to a hundred thousandth
        assert factor > 1
        a = tau + more
        assert factor == pytest.approx(1 + 2 * (a / (a + tau)) * (tau / (a + tau)), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_a_threshold_the_factor_is_1_also_at_zero(dtype):
    x = torch.tensor([0.0, -0.0, 1e-38, -3.0], dtype=dtype)
    fit = rec(tau=torch.zeros_like(x), groups=None)
    assert torch.equal(FIARSE().grad(torch.ones_like, x, fit), torch.ones_like(x))


def test_what_falls_below_the_threshold_gets_nothing_and_is_not_seen():
    fit = rec(tau=torch.tensor([1.0, 1.0, 1.0]), groups=None)
    x = torch.tensor([0.5, 2.0, -1.0])
    seen = []

    def grad(y):
        seen.append(y)
        return torch.full_like(y, 3.0)

    got = FIARSE(biased=False).grad(grad, x, fit)
    assert torch.equal(seen[0], torch.tensor([0.0, 2.0, -1.0]))
    assert torch.equal(got, torch.tensor([0.0, 3.0, 3.0]))


def test_the_four_cells_of_the_ablation():
    # static masks see every held weight; below tau the clip is flat, so the factor is 1 there
    fit = rec(tau=torch.tensor([1.0, 1.0]), groups=None)
    x, ones = torch.tensor([0.5, 1.0]), torch.ones_like
    cell = lambda **on: FIARSE(**on).grad(ones, x, fit).tolist()
    assert cell(dynamic=True, biased=True) == [0.0, 1.5]
    assert cell(dynamic=True, biased=False) == [0.0, 1.0]
    assert cell(dynamic=False, biased=True) == [1.0, 1.5]
    assert cell(dynamic=False, biased=False) == [1.0, 1.0]
    assert greedy() == FIARSE(dynamic=False, biased=False)


# --------------------------------------------------------------------------- FIARSE, what is held
@pytest.mark.parametrize("group", ["model", "stage", "layer"])
def test_masks_are_nested_by_capacity(group):
    net = Net(models.mlp(inputs=8, hidden=(16, 12), classes=5).double())
    held = [set(FIARSE(group=group).view(net.init(), net, c, 0).held.tolist())
            for c in CAPACITIES]  # fmt: skip
    assert all(small < large for small, large in pairwise(held))


@given(st.integers(2, 300), st.floats(0.001, 0.999), st.integers(0, 10))
def test_exactly_the_floor_is_held_where_nothing_is_tied(d, capacity, seed):
    x = gaussian(d, seed)
    view = FIARSE().view(x, vector(d), capacity, 1)
    k = max(1, math.floor(capacity * d + 1e-7))
    assert len(view.held) == k
    order = x.abs().argsort(descending=True)
    assert torch.equal(view.held, order[:k].sort().values)
    assert view.fit.groups.tolist() == [float(x.abs()[order[k - 1]])]


def test_a_decimal_capacity_is_not_one_short():
    assert 0.29 * 100 < 29  # in binary
    assert len(FIARSE().view(gaussian(100), vector(100), 0.29, 0).held) == 29


def test_a_threshold_per_layer_and_per_stage_keeps_the_share_of_each():
    net = Net(models.mlp(inputs=8, hidden=(16,), classes=4).double())
    # the head is tiny, and the biases before it are large
    x = net.init() * torch.where(net.layout.where("head.*") > 0, 1e-3, 1.0)
    x = torch.where(net.layout.where("fc1.*.bias") > 0, 10.0, x)
    left = lambda group, c: [n for (n,) in FIARSE(group=group).view(x, net, c, 1).layout.shapes]
    assert net.layout.sizes == [128, 16, 64, 4]
    assert left("layer", 0.25) == [32, 16, 16, 1]  # the biases are tied
    stage = left("stage", 0.25)
    assert (stage[:2], sum(stage[2:])) == ([36 - 16, 16], 17)
    assert left("model", 0.25) == [53 - 16, 16, 0, 0]


def test_norms_and_biases_of_convolutions_are_held_by_all_and_not_counted():
    net = Net(nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 3)))
    x = net.init().where(net.layout.where("0.bias", "1.*") == 0, torch.tensor(1e-9))
    assert net.layout.names == ("0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias")
    left = lambda **on: [n for (n,) in FIARSE(**on).view(x, net, 0.5, 1).layout.shapes]
    sizes = left()
    assert sizes[1:4] == [4, 4, 4]
    assert sizes[0] + sizes[4] + sizes[5] == (36 + 48 + 3) // 2
    assert left(mask_bias=False)[5] == 3
    assert left(mask_first=False)[0] == 36
    assert left(mask_classifier=False)[4:] == [48, 3]
    wide = Net(nn.Sequential(nn.LayerNorm((2, 2)), nn.Flatten(), nn.Linear(4, 2)))
    assert FIARSE().maskable(wide) == (False, False, True, True)
    # what is exempt sees the plain gradient
    view = FIARSE().view(x, net, 0.5, 1)
    factor = FIARSE().grad(torch.ones_like, view.take(x), view.fit)
    ends = torch.tensor(view.layout.sizes).cumsum(0)
    assert torch.equal(factor[ends[0] : ends[3]], torch.ones(12))
    assert (factor[: ends[0]] > 1.3).all()


@pytest.fixture(scope="module")
def resnet() -> Net:
    torch.manual_seed(0)
    return Net(resnet18())


@pytest.mark.slow
def test_fiarse_on_resnet18_has_the_golden_counts_thresholds_and_densities(resnet):
    rule, x, layout = FIARSE(), resnet.init(), resnet.layout
    masked = rule.maskable(resnet)
    d = sum(n for n, m in zip(layout.sizes, masked, strict=True) if m)
    assert (layout.d, d) == (11_173_962, 11_164_362)
    thresholds = {1 / 64: 0.02918, 0.04: 0.02093, 1 / 16: 0.01941, 1 / 4: 0.01279}
    rows = {
        "conv1.weight": (0.856, 0.893, 0.902, 0.937),
        "layer1.0.body.0.weight": (0.30, 0.495, 0.53, 0.69),
        "layer2.0.body.0.weight": (0.30, 0.50, 0.536, 0.69),
        "layer2.1.body.0.weight": (0.009, 0.29, 0.34, 0.567),
        "layer2.0.shortcut.0.weight": (0.76, 0.825, 0.837, 0.896),
        "layer3.1.body.3.weight": (0, 0, 0.068, 0.387),
        "layer3.0.shortcut.0.weight": (0.67, 0.76, 0.78, 0.85),
        "layer4.0.body.0.weight": (0, 0, 0.068, 0.387),
        "layer4.1.body.0.weight": (0, 0, 0, 0.132),
        "layer4.0.shortcut.0.weight": (0.53, 0.67, 0.69, 0.80),
        "linear.weight": (0.345, 0.53, 0.56, 0.72),
    }
    for column, (capacity, tau) in enumerate(thresholds.items()):
        view = rule.view(x, resnet, capacity, 0)
        assert float(view.fit.groups[0]) == pytest.approx(tau, rel=3e-3)
        assert 0 <= len(view.held) - (9_600 + math.floor(capacity * d)) <= 3  # ties in float32
        for name, row in rows.items():
            i = layout.names.index(name)
            kept = view.layout.sizes[i] / layout.sizes[i]
            assert kept == pytest.approx(
                row[column], abs=0.03 if layout.sizes[i] < 30_000 else 0.01
            )


@pytest.mark.slow
def test_fiarse_by_stage_on_resnet18_holds_the_golden_number_of_each(resnet):
    view = FIARSE(group="stage").view(resnet.init(), resnet, 1 / 64, 1)
    masked = FIARSE().maskable(resnet)
    got = dict.fromkeys(["conv1", "layer1", "layer2", "layer3", "layer4", "linear"], 0)
    for name, m, n in zip(view.layout.names, masked, view.layout.sizes, strict=True):
        if m:
            got[name.split(".")[0]] += n
    golden = (27, 2304, 8192, 32768, 131072, 80)
    assert all(0 <= n - k <= 3 for n, k in zip(got.values(), golden, strict=True)), got


# ---------------------------------------------------------------------------- the mean over holders
