"""What clients hold: FIARSE's masks, and slices, each the network with zeros elsewhere and of the
size that it should have.
"""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedloom import models
from fedloom.core.net import Net, Variables
from fedloom.core.vector import rec
from fedloom.models.layers import Residual
from fedloom.submodels import FIARSE, FedRolex, HeteroFL
from resnet import gaussian, resnet18

pytestmark = pytest.mark.usefixtures("seed_zero")

CAPACITIES = (1 / 64, 0.04, 1 / 16, 0.16, 1 / 4, 0.36, 0.64)
vector = lambda d: Net(Variables(torch.zeros(d, dtype=torch.float64)))
conv = lambda a, b, **more: nn.Conv2d(a, b, 3, padding=1, **more)
norm = lambda groups, channels: nn.GroupNorm(groups, channels)


# ------------------------------------------------------------------------------ FIARSE, Eq. 2 and 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_a_threshold_the_factor_is_1_also_at_zero(dtype):
    x = torch.tensor([0.0, -0.0, 1e-38, -3.0], dtype=dtype)
    fit = rec(tau=torch.zeros_like(x), groups=None)
    assert torch.equal(FIARSE().grad(torch.ones_like, x, fit), torch.ones_like(x))


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


# ------------------------------------------------------------ a slice is the big network with zeros
NETS = {
    "linear": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(48, 10), nn.Sigmoid(), nn.Linear(10, 7), nn.Tanh(), nn.Linear(7, 3)
    ),
    "convolution": lambda: nn.Sequential(
        nn.Conv2d(3, 6, 3, bias=False), nn.MaxPool2d(2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(6, 3)
    ),
    "two convolutions and a flattened area": lambda: nn.Sequential(
        conv(3, 4, stride=2), nn.Tanh(), conv(4, 9), nn.Flatten(), nn.Linear(36, 5), nn.ReLU(),
        nn.Linear(5, 3),
    ),
    "group norm": lambda: nn.Sequential(
        conv(3, 8), norm(4, 8), nn.ReLU(), conv(8, 12), norm(6, 12), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(12, 3),
    ),
    "two norms of one width": lambda: nn.Sequential(
        conv(3, 24), norm(12, 24), nn.ReLU(), conv(24, 24), norm(8, 24), nn.Flatten(),
        nn.Linear(384, 3),
    ),
    "batch norm without statistics": lambda: nn.Sequential(
        conv(3, 8), nn.BatchNorm2d(8, track_running_stats=False), nn.ReLU(), nn.Flatten(),
        nn.Linear(128, 6), nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 3),
    ),
    "residual": lambda: nn.Sequential(
        conv(3, 8),
        Residual(nn.Sequential(conv(8, 8), norm(4, 8), nn.ReLU(), conv(8, 8), norm(4, 8))),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 3),
    ),
    "shortcut": lambda: nn.Sequential(
        conv(3, 4),
        Residual(
            nn.Sequential(conv(4, 8, stride=2), norm(4, 8), nn.ReLU(), conv(8, 8), norm(4, 8)),
            nn.Sequential(nn.Conv2d(4, 8, 1, 2, bias=False), norm(4, 8)),
        ),
        nn.AvgPool2d(2), nn.Flatten(), nn.Dropout(0.0), nn.Linear(8, 3),
    ),
    "a residual of linear layers": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(48, 6), Residual(nn.Sequential(nn.Linear(6, 9), nn.Tanh(),
        nn.Linear(9, 6))), nn.Linear(6, 3),
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", [HeteroFL(scaler=False), FedRolex(scaler=False)])
@pytest.mark.parametrize("name", NETS)
def test_a_slice_trained_small_is_the_big_network_masked_and_frozen(name, rule):
    net = Net(NETS[name]().double())
    x = net.init() + 0.3 * gaussian(net.layout.d)  # norms and biases too are something else than 0
    inputs = gaussian(5 * 48, 3).view(5, 3, 4, 4)
    labels = torch.tensor([0, 1, 2, 1, 0])
    view = rule.view(x, net, 0.3, 2)
    assert view.net.layout.d == len(view.held) < 0.75 * net.layout.d
    assert bool((view.held.diff() > 0).all())

    small = view.take(x)
    big = torch.zeros_like(x).index_copy(0, view.held, small)
    of = lambda n: torch.func.grad(lambda y: F.cross_entropy(n(y, inputs), labels))
    held = torch.zeros_like(x).index_fill(0, view.held, 1.0)
    for _ in range(6):
        torch.testing.assert_close(view.net(small, inputs), net(big, inputs), rtol=0, atol=1e-10)
        small = small - 0.5 * of(view.net)(small)
        big = big - 0.5 * of(net)(big) * held
    assert (small - view.take(x)).abs().max() > 1e-3
    torch.testing.assert_close(small, big[view.held], rtol=0, atol=1e-10)
    back = view.put(small, x)
    assert torch.equal(back[held == 0], x[held == 0])
    torch.testing.assert_close(back[view.held], big[view.held], rtol=0, atol=1e-10)


@pytest.mark.parametrize(("capacity", "kept"), [(4.9 / 10, 7), (0.5, 8), (1e-6, 1), (0.9999, 10)])
def test_a_width_is_the_ceiling_of_the_square_root_and_a_rounding_error_adds_none(capacity, kept):
    net = Net(nn.Sequential(nn.Linear(2, 10), nn.ReLU(), nn.Linear(10, 2)))
    assert HeteroFL().view(None, net, capacity, 0).net.module[0].out_features == kept
    assert math.sqrt(7 * 7 / 10 / 10) * 10 > 7  # in binary
    assert HeteroFL().view(None, net, 7 * 7 / 10 / 10, 0).net.module[0].out_features == 7


def test_exact_groups_stop_shrinking_and_a_fixed_number_of_groups_does_not():
    model = nn.Sequential(
        conv(3, 64), norm(2, 64), nn.ReLU(), conv(64, 64), norm(2, 64),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    net = Net(model)
    share = lambda exact: [
        len(HeteroFL(exact=exact).view(None, net, c, 0).held) / net.layout.d
        for c in (1 / 4, 1 / 16, 1 / 64)
    ]
    same = share(True)
    assert same[0] == same[1] == same[2] == pytest.approx(0.26, abs=0.01)
    falling = share(False)
    assert falling[0] == same[0]
    assert falling[1] < 0.08
    assert falling[2] < 0.03
    small = HeteroFL(exact=False).view(None, net, 1 / 64, 0).net.module[1]
    assert (small.num_groups, small.num_channels) == (2, 8)


@pytest.mark.parametrize("n", [4, 7])
@pytest.mark.parametrize("exact", [True, False])
def test_rolling_keeps_every_channel_equally_often_over_a_cycle(n, exact):
    net = Net(nn.Sequential(nn.Linear(3, n), nn.ReLU(), nn.Linear(n, 2)))
    rule = FedRolex(exact=exact)
    row = net.layout.views(torch.arange(net.layout.d))["0.bias"].tolist()
    times = dict.fromkeys(row, 0)
    for j in range(n):
        held = set(rule.view(None, net, 0.3, j).held.tolist())
        kept = [i for i in row if i in held]
        assert len(kept) == math.ceil(math.sqrt(0.3) * n)
        assert row[j] in kept
        for i in kept:
            times[i] += 1
    assert len(set(times.values())) == 1
    again = rule.view(None, net, 0.3, n + 1).held
    assert torch.equal(again, rule.view(None, net, 0.3, 1).held)


@pytest.mark.parametrize("name", NETS)
def test_rolling_starts_as_the_static_slice_and_is_nested_by_capacity(name):
    net = Net(NETS[name]())
    assert torch.equal(
        FedRolex().view(None, net, 0.3, 0).held, HeteroFL().view(None, net, 0.3, 0).held
    )
    for rule in (HeteroFL(), FedRolex()):
        held = [set(rule.view(None, net, c, 3).held.tolist()) for c in (1 / 16, 0.3, 0.8)]
        assert held[0] <= held[1] <= held[2]


@pytest.mark.slow
def test_heterofl_on_resnet18_has_the_golden_shares(resnet):
    golden = {1 / 8: 0.01579, 1 / 4: 0.06278, 1 / 2: 0.25037, 0.2: 0.04095, 0.4: 0.16139,
              0.6: 0.36239, 0.8: 0.64217}  # fmt: skip
    for width, share in golden.items():
        view = HeteroFL().view(None, resnet, width**2, 0)
        assert len(view.held) / resnet.layout.d == pytest.approx(share, abs=6e-6)
