"""The largest slice that fits: widths in steps of 1/64, by counting parameters."""

from __future__ import annotations

import math

from ..core.net import Net
from .slicing.flow import Cut
from .slicing.walk import count_left

GRAIN = 64


def largest_share(net: Net, how: Cut, capacity: float) -> float | None:
    """The largest width k/64 whose slice holds at most `capacity` of all parameters; None if even
    1/64 of the width holds more. how.share is ignored.

    Raises CompositionError for a net that cannot be sliced.

    >>> import torch
    >>> from torch import nn
    >>> net = Net(nn.Sequential(nn.Linear(4, 64, bias=False), nn.Linear(64, 4, bias=False)))
    >>> largest_share(net, Cut("HeteroFL", 1.0, lambda units, keep: torch.arange(keep)), 0.3)
    0.296875
    """
    budget = math.floor(round(capacity * net.layout.d, 6))
    low, high = 0, GRAIN
    while low < high:
        k = (low + high + 1) // 2
        if count_left(net, how._replace(share=k / GRAIN)) <= budget:
            low = k
        else:
            high = k - 1
    return low / GRAIN if low else None
