"""ResNet-18 in the papers' variants, and a small ResNet-8 in its place where there is no GPU. Their
blocks: stem, layer1 to layer4 (of ResNet-8 to layer3), head.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise
from typing import Literal

from torch import nn

from fedloom.core.hyper import PositiveInt, checked
from fedloom.models.layers import Norm, Residual, norm_of, sequential, with_exits

WIDTHS = (64, 64, 128, 256, 512)
SMALL_WIDTHS = (16, 16, 32, 64)

Make = Callable[[int], nn.Module]


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
        f"layer{i}": _layer(*widths, stride=1 if i == 1 else 2, norm=make)
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
    stem = sequential(conv=_conv(3, first, 3, 2), norm=make(first), activation=nn.ReLU())
    net = sequential(stem=stem, **layers, head=nn.Linear(widths[-1], classes))
    early = {f"layer{i}": width for i, width in enumerate(widths[:-1], start=1)}
    return with_exits(net, early, classes) if exits else net


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


def _stem(stem: str, norm: Make) -> nn.Sequential:
    first = WIDTHS[0]
    if stem == "3x3":
        return sequential(conv=_conv(3, first, 3), norm=norm(first), activation=nn.ReLU())
    # the pool first: ReLU never decreases, so a window's maximum stays its maximum
    pool = nn.MaxPool2d(3, 2, padding=1)
    return sequential(conv=_conv(3, first, 7, 2), norm=norm(first), pool=pool, activation=nn.ReLU())


def _layer(inputs: int, outputs: int, stride: int, norm: Make) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            block1=_block(inputs, outputs, stride, norm), block2=_block(outputs, outputs, 1, norm)
        )
    )


def _block(inputs: int, outputs: int, stride: int, norm: Make) -> Residual:
    body = sequential(
        conv1=_conv(inputs, outputs, 3, stride),
        norm1=norm(outputs),
        activation=nn.ReLU(),
        conv2=_conv(outputs, outputs, 3),
        norm2=norm(outputs),
    )
    if inputs == outputs and stride == 1:
        return Residual(body)
    return Residual(body, sequential(conv=_conv(inputs, outputs, 1, stride), norm=norm(outputs)))
