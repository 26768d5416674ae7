"""Small networks, each a Sequential of named blocks whose last is the classifier `head`.

The convolutional networks pool before the activation. ReLU and tanh never decrease, so the maximum
of a window is at the same place before and after them. After the pool there are four times fewer
values to activate, which saves about 15 % of a step of a small network. Random initial weights come
from torch's global generator, as in any module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, TypeVar

import torch
from torch import nn

from fedloom.core.hyper import PositiveInt, checked
from fedloom.errors import ConfigError
from fedloom.models.layers import MultiExit, Norm, norm_of, sequential, with_exits

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


@checked
def logistic(inputs: PositiveInt = 784, classes: PositiveInt = 10) -> nn.Sequential:
    """Build one linear layer on the flattened input (n, ...) of `inputs` values.

    Returns logits (n, classes); classes=1 makes one regression output. Raises ConfigError.

    >>> logistic(inputs=64)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    return sequential(flatten=nn.Flatten(), head=nn.Linear(inputs, classes))


@checked
def mlp(
    inputs: PositiveInt = 64,
    hidden: Sequence[PositiveInt] = (64,),
    classes: PositiveInt = 10,
    activation: Literal["relu", "tanh"] = "relu",
    exits: bool = False,
) -> nn.Module:
    """Build a multilayer perceptron on the flattened input: blocks fc1, fc2, ..., head.

    hidden: the width of each hidden layer, at least one; activation: "relu" or "tanh", after
    every hidden layer. exits: add an early exit, a linear layer, after each hidden layer but the
    last, for ScaleFL. Returns logits (n, classes). Raises ConfigError.

    >>> list(dict(mlp(hidden=(32, 16)).named_children()))
    ['fc1', 'fc2', 'head']
    """
    if not hidden:
        raise ConfigError(
            f"hidden must list the widths of one or more layers, got {hidden!r}; for a model "
            "without hidden layers use logistic"
        )
    widths = (inputs, *hidden)
    blocks: dict[str, nn.Module] = {
        f"fc{i}": _dense(*pair, activation, flatten=i == 1)
        for i, pair in enumerate(pairwise(widths), start=1)
    }
    net = sequential(**blocks, head=nn.Linear(widths[-1], classes))
    if not exits:
        return net
    if len(hidden) < 2:
        raise ConfigError(
            f"exits need two hidden layers or more, got hidden = {[*hidden]}; the exit of the "
            "last one is the head"
        )
    early = {f"fc{i}": nn.Linear(n, classes) for i, n in enumerate(hidden[:-1], start=1)}
    return MultiExit(dict(net.named_children()), early)


@checked
def cnn_fafed_mnist(
    classes: PositiveInt = 10, init: Literal["authors", "torch"] = "authors"
) -> nn.Sequential:
    """Build FAFED's MNIST network for inputs (n, 1, 28, 28): 431,080 parameters with 10 classes.

    Two unpadded 5 x 5 convolutions (20 and 50 channels), each with a pool and ReLU, then 800 ->
    500 ReLU -> classes. init "authors": Xavier-normal weights and every bias 1 / its length, as in
    the authors' code; "torch": PyTorch's default. The table has a ReLU after the last layer; the
    authors' code and this network do not. Raises ConfigError.

    Source: Wu et al., FAFED, AAAI 2023, Table 3.
    """
    net = sequential(
        conv1=_conv(1, 20, kernel=5),
        conv2=_conv(20, 50, kernel=5),
        fc1=_dense(50 * 4 * 4, 500, "relu", flatten=True),
        head=nn.Linear(500, classes),
    )
    return _initialised(net, init)


@checked
def cnn_fafed_fashion(
    classes: PositiveInt = 10,
    init: Literal["authors", "torch"] = "authors",
    widen: PositiveInt = 1,
    exits: bool = False,
) -> nn.Module:
    """Build FAFED's Fashion-MNIST network for (n, 1, 28, 28): 26,620 parameters with 10 classes.

    Two unpadded 3 x 3 convolutions (5 and 10 channels), each with a pool and tanh, then 250 ->
    100 tanh -> classes. The printed table has a tanh on the logits, which would keep the loss
    above ln(1 + 9 e^-2) = 0.797; the authors' code and this network do not. init: as
    `cnn_fafed_mnist`. widen: the factor on channels and hidden units; widen=2 gives 104,130
    parameters. exits: add an early exit after both convolutions, a mean and a linear layer, for
    ScaleFL. Raises ConfigError.

    Source: Wu et al., FAFED, AAAI 2023, Table 4.
    """
    a, b, hidden = 5 * widen, 10 * widen, 100 * widen
    net = sequential(
        conv1=_conv(1, a, kernel=3, activation="tanh"),
        conv2=_conv(a, b, kernel=3, activation="tanh"),
        fc1=_dense(b * 5 * 5, hidden, "tanh", flatten=True),
        head=nn.Linear(hidden, classes),
    )
    if not exits:
        return _initialised(net, init)
    return _initialised(with_exits(net, {"conv1": a, "conv2": b}, classes), init)


@checked
def cnn_fafed_cifar(classes: PositiveInt = 10) -> nn.Sequential:
    """Build FAFED's CIFAR-10 network for (n, 3, 32, 32): 581,866 parameters with 10 classes.

    Three 3 x 3 convolutions with padding 1 (16, 32 and 64 channels), each with a pool and ReLU,
    then 1024 -> 512 ReLU -> 64 ReLU -> classes; PyTorch's default weights, as in the authors' code.
    Raises ConfigError.

    Source: Wu et al., FAFED, AAAI 2023, Table 5.
    """
    return sequential(
        conv1=_conv(3, 16, kernel=3, padding=1),
        conv2=_conv(16, 32, kernel=3, padding=1),
        conv3=_conv(32, 64, kernel=3, padding=1),
        fc1=_dense(64 * 4 * 4, 512, "relu", flatten=True),
        fc2=_dense(512, 64, "relu"),
        head=nn.Linear(64, classes),
    )


@checked
def cnn_cfedavg(classes: PositiveInt = 10) -> nn.Sequential:
    """Build CFedAvg's network for (n, 1, 28, 28): 582,026 parameters with 10 classes.

    Two unpadded 5 x 5 convolutions (32 and 64 channels), each with a pool and ReLU, then 1024 ->
    512 ReLU -> classes; PyTorch's default weights. Raises ConfigError.

    Source: Yang, Liu and Bentley, CFedAvg, WiOpt 2021, Table 1.
    """
    return sequential(
        conv1=_conv(1, 32, kernel=5),
        conv2=_conv(32, 64, kernel=5),
        fc1=_dense(64 * 4 * 4, 512, "relu", flatten=True),
        head=nn.Linear(512, classes),
    )


@checked
def cnn_femnist(classes: PositiveInt = 62) -> nn.Sequential:
    """Build LEAF's FEMNIST network for (n, 1, 28, 28): 6,603,710 parameters with 62 classes.

    Two 5 x 5 convolutions that keep the size (32 and 64 channels), each with a pool and ReLU, then
    3136 -> 2048 ReLU -> classes; PyTorch's default weights. Raises ConfigError.

    Source: Caldas et al., LEAF 2018, reference implementation of FEMNIST.
    """
    return sequential(
        conv1=_conv(1, 32, kernel=5, padding=2),
        conv2=_conv(32, 64, kernel=5, padding=2),
        fc1=_dense(64 * 7 * 7, 2048, "relu", flatten=True),
        head=nn.Linear(2048, classes),
    )


@checked
def cnn_celeba(
    classes: PositiveInt = 2, norm: Norm = "static_batch", groups: PositiveInt = 2
) -> nn.Sequential:
    """Build LEAF's CelebA network for (n, 3, 84, 84): 31,202 parameters with 2 classes.

    Four 3 x 3 convolutions of 32 channels that keep the size, each with a norm, a pool that rounds
    up and ReLU, then 1152 -> classes; PyTorch's default weights. norm: LEAF uses the statistics of
    the batch, in training and in evaluation; for the others see `fedloom.models.layers.norm_of`.
    Raises ConfigError.

    Source: Caldas et al., LEAF 2018, reference implementation of CelebA.
    """
    make = norm_of(norm, groups, [32])
    blocks = {
        f"conv{i}": sequential(
            conv=nn.Conv2d(3 if i == 1 else 32, 32, 3, padding=1),
            norm=make(32),
            pool=nn.MaxPool2d(2, ceil_mode=True),
            activation=nn.ReLU(),
        )
        for i in range(1, 5)
    }
    blocks["conv4"].add_module("flatten", nn.Flatten())
    return sequential(**blocks, head=nn.Linear(32 * 6 * 6, classes))


def _conv(
    channels: int, filters: int, kernel: int, padding: int = 0, activation: str = "relu"
) -> nn.Sequential:
    return sequential(
        conv=nn.Conv2d(channels, filters, kernel, padding=padding),
        pool=nn.MaxPool2d(2),
        activation=ACTIVATIONS[activation](),
    )


def _dense(inputs: int, outputs: int, activation: str, flatten: bool = False) -> nn.Sequential:
    layers: dict[str, nn.Module] = {"flatten": nn.Flatten()} if flatten else {}
    return sequential(
        **layers, linear=nn.Linear(inputs, outputs), activation=ACTIVATIONS[activation]()
    )


Built = TypeVar("Built", bound=nn.Module)


def _initialised(net: Built, init: str) -> Built:
    if init == "authors":
        with torch.no_grad():
            for value in net.parameters():
                if value.ndim > 1:
                    nn.init.xavier_normal_(value)
                else:
                    value.fill_(1 / value.numel())
    return net
