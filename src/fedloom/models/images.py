"""Networks for tables and images, each a Sequential of named blocks, the last of which is `head`:
small ones, ResNet-18 in the papers' variants, a small ResNet-8, and a U-Net.

The small networks pool before the activation. ReLU and tanh never decrease, so the maximum of a
window is at the same place before and after them. After the pool there are four times fewer values
to activate, which saves about 15 % of a step. Random initial weights come from torch's global
generator, as in any module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.core.hyper import PositiveInt, checked
from fedloom.errors import ConfigError
from fedloom.models.layers import MultiExit, Norm, Residual, norm_of, sequential, with_exits

WIDTHS = (64, 64, 128, 256, 512)
SMALL_WIDTHS = (16, 16, 32, 64)

Make = Callable[[int], nn.Module]
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


# ------------------------------------------------------------------------------------------ ResNets
@checked
def resnet18(
    classes: PositiveInt = 10,
    stem: Literal["3x3", "7x7"] = "3x3",
    norm: Norm = "group",
    groups: PositiveInt = 2,
    init: Literal["torch", "kaiming"] = "torch",
    exits: bool = False,
) -> nn.Module:
    """Build FedACG's ResNet-18 for images (n, 3, H, W): 11,173,962 parameters with 10 classes.

    Four layers of 64, 128, 256 and 512 channels with two basic blocks each; GroupNorm of two groups
    in place of batch norm. stem "3x3": one convolution of stride 1 and no pool, also for 64 x 64
    images; "7x7": stride 2 and a 3 x 3 max-pool, as for ImageNet (11,181,642 parameters). norm: see
    `fedloom.models.layers.norm_of`. init "torch": PyTorch's default; "kaiming": normal weights of
    variance 2 / fan-out in the convolutions, as in torchvision. layer4 ends with global average
    pooling, so `head` gets 512 features. exits: add an early exit after layer1 to layer3, a mean
    and a linear layer, for ScaleFL (11,178,472 parameters). Raises ConfigError.

    Source: Kim, Kim and Han, FedACG, CVPR 2024, section 5.1 and code; He et al., CVPR 2016.
    """
    make = norm_of(norm, groups, sorted({*WIDTHS}))
    layers = {
        f"layer{i}": _two_blocks(*widths, stride=1 if i == 1 else 2, norm=make)
        for i, widths in enumerate(pairwise(WIDTHS), start=1)
    }
    layers["layer4"].add_module("pool", nn.AdaptiveAvgPool2d(1))
    layers["layer4"].add_module("flatten", nn.Flatten())
    net = sequential(stem=_stem(stem, make), **layers, head=nn.Linear(WIDTHS[-1], classes))
    if init == "kaiming":
        for m in net.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
    widths = {f"layer{i}": width for i, width in enumerate(WIDTHS[1:-1], start=1)}
    return with_exits(net, widths, classes) if exits else net


def resnet18_fedsmoo(
    classes: PositiveInt = 10, norm: Norm = "group", groups: PositiveInt = 2
) -> nn.Module:
    """Build FedSMOO's ResNet-18 for images (n, 3, H, W): 11,181,642 parameters with 10 classes.

    `resnet18` with the 7 x 7 stem and torchvision's initial weights: 32 x 32 images are 8 x 8 after
    the stem and 1 x 1 in layer4. Raises ConfigError.

    Source: Sun et al., FedSMOO, ICML 2023, code: torchvision's network with GroupNorm of 2 groups.
    """
    return resnet18(classes, "7x7", norm, groups, "kaiming")


def resnet18_fiarse(
    classes: PositiveInt = 10,
    norm: Norm = "static_batch",
    groups: PositiveInt = 2,
    exits: bool = False,
) -> nn.Module:
    """Build FIARSE's ResNet-18 for images (n, 3, H, W): 11,173,962 parameters with 10 classes.

    `resnet18` with batch norm that uses the statistics of the batch. exits: as in `resnet18`.
    Raises ConfigError.

    Source: Wu et al., FIARSE, NeurIPS 2024, code; static batch norm: Diao et al., ICLR 2021.
    """
    return resnet18(classes, "3x3", norm, groups, exits=exits)


@checked
def resnet8(
    classes: PositiveInt = 10, norm: Norm = "group", groups: PositiveInt = 2, exits: bool = False
) -> nn.Module:
    """Build a ResNet-8 for images (n, 3, H, W): 78,042 parameters with 10 classes.

    The papers' ResNet-18, made small for a CPU (scale cpu of `fedloom paper`): a 3 x 3 stem of
    stride 2 and 16 channels, and three layers of one basic block each with 16, 32 and 64 channels.
    A step costs a fifth of the same network without the stride in the stem, and 1/70 of
    ResNet-18's. norm, groups: as in `resnet18`. exits: add an early exit after layer1 and layer2,
    for ScaleFL (78,542 parameters). Raises ConfigError.

    Source: He et al., CVPR 2016, section 4.2 (n = 1), with projections where a layer gets wider.
    """
    make = norm_of(norm, groups, sorted({*SMALL_WIDTHS}))
    first, *widths = SMALL_WIDTHS
    layers: dict[str, nn.Module] = {
        f"layer{i}": _block(*pair, 1 if i == 1 else 2, make)
        for i, pair in enumerate(pairwise(SMALL_WIDTHS), start=1)
    }
    end = {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    layers["layer3"] = sequential(block=layers["layer3"], **end)
    stem = sequential(conv=_conv2d(3, first, 3, 2), norm=make(first), activation=nn.ReLU())
    net = sequential(stem=stem, **layers, head=nn.Linear(widths[-1], classes))
    early = {f"layer{i}": width for i, width in enumerate(widths[:-1], start=1)}
    return with_exits(net, early, classes) if exits else net


def _conv2d(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


def _stem(stem: str, norm: Make) -> nn.Sequential:
    first = WIDTHS[0]
    if stem == "3x3":
        return sequential(conv=_conv2d(3, first, 3), norm=norm(first), activation=nn.ReLU())
    # the pool first: ReLU never decreases, so a window's maximum stays its maximum
    pool = nn.MaxPool2d(3, 2, padding=1)
    return sequential(
        conv=_conv2d(3, first, 7, 2), norm=norm(first), pool=pool, activation=nn.ReLU()
    )


def _two_blocks(inputs: int, outputs: int, stride: int, norm: Make) -> nn.Sequential:
    first, second = _block(inputs, outputs, stride, norm), _block(outputs, outputs, 1, norm)
    return sequential(block1=first, block2=second)


def _block(inputs: int, outputs: int, stride: int, norm: Make) -> Residual:
    body = sequential(
        conv1=_conv2d(inputs, outputs, 3, stride),
        norm1=norm(outputs),
        activation=nn.ReLU(),
        conv2=_conv2d(outputs, outputs, 3),
        norm2=norm(outputs),
    )
    if inputs == outputs and stride == 1:
        return Residual(body)
    return Residual(body, sequential(conv=_conv2d(inputs, outputs, 1, stride), norm=norm(outputs)))


# -------------------------------------------------------------------------------------------- U-Net
class Level(nn.Module):
    """Convolutions at one size of the picture, around all that happens at half of it: the output of
    the first ones is given to the last ones too, beside what comes up from below.
    """

    def __init__(self, down: nn.Module, below: nn.Module, up: nn.Module) -> None:
        super().__init__()
        self.down, self.below, self.up = down, below, up

    def forward(self, inputs: Tensor) -> Tensor:
        fine = self.down(inputs)
        coarse = F.interpolate(self.below(F.max_pool2d(fine, 2)), size=fine.shape[-2:])
        out: Tensor = self.up(torch.cat([fine, coarse], 1))
        return out


@checked
def unet(
    channels: PositiveInt = 1,
    classes: PositiveInt = 2,
    width: PositiveInt = 8,
    depth: PositiveInt = 2,
    groups: PositiveInt = 4,
) -> nn.Sequential:
    """Build a U-Net for pictures (n, channels, H, W): 29,786 parameters by default.

    Twice two 3 x 3 convolutions that keep the size, each with GroupNorm (`groups` groups) and ReLU,
    at every size from the whole picture (`width` channels) down to its 2^depth-th part (2^depth
    width channels), and a 1 x 1 convolution. H and W are at least 2^depth. Returns logits of pixels
    (n, classes, H, W). Raises ConfigError.

    Source: Ronneberger, Fischer and Brox, U-Net, MICCAI 2015; here the convolutions are padded,
    pixels are repeated on the way up, and there is a norm, of one example as FL needs it.

    >>> unet(channels=3, classes=4)(torch.zeros(2, 3, 10, 12)).shape
    torch.Size([2, 4, 10, 12])
    """
    if width % groups:
        raise ConfigError(f"groups must divide the width {width}, got {groups}")
    widths = [width * 2**level for level in range(depth + 1)]
    block = _convolutions(widths[-2], widths[-1], groups)
    for level in reversed(range(depth)):
        inputs, outputs = (widths[level - 1] if level else channels), widths[level]
        up = _convolutions(outputs + widths[level + 1], outputs, groups)
        block = Level(_convolutions(inputs, outputs, groups), block, up)
    return sequential(body=block, head=nn.Conv2d(width, classes, 1))


def _convolutions(inputs: int, outputs: int, groups: int) -> nn.Module:
    return sequential(
        conv1=nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        norm1=nn.GroupNorm(groups, outputs),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        norm2=nn.GroupNorm(groups, outputs),
        relu2=nn.ReLU(),
    )
