"""How modules are cut, and which are refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedloom import models
from fedloom.core.net import Net, Variables
from fedloom.errors import CompositionError
from fedloom.models.layers import Residual
from fedloom.submodels import FedRolex, Flow, HeteroFL, Part

pytestmark = pytest.mark.usefixtures("seed_zero")

NOW = 1


# --------------------------------------------------------------------------------------- cutting
def test_a_slice_keeps_names_frozen_parameters_and_training_flags():
    module = models.mlp(inputs=4, hidden=(6, 6), classes=2)
    module.fc1.linear.weight.requires_grad_(False)
    module.fc2.eval()
    net = Net(module)
    view = HeteroFL().view(None, net, 0.25, NOW)
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
    conv, small_norm = list(HeteroFL().view(None, Net(module), 0.25, NOW).net.module)[:2]
    for name in ("kernel_size", "stride", "padding", "dilation", "padding_mode", "groups"):
        assert getattr(conv, name) == getattr(layer, name)
    assert (small_norm.eps, small_norm.affine, small_norm.num_groups) == (0.1, False, 1)


TEXT = {"lstm_shakespeare", "lstm_language_model", "transformer_text"}
SHAPES = {"mlp": (64,), "cnn_fafed_cifar": (3, 32, 32), "cnn_celeba": (3, 84, 84)}
SHAPES |= {name: (3, 32, 32) for name in models.MODELS if name.startswith("resnet")}


# nothing hidden; files that we lack; a network that is refused in one line
OTHERS = {"logistic", "roberta_base", "huggingface_text", "unet"}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(models.MODELS) - OTHERS - TEXT))
def test_the_models_of_the_house_can_be_cut(name):
    net = Net(models.MODELS[name]())
    view = HeteroFL().view(None, net, 0.25, NOW)
    assert 0.2 < len(view.held) / net.layout.d < 0.6
    images = torch.zeros(2, *SHAPES.get(name, (1, 28, 28)))
    small = view.take(net.init())
    assert view.net(small, images).shape == net(net.init(), images).shape


@pytest.mark.parametrize("name", sorted(TEXT))
def test_a_network_for_text_is_refused_with_the_layer_named(name):
    with torch.device("meta"):  # only shapes: one draws fifty million numbers
        net = Net(models.MODELS[name]())
    with pytest.raises(
        CompositionError, match=r"HeteroFL cannot cut \w+ '.*': no way is known; build"
    ):
        HeteroFL().view(None, net, 0.25, NOW)


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
    view = FedRolex().view(None, net, 0.25, 3)
    assert view.net.layout.views(view.take(net.init()))["0.scale"].tolist() == [0.0, 3.0]
    with pytest.raises(CompositionError, match="FedRolex cannot cut Uncut '0': no way is known"):
        FedRolex().view(None, Net(make(Uncut)), 0.25, NOW)


class Projection(nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, inputs):
        return inputs @ self.weight.T

    def cut(self, part: Part, flow: Flow):
        rows = part.channels(len(self.weight))
        return Projection(part.keep("weight", rows, flow.ids)), Flow(rows, len(self.weight), "rows")


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
        r"HeteroFL cannot cut PReLU '1': no way is known; build the net of .*a method cut",
    ),
    "a subclass": (lambda: nn.Sequential(OwnLinear(4, 4), nn.Linear(4, 2)), "cannot cut OwnLinear"),
    "no hidden layer": (
        lambda: models.logistic(4, 2), r"'the model': no hidden layer has channels",
    ),
    "one exact group": (
        lambda: on(nn.GroupNorm(1, 4), nn.Flatten(), nn.Linear(4, 2)), "exact=False",
    ),
    "a vector": (lambda: Variables(torch.zeros(3)), "HeteroFL cannot cut Variables"),
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
    "outputs of a module of one's own": (
        lambda: nn.Sequential(nn.Linear(4, 4), Projection(torch.ones(6, 4))),
        "its outputs would be cut; end it with a Linear or Conv2d layer",
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
        assert HeteroFL().view(None, net, 0.25, NOW).net is not None
        return
    with pytest.raises(CompositionError, match=message):
        HeteroFL().view(None, net, 0.25, NOW)
    assert HeteroFL().view(None, net, 1.0, NOW).held is None


def test_a_shared_activation_may_stand_twice_and_a_child_may_be_called_cut():
    shared = nn.ReLU()
    module = nn.Sequential()
    for name, part in {
        "cut": nn.Linear(3, 4), "a": shared, "fc": nn.Linear(4, 4), "b": shared,
        "head": nn.Linear(4, 2),
    }.items():  # fmt: skip
        module.add_module(name, part)
    view = HeteroFL(scaler=False).view(None, Net(module), 0.25, NOW)
    assert [type(m) for m in view.net.module] == [type(m) for m in module]


# --------------------------------------------------------------------------------------- Residual
def test_residual_adds_its_branches_before_the_relu():
    body, shortcut = nn.Linear(3, 2), nn.Linear(3, 2)
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Residual(body, shortcut)(x), (body(x) + shortcut(x)).clamp_min(0))
    same = nn.Linear(3, 3)
    assert torch.equal(Residual(same)(x), (same(x) + x).clamp_min(0))
    assert [n for n, _ in Residual(same).named_parameters()] == ["body.weight", "body.bias"]
