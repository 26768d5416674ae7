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

from fedloom import models
from fedloom.algorithm import Job, Round
from fedloom.errors import CompositionError, ConfigError, DataError
from fedloom.layout import Layout
from fedloom.models.blocks import Residual
from fedloom.net import Net, Variables
from fedloom.vector import rec
from fedloom.views import (
    VIEWS,
    Flow,
    Importance,
    Part,
    Rolling,
    Rule,
    View,
    Width,
    behind_mask,
    greedy,
    whole,
)

NOW = Round(1, 1.0, 0.1)
RULES = [Importance(), Importance(group="layer"), greedy(), Width(), Width(exact=False), Rolling()]


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
        assert arrays == {
            "mask": (torch.uint8, -(-net.layout.d // 8)),
            "tau": (torch.float64, groups),
        }
    # a client's job carries the round as a float
    job = Job(weight=1.0, steps=1.0, lr=0.1, lr_sum=0.1, round=1.0, step=0.0, last=-1.0)
    again = rule.again(told, other, 0.3, job)
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


def test_options_out_of_range_are_refused():
    with pytest.raises(ConfigError, match=r"Importance.group must be one of model, stage, layer"):
        Importance(group="layers")
    with pytest.raises(ConfigError, match=r"Importance.count"):
        greedy(count="all")
    with pytest.raises(ConfigError, match=r"Width.exact"):
        Width(exact=3)


def test_the_registry_makes_every_rule():
    made = {name: make() for name, make in VIEWS.items()}
    assert all(isinstance(rule, Rule) for rule in made.values())
    assert [rule.fixed for rule in made.values()] == [False, False, True, False]
    assert hash(made["fiarse"]) == hash(Importance())


def test_a_rule_of_a_users_own_needs_one_method():
    class Half(Rule):
        start: int = 0

        def view(self, x, net, capacity, rnd):
            return behind_mask(torch.arange(self.start, net.layout.d, 2), net.layout)

    net, rule = Net(nn.Linear(3, 2)), Half(start=1)
    view = rule.view(net.init(), net, 0.5, NOW)
    assert view.held.tolist() == [1, 3, 5, 7]
    assert rule.told(view) == rec()
    assert torch.equal(rule.again(rec(), net, 0.5, NOW).held, view.held)
    assert torch.equal(rule.covered(torch.zeros(4)), torch.ones(4))
    assert rule.grad(torch.sin, torch.ones(4), None)[0] == torch.ones(()).sin()


def test_a_view_travels_between_processes():
    net = small_net()
    for rule in RULES:
        view = rule.view(net.init(), net, 0.3, NOW)
        back = pickle.loads(pickle.dumps(view))
        assert isinstance(back, View)
        assert torch.equal(back.held, view.held)
    assert pickle.loads(pickle.dumps(whole(net.layout))) == whole(net.layout)


# --------------------------------------------------------------------------------- FIARSE, remarks
def test_ties_are_all_held_and_reported_once_at_the_start(caplog):
    net, x = Net(Variables(torch.zeros(100))), torch.full((100,), -0.5)
    with caplog.at_level(logging.WARNING, "fedloom"):
        view = Importance().view(x, net, 0.25, Round(0, 1.0, 0.1))
        Importance().view(x, net, 0.25, Round(7, 1.0, 0.1))
    assert len(view.held) == 100
    (record,) = caplog.records
    assert "100 coordinates are held at capacity 0.25 instead of 25" in record.getMessage()


def test_an_end_of_the_net_that_is_cut_off_is_reported(caplog):
    net = Net(models.mlp(inputs=8, hidden=(16,), classes=4))
    dead_head = net.init() * torch.where(net.layout.where("head.*") > 0, 1e-6, 1.0)
    with caplog.at_level(logging.WARNING, "fedloom"):
        Importance().view(dead_head, net, 0.25, Round(0, 1.0, 0.1))
    (record,) = caplog.records
    assert "nothing of 'head.weight' is held at capacity 0.25" in record.getMessage()
    caplog.clear()
    with caplog.at_level(logging.WARNING, "fedloom"):
        Importance(mask_classifier=False).view(dead_head, net, 0.25, Round(0, 1.0, 0.1))
        Importance().view(net.init(), net, 0.25, Round(0, 1.0, 0.1))
    assert not caplog.records


def test_fiarse_refuses_a_net_without_anything_to_mask_and_a_missing_model():
    net = Net(nn.Sequential(nn.GroupNorm(1, 4), nn.Flatten()))
    with pytest.raises(CompositionError, match="Importance and Sequential: no parameter may be"):
        Importance().view(net.init(), net, 0.5, NOW)
    with pytest.raises(DataError, match=r"a client makes its view with again\(\)"):
        Importance().view(None, Net(nn.Linear(2, 2)), 0.5, NOW)


def test_frozen_parameters_are_neither_masked_nor_counted():
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    module[0].weight.requires_grad_(False)
    net = Net(module)
    assert net.layout.names == ("0.bias", "2.weight", "2.bias")
    assert len(Importance().view(net.init(), net, 0.5, NOW).held) == 7


# --------------------------------------------------------------------------------------- cutting
def test_a_slice_keeps_names_frozen_parameters_and_training_flags():
    module = models.mlp(inputs=4, hidden=(6, 6), classes=2)
    module.fc1.linear.weight.requires_grad_(False)
    module.fc2.eval()
    net = Net(module)
    view = Width().view(None, net, 0.25, NOW)
    cut = view.net.module
    assert [name for name, _ in cut.named_children()] == ["fc1", "fc2", "head"]
    assert torch.equal(cut.fc1.linear.weight, net.module.fc1.linear.weight[:3])
    assert not cut.fc1.linear.weight.requires_grad
    assert "fc1.linear.weight" not in view.layout.names
    assert (cut.fc1.training, cut.fc2.training, cut.fc2.linear.training) == (True, False, False)


def test_a_slice_keeps_how_a_layer_computes():
    layer = nn.Conv2d(
        3, 4, (3, 1), stride=2, padding=(1, 0), dilation=(1, 2), padding_mode="circular"
    )
    head = nn.Linear(4, 2)
    norm = nn.GroupNorm(2, 4, eps=0.1, affine=False)
    module = nn.Sequential(layer, norm, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
    conv, small_norm = list(Width().view(None, Net(module), 0.25, NOW).net.module)[:2]
    for name in ("kernel_size", "stride", "padding", "dilation", "padding_mode", "groups"):
        assert getattr(conv, name) == getattr(layer, name)
    assert (small_norm.eps, small_norm.affine, small_norm.num_groups) == (0.1, False, 1)


@pytest.mark.parametrize("name", sorted(set(models.MODELS) - {"logistic"}))
def test_the_models_of_the_house_can_be_cut(name):
    net = Net(models.MODELS[name]())
    view = Width().view(None, net, 0.25, NOW)
    assert 0.2 < len(view.held) / net.layout.d < 0.6
    shape = {"mlp": (64,), "cnn_fafed_cifar": (3, 32, 32)}.get(name, (1, 28, 28))
    images = torch.zeros(2, *shape)
    small = view.take(net.init())
    assert view.net(small, images).shape == net(net.init(), images).shape


class Doubled(nn.Module):
    """A module of a user's own: a linear layer and a scale for each of its outputs."""

    def __init__(self, inner: nn.Module, scale: torch.Tensor) -> None:
        super().__init__()
        self.inner, self.scale = inner, nn.Parameter(scale)

    def forward(self, inputs):
        return self.inner(inputs) * self.scale

    def cut(self, part: Part, flow: Flow):
        inner, out = part.child("inner", flow)
        return Doubled(inner, part.keep("scale", out.ids)), out


class Uncut(Doubled):
    cut = None


def test_a_module_may_say_how_it_is_cut():
    make = lambda kind: nn.Sequential(
        kind(nn.Linear(3, 4), torch.arange(4.0)), nn.ReLU(), nn.Linear(4, 2)
    )
    net = Net(make(Doubled))
    view = Rolling().view(None, net, 0.25, Round(3, 1.0, 0.1))
    assert view.net.layout.views(view.take(net.init()))["0.scale"].tolist() == [0.0, 3.0]
    with pytest.raises(CompositionError, match="Rolling cannot cut Uncut '0': no way is known"):
        Rolling().view(None, Net(make(Uncut)), 0.25, NOW)


class Forgetful(Doubled):
    def cut(self, part: Part, flow: Flow):
        inner, out = part.child("inner", flow)
        return Doubled(inner, self.scale.detach()), out


def tied() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    module[1].weight = module[0].weight
    return module


def twice() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(4, 2))


class OwnLinear(nn.Linear):
    pass


def on(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), *layers)


REFUSED = {
    "an unknown module": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.PReLU(), nn.Linear(4, 2)),
        r"Width cannot cut PReLU '1': no way is known; build the net of .*a method cut",
    ),
    "a subclass": (lambda: nn.Sequential(OwnLinear(4, 4), nn.Linear(4, 2)), "cannot cut OwnLinear"),
    "no hidden layer": (
        lambda: models.logistic(4, 2), r"'the model': no hidden layer has channels",
    ),
    "one exact group": (
        lambda: on(nn.GroupNorm(1, 4), nn.Flatten(), nn.Linear(4, 2)), "exact=False",
    ),
    "a vector": (lambda: Variables(torch.zeros(3)), "Width cannot cut Variables"),
    "grouped convolution": (lambda: on(nn.Conv2d(4, 4, 3, groups=2)), r"'1': it has 2 groups"),
    "running statistics": (
        lambda: on(nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2)), "running statistics",
    ),
    "maps into a linear layer": (lambda: on(nn.Linear(4, 2)), r"put nn.Flatten\(\) before it"),
    "an odd flatten": (
        lambda: on(nn.Flatten(2), nn.Linear(4, 2)), "does not flatten whole examples",
    ),
    "pooling over rows": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.MaxPool2d(2), nn.Linear(2, 2)),
        "no feature maps go into it",
    ),
    "a norm of another width": (
        lambda: on(nn.Flatten(), nn.GroupNorm(2, 16), nn.Linear(16, 2)), "norm of 16",
    ),
    "rows of another number": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(8, 2)), "4 channels go into 8 inputs",
    ),
    "no classifier": (lambda: on(nn.Conv2d(4, 4, 3), Residual(nn.Identity())), None),
    "a residual at the end": (
        lambda: on(Residual(nn.Conv2d(4, 4, 3, padding=1))), r"Residual '1': its branches keep",
    ),
    "an identity over the input": (
        lambda: nn.Sequential(Residual(nn.Linear(4, 4)), nn.Linear(4, 2)), "its branches keep",
    ),
    "tied weights": (tied, r"is tied to another parameter or was not cut"),
    "a module twice": (twice, r"Linear '2': it stands in the net twice"),
    "a cut that forgets": (
        lambda: nn.Sequential(Forgetful(nn.Linear(4, 4), torch.ones(4)), nn.Linear(4, 2)),
        r"'0.scale' is tied to another parameter or was not cut",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_cut_is_refused_by_name(name):
    make, message = REFUSED[name]
    net = Net(make())
    if message is None:  # the last layer with weights is the output: that is enough
        assert Width().view(None, net, 0.25, NOW).net is not None
        return
    with pytest.raises(CompositionError, match=message):
        Width().view(None, net, 0.25, NOW)
    assert Width().view(None, net, 1.0, NOW).held is None


def test_a_shared_activation_may_stand_twice_and_a_child_may_be_called_cut():
    shared = nn.ReLU()
    module = nn.Sequential()
    for name, part in {
        "cut": nn.Linear(3, 4), "a": shared, "fc": nn.Linear(4, 4), "b": shared,
        "head": nn.Linear(4, 2),
    }.items():  # fmt: skip
        module.add_module(name, part)
    view = Width().view(None, Net(module), 0.25, NOW)
    assert [type(m) for m in view.net.module] == [type(m) for m in module]


# --------------------------------------------------------------------------------------- Residual
def test_residual_adds_its_branches_before_the_relu():
    body, shortcut = nn.Linear(3, 2), nn.Linear(3, 2)
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Residual(body, shortcut)(x), (body(x) + shortcut(x)).clamp_min(0))
    same = nn.Linear(3, 3)
    assert torch.equal(Residual(same)(x), (same(x) + x).clamp_min(0))
    assert [n for n, _ in Residual(same).named_parameters()] == ["body.weight", "body.bias"]
