"""The small networks: sizes as published, named blocks, first weights, and the pooling order."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedloom.core import pooling
from fedloom.engines.pooling import FEW, Slices
from fedloom.errors import ConfigError
from fedloom.models import MODELS, cnn_fafed_fashion, cnn_fafed_mnist, logistic, mlp

pytestmark = pytest.mark.usefixtures("seed_zero")

# the published counts, each as the sum of its layers
CONVOLUTIONAL = {
    "cnn_fafed_mnist": (431_080, (1, 28, 28), 10, 520 + 25_050 + 400_500 + 5_010),
    "cnn_fafed_fashion": (26_620, (1, 28, 28), 10, 50 + 460 + 25_100 + 1_010),
    "cnn_fafed_cifar": (581_866, (3, 32, 32), 10, 448 + 4_640 + 18_496 + 524_800 + 32_832 + 650),
    "cnn_cfedavg": (582_026, (1, 28, 28), 10, 832 + 51_264 + 524_800 + 5_130),
    "cnn_femnist": (6_603_710, (1, 28, 28), 62, 832 + 51_264 + 3137 * 2048 + 2049 * 62),
}
SHAPES = {"logistic": (1, 28, 28), "mlp": (1, 8, 8)}
SHAPES |= {name: shape for name, (_, shape, _, _) in CONVOLUTIONAL.items()}


def count(net: nn.Module) -> int:
    return sum(value.numel() for value in net.parameters())


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_parameters_are_as_many_as_published(name):
    published, _, _, layers = CONVOLUTIONAL[name]
    assert count(MODELS[name]()) == published == layers


def test_the_counts_of_the_dense_networks_follow_from_their_widths():
    assert count(logistic(inputs=784, classes=10)) == 785 * 10
    assert count(mlp(inputs=64, hidden=(64,), classes=10)) == 65 * 64 + 65 * 10
    assert count(mlp(inputs=7, hidden=[5, 3], classes=2)) == 8 * 5 + 6 * 3 + 4 * 2


@pytest.mark.parametrize("name", SHAPES)
def test_every_network_gives_one_logit_per_class_and_ends_in_its_head(name):
    net = MODELS[name]()
    classes = CONVOLUTIONAL[name][2] if name in CONVOLUTIONAL else 10
    assert net(torch.randn(3, *SHAPES[name])).shape == (3, classes)
    blocks = list(dict(net.named_children()))
    assert blocks[-1] == "head" and isinstance(net.head, nn.Linear)
    assert not any(part.isdigit() for key, _ in net.named_modules() for part in key.split("."))


@pytest.mark.parametrize(
    ("name", "activations"),
    [
        ("logistic", []),
        ("mlp", [nn.ReLU]),
        ("cnn_fafed_mnist", [nn.ReLU] * 3),
        ("cnn_fafed_fashion", [nn.Tanh] * 3),
        ("cnn_fafed_cifar", [nn.ReLU] * 5),
        ("cnn_cfedavg", [nn.ReLU] * 3),
        ("cnn_femnist", [nn.ReLU] * 3),
    ],
)
def test_an_activation_follows_every_layer_but_the_head(name, activations):
    leaves = [layer for layer in MODELS[name]().modules() if not list(layer.children())]
    assert [type(x) for x in leaves if isinstance(x, nn.ReLU | nn.Tanh)] == activations


def activate_then_pool(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    for block in net:
        layers = dict(block.named_children())
        order = ("conv", "activation", "pool") if "conv" in layers else layers
        for layer in order:
            x = layers[layer](x)
        x = x if layers else block(x)
    return x


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_pooling_first_gives_the_values_and_gradients_of_activating_first(name):
    net = MODELS[name]()
    x = torch.randn(4, *SHAPES[name])
    results = []
    for forward in (net, lambda x: activate_then_pool(net, x)):
        net.zero_grad()
        out = forward(x)
        out.square().sum().backward()
        results.append([out.detach(), *(value.grad.clone() for value in net.parameters())])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("build", [cnn_fafed_mnist, cnn_fafed_fashion])
def test_the_authors_first_weights(build):
    net = build()
    for key, value in net.named_parameters():
        if key.endswith("bias"):
            assert (value == 1 / value.numel()).all()
        else:
            fan_in, fan_out = value[0].numel(), value.shape[0] * value[0, 0].numel()
            std = math.sqrt(2 / (fan_in + fan_out))
            # the estimate of a standard deviation has relative error 1 / sqrt(2 n)
            assert abs(value.std() / std - 1) < 5 / math.sqrt(2 * value.numel())
            assert value.abs().max() > std * math.sqrt(3)  # normal, not uniform


@pytest.mark.parametrize("build", [cnn_fafed_mnist, cnn_fafed_fashion])
def test_torch_first_weights_are_bounded_as_torch_draws_them(build):
    for key, value in build(init="torch").named_parameters():
        if key.endswith("weight"):
            assert value.abs().max() <= 1 / math.sqrt(value[0].numel())


def test_the_activation_of_the_mlp_is_the_one_asked_for():
    x = torch.randn(5, 64)
    for name, function in {"relu": torch.relu, "tanh": torch.tanh}.items():
        net = mlp(activation=name)
        hidden = function(x @ net.fc1.linear.weight.T + net.fc1.linear.bias)
        torch.testing.assert_close(net(x), hidden @ net.head.weight.T + net.head.bias)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: logistic(inputs=0), "inputs must be a whole number"),
        (lambda: logistic(classes=True), "classes must be"),
        (lambda: mlp(hidden=()), "logistic"),
        (lambda: mlp(hidden=64), "hidden must be a list of whole numbers from 1, got 64"),
        (lambda: mlp(hidden=(8, 0)), "hidden must be"),
        (lambda: mlp(hidden=(2.5,)), "2.5"),
        (lambda: mlp(activation="gelu"), "'gelu'"),
        (lambda: cnn_fafed_mnist(init="xavier"), "'xavier'"),
        *[(lambda n=n: MODELS[n](classes=-1), "classes must be") for n in SHAPES],
    ],
)
def test_what_makes_no_network_is_refused_in_one_line(build, says):
    with pytest.raises(ConfigError, match=says) as error:
        build()
    assert "\n" not in str(error.value)


# ---------------------------------------------------------------------------------------- pooling
FORMATS = {"torch's order": torch.contiguous_format, "channels-last": torch.channels_last}


@pytest.mark.parametrize("order", FORMATS)
@pytest.mark.parametrize(
    ("pool", "shape", "slices"),
    [
        (nn.MaxPool2d(2), (3, 5, 7, 9), True),
        (nn.MaxPool2d((2, 2), (2, 2)), (1, 1, 2, 2), True),
        (nn.MaxPool2d(2), (2, FEW + 1, 6, 6), "in torch's order"),
        (nn.MaxPool2d(2, ceil_mode=True), (1, 1, 5, 5), False),
        (nn.MaxPool2d(2, dilation=2), (1, 1, 5, 5), False),
        (nn.MaxPool2d(2, 1), (1, 1, 5, 5), False),
        (nn.MaxPool2d((2, 3)), (1, 1, 5, 5), False),
        (nn.MaxPool2d(3, 2, padding=1), (1, 1, 5, 5), False),
        (nn.MaxPool2d(2), (1, 1, 2, 1), False),
    ],
)
def test_pooling_without_a_gradient_has_the_values_of_torch(
    pool, shape, slices, order, monkeypatch
):
    x = torch.randn(shape).contiguous(memory_format=FORMATS[order])
    x.flatten()[::3] = 1.0  # equal ones
    used, real = [], pooling._largest
    monkeypatch.setattr(pooling, "_largest", lambda v: used.append(1) or real(v))
    if shape[3] < 2:
        with pytest.raises(RuntimeError, match="too small"), torch.no_grad(), Slices():
            pool(x)
        return
    with torch.no_grad(), Slices():
        y = pool(x)
    want = pool(x)
    assert torch.equal(y, want) and y.stride() == want.stride()
    assert bool(used) == (slices is True or (slices == "in torch's order" and order in slices))
    with Slices():
        assert pool(x.requires_grad_()).requires_grad and len(used) < 2
        assert nn.AdaptiveMaxPool2d(1)(x).shape[2:] == (1, 1)


def test_not_a_number_stays_one():
    with torch.no_grad(), Slices():
        assert nn.MaxPool2d(2)(torch.tensor([[[[1.0, torch.nan], [0, 2]]]])).isnan().all()
