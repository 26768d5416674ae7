"""A small U-Net, which gives a class for each pixel."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.core.hyper import PositiveInt, checked
from fedloom.errors import ConfigError
from fedloom.models.layers import sequential


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
