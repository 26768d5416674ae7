"""How views are made, told, cut and refused."""

from __future__ import annotations

import logging
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.func import grad, vmap

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


def small_net() -> Net:
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


@given(st.data())
def test_a_masked_layout_counts_what_is_left_of_every_piece(data):
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=6))
    d = sum(sizes)
    some = sorted(data.draw(st.sets(st.integers(0, d - 1), min_size=1, max_size=d)))
    names = tuple(f"p{i}" for i in range(len(sizes)))
    view = behind_mask(torch.tensor(some), Layout(names, tuple((n,) for n in sizes)))
    owner = [i for i, n in enumerate(sizes) for _ in range(n)]
    expected = [sum(owner[j] == i for j in some) for i in range(len(sizes))]
    assert (view.layout.names, view.layout.sizes, view.d) == (names, expected, d)


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
    sent = view.take(rec(x=net.init(), c=net.init()))
    assert sent.x.numel() == sent.c.numel() == m


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_the_client_makes_the_same_view_from_what_it_is_told(rule):
    net, other = small_net(), small_net()
    view = rule.view(net.init(), net, 0.3, NOW)
    told = pickle.loads(pickle.dumps(rule.told(view)))
    arrays = {name: (v.dtype, len(v)) for name, v in told._asdict().items()}
    if rule.cuts:
        assert arrays == {}
    else:
        groups = 4 if rule.group == "layer" else 1  # three weights and the classifier's bias
        kind, length = arrays.pop("mask")
        competing = 8 * 9 + 8 * 8 * 9 + 32 * 3 + 3  # one bit for each at most, and a head of five
        assert kind == torch.uint8 and length <= 5 + -(-competing // 8)
        assert arrays == {"tau": (torch.float64, groups)}
    again = rule.again(told, other, 0.3, NOW)
    assert torch.equal(again.held, view.held)
    assert (again.layout, again.d) == (view.layout, view.d)
    if view.fit is not None:
        assert torch.equal(again.fit.tau, view.fit.tau)
        assert torch.equal(again.fit.groups, view.fit.groups)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_vmap_over_clients_of_a_view_is_one_by_one(rule):
    net = small_net()
    view = rule.view(net.init(), net, 0.3, NOW)
    inner = view.net or net
    inner.train(True)
    generator = torch.Generator().manual_seed(1)
    m = len(view.held)
    x = view.take(net.init()) * (0.7 + 0.6 * torch.rand(3, m, 1, generator=generator)[..., 0])
    inputs = torch.randn(3, 4, 1, 5, 5, dtype=torch.float64, generator=generator)

    def step(y, images):
        plain = grad(lambda z: (inner(view.seen(z), images) ** 2).sum())
        g = plain(y) if view.fit is None else rule.grad(plain, y, view.fit)
        delta = -0.1 * g
        base = net.init()
        return delta, rule.covered(delta), view.put(y + delta, base), view.take(view.put(y, base))

    together = vmap(step)(x, inputs)
    for i in range(3):
        for one, all_of_them in zip(step(x[i], inputs[i]), together, strict=True):
            torch.testing.assert_close(all_of_them[i], one, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("capacity", [0.0, -0.5, 1.5, float("nan")])
def test_a_capacity_is_a_share(rule, capacity):
    net = small_net()
    with pytest.raises(ConfigError, match=r"capacity must be in \(0, 1\], got"):
        rule.view(net.init(), net, capacity, NOW)


def test_the_registry_makes_every_rule():
    made = {name: make() for name, make in SUBMODELS.items()}
    assert all(isinstance(rule, SubModel) for rule in made.values())
    assert [rule.fixed for rule in made.values()] == [False, False, True, False, True, True]
    assert hash(made["fiarse"]) == hash(FIARSE())


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
def remarks(rule: SubModel, x: torch.Tensor, net: Net) -> list[str]:
    return rule.remarks(rule.view(x, net, 0.25, 0), net, 0.25)


def test_ties_are_all_held_and_remarked_on():
    net, x = Net(Variables(torch.zeros(100))), torch.full((100,), -0.5)
    assert len(FIARSE().view(x, net, 0.25, NOW).held) == 100
    (remark,) = remarks(FIARSE(), x, net)
    assert "100 coordinates are held at capacity 0.25 instead of 25" in remark


def test_an_end_of_the_net_that_is_cut_off_is_remarked_on():
    net = Net(models.mlp(inputs=8, hidden=(16, 12), classes=4))
    dead = lambda name: net.init() * torch.where(net.layout.where(name) > 0, 1e-6, 1.0)
    (remark,) = remarks(FIARSE(), dead("head.*"), net)
    assert "nothing of 'head.weight' is held at capacity 0.25" in remark
    (remark,) = remarks(FIARSE(), dead("fc1.*"), net)
    assert "nothing of 'fc1.linear.weight'" in remark
    assert remarks(FIARSE(mask_classifier=False), dead("head.*"), net) == []
    # an exempt head: the last layer that is masked is no end of the net
    inside = FIARSE(group="shard", shards=("fc*",))
    assert remarks(inside, dead("fc2.*"), net) == []
    assert remarks(FIARSE(), net.init(), net) == []


def test_a_part_far_from_its_size_is_remarked_on():
    net = Net(models.mlp(inputs=8, hidden=(16, 12), classes=4))
    (remark,) = remarks(HeteroFL(), net.init(), net)
    assert "a client of capacity 0.25 holds 38.50% of the model (154 of 400); width = bud" in remark
    assert remarks(HeteroFL(width="budget"), net.init(), net) == []
    square = Net(models.mlp(inputs=32, hidden=(64, 64), classes=4))
    assert remarks(HeteroFL(), square.init(), square) == []


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
