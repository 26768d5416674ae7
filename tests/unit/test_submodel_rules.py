"""How views are made, told, cut and refused."""

from __future__ import annotations

import logging
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedloom import FedAvg, models
from fedloom.core.layout import Layout
from fedloom.core.net import Net, Variables
from fedloom.core.vector import rec
from fedloom.errors import CompositionError, ConfigError, DataError
from fedloom.models.layers import Residual
from fedloom.submodels import (
    FIARSE,
    SUBMODELS,
    FedRolex,
    FjORD,
    HeteroFL,
    SubModel,
    behind_mask,
    greedy,
)
from tiny import small

pytestmark = pytest.mark.usefixtures("seed_zero")

NOW = 1
RULES = [
    FIARSE(),
    FIARSE(group="layer"),
    greedy(),
    HeteroFL(),
    HeteroFL(exact=False),
    HeteroFL(width="budget"),
    FedRolex(),
    FjORD(widths=(0.3, 0.8)),
]


def small_net():
    torch.manual_seed(0)
    return Net(
        nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.ReLU(),
            Residual(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(4, 8))),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 3),
        ).double()
    )  # fmt: skip


# ---------------------------------------------------------------------------------- take and put
@given(st.data())
def test_take_and_put_are_inverse_and_leave_the_rest_alone(data):
    d = data.draw(st.integers(2, 30))
    some = data.draw(st.sets(st.integers(0, d - 1), min_size=1, max_size=d - 1))
    held = torch.tensor(sorted(some))
    view = behind_mask(held, Layout(("a", "b"), ((1,), (d - 1,))))
    numbers = st.floats(-1e9, 1e9)
    vector = lambda n: torch.tensor(
        data.draw(st.lists(numbers, min_size=n, max_size=n)), dtype=torch.float64
    )
    record = rec(x=vector(d), own=rec(c=vector(d), n=3.0), nothing=None, short=torch.zeros(d + 1))
    part = view.take(record)
    assert torch.equal(part.x, record.x[held])
    assert torch.equal(part.own.c, record.own.c[held])
    assert (part.own.n, part.nothing) == (3.0, None)
    assert part.short is record.short

    before = record.x.clone()
    new = part._replace(x=vector(len(some)), own=part.own._replace(n=4.0))
    back = view.put(new, record)
    assert torch.equal(record.x, before)
    assert torch.equal(view.take(back).x, new.x)
    outside = torch.ones(d, dtype=torch.bool).index_fill(0, held, False)
    assert torch.equal(back.x[outside], record.x[outside])
    assert torch.equal(back.own.c, record.own.c)
    assert back.own.n == 4.0
    assert torch.equal(view.put(part, record).x, record.x)
    assert torch.equal(view.seen(new.x)[held], new.x)
    assert not view.seen(new.x)[outside].any()


# ------------------------------------------------------------------------------------ every rule
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_view_is_of_one_piece(rule):
    net = small_net()
    view = rule.view(net.init(), net, 0.3, NOW)
    m = len(view.held)
    assert view.held.dtype == torch.int64
    assert bool((view.held.diff() > 0).all())
    assert (view.layout.d, view.d) == (m, net.layout.d)
    assert view.layout.names == net.layout.names
    assert (view.net is not None) == rule.cuts
    assert (view.fit is None) == rule.cuts
    if view.net is not None:
        assert view.net.layout == view.layout
        assert torch.equal(view.net.init(), net.init()[view.held])
        images = torch.zeros(2, 1, 5, 5, dtype=torch.float64)
        assert view.net(view.net.init(), images).shape == (2, 3)
    sent = view.take(rec(x=net.init(), c=net.init()))
    assert sent.x.numel() == sent.c.numel() == m


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_the_client_makes_the_same_view_from_what_it_is_told(rule):
    net, other = small_net(), small_net()
    view = rule.view(net.init(), net, 0.3, NOW)
    message = pickle.loads(pickle.dumps(rule.told(view)))
    arrays = {name: (v.dtype, len(v)) for name, v in message._asdict().items()}
    if rule.cuts:
        assert arrays == {}
    else:
        groups = 4 if rule.group == "layer" else 1  # three weights and the classifier's bias
        kind, length = arrays.pop("mask")
        competing = 8 * 9 + 8 * 8 * 9 + 32 * 3 + 3  # one bit for each at most, and a head of five
        assert kind == torch.uint8 and length <= 5 + -(-competing // 8)
        assert arrays == {"tau": (torch.float64, groups)}
    again = rule.again(message, other, 0.3, NOW)
    assert torch.equal(again.held, view.held)
    assert (again.layout, again.d) == (view.layout, view.d)
    if view.fit is not None:
        assert torch.equal(again.fit.tau, view.fit.tau)
        assert torch.equal(again.fit.groups, view.fit.groups)


@pytest.mark.parametrize("capacity", [0.0, -0.5, 1.5, float("nan")])
@pytest.mark.parametrize("rule", [FIARSE(), HeteroFL(), FedRolex(), FjORD()], ids=repr)
def test_a_capacity_is_a_share(rule, capacity):
    net = small_net()
    with pytest.raises(ConfigError, match=r"capacity must be in \(0, 1\], got"):
        rule.view(net.init(), net, capacity, NOW)


def test_which_rules_hold_the_same_part_in_every_round():
    rules = {name: make() for name, make in SUBMODELS.items()}
    assert [rule.fixed for rule in rules.values()] == [False, False, True, False, True, True]


def test_a_rule_of_a_users_own_needs_one_method():
    class Half(SubModel):
        start: int = 0

        def view(self, x, net, capacity, round):
            return behind_mask(torch.arange(self.start, net.layout.d, 2), net.layout)

    net, rule = Net(nn.Linear(3, 2)), Half(start=1)
    view = rule.view(net.init(), net, 0.5, NOW)
    assert view.held.tolist() == [1, 3, 5, 7]
    assert rule.told(view) == rec()
    assert torch.equal(rule.again(rec(), net, 0.5, NOW).held, view.held)
    assert torch.equal(rule.covered(torch.zeros(4)), torch.ones(4))
    assert rule.grad(torch.sin, torch.ones(4), None)[0] == torch.ones(()).sin()


# --------------------------------------------------------------------------------- FIARSE, remarks
def remarks(rule, x, net):
    return rule.remarks(rule.view(x, net, 0.25, 0), net, 0.25)


def test_ties_are_all_held():
    net, x = Net(Variables(torch.zeros(100))), torch.full((100,), -0.5)
    assert len(FIARSE().view(x, net, 0.25, NOW).held) == 100


NET = {"inputs": 8, "hidden": (16, 12), "classes": 4}
SQUARE = {"inputs": 32, "hidden": (64, 64), "classes": 4}
INSIDE = FIARSE(group="shard", shards=("fc*",))


@pytest.mark.parametrize(
    ("rule", "shape", "dead", "said"),
    [
        (FIARSE(), NET, "head.*", "nothing of 'head.weight' is held at capacity 0.25"),
        (FIARSE(), NET, "fc1.*", "nothing of 'fc1.linear.weight'"),
        (FIARSE(mask_classifier=False), NET, "head.*", ""),
        # an exempt head: the last layer that is masked is no end of the net
        (INSIDE, NET, "fc2.*", ""),
        (FIARSE(), NET, "", ""),
        (HeteroFL(), NET, "", "0.25 holds 38.50% of the model (154 of 400); width = bud"),
        (HeteroFL(width="budget"), NET, "", ""),
        (HeteroFL(), SQUARE, "", ""),
    ],
)
def test_an_end_that_is_cut_off_and_a_part_far_from_its_size_are_remarked_on(
    rule, shape, dead, said
):
    net = Net(models.mlp(**shape))
    x = net.init()
    if dead:
        x = x * torch.where(net.layout.where(dead) > 0, 1e-6, 1.0)
    said_of = remarks(rule, x, net)
    assert len(said_of) == bool(said) and all(said in remark for remark in said_of)


def test_remarks_are_warnings_before_a_run_and_only_there(caplog):
    module = models.mlp(inputs=5, hidden=(16,), classes=3)
    with torch.no_grad():
        module.head.weight.mul_(1e-9), module.head.bias.mul_(1e-9)
    with caplog.at_level(logging.WARNING, "fedloom"):
        small(FedAvg(), model=module, submodel=FIARSE(), capacities=[0.25], rounds=2).run()
    (record,) = (r for r in caplog.records if "always says" not in r.getMessage())
    assert "nothing of 'head.weight'" in record.getMessage()


def test_fiarse_refuses_a_net_without_anything_to_mask_and_a_missing_model():
    net = Net(nn.Sequential(nn.GroupNorm(1, 4), nn.Flatten()))
    with pytest.raises(CompositionError, match="FIARSE and Sequential: no parameter may be"):
        FIARSE().view(net.init(), net, 0.5, NOW)
    with pytest.raises(DataError, match=r"a client makes its view with again\(\)"):
        FIARSE().view(None, Net(nn.Linear(2, 2)), 0.5, NOW)


def test_frozen_parameters_are_neither_masked_nor_counted():
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    module[0].weight.requires_grad_(False)
    net = Net(module)
    assert net.layout.names == ("0.bias", "2.weight", "2.bias")
    assert len(FIARSE().view(net.init(), net, 0.5, NOW).held) == 7
