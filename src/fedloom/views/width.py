"""Structured parts: really smaller nets whose hidden layers keep some of their channels."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from ..algorithm import hyper
from ..net import Net
from ..vector import Vec
from .base import Now, Rule, View, check_capacity, whole
from .cut import cut_net

__all__ = ["Width"]


class Width(Rule):
    """HeteroFL (Diao, Ding and Tarokh, ICLR 2021, Algorithm 1): the first channels of every layer.

    A client of capacity p keeps the first ceil(sqrt(p) n) of the n channels of every hidden layer,
    so about p of a convolutional net's weights, and of each layer the columns of what reaches it.
    The input and the rows of the classifier are never cut. A layer's choice depends on its width
    only, so that the branches of a residual block agree. A client trains a smaller network and
    exchanges the slice; a coordinate's mean is over its holders.

    exact: a width that a GroupNorm normalises is cut in whole groups, so that the small net
    computes just what the whole one does with zeros outside. The part then cannot shrink below one
    group: two groups hold about 26 % at capacities 1/4, 1/16 and 1/64 alike. Not exact: the number
    of groups stays and the groups get smaller; the part shrinks with the capacity, but its
    statistics are others than the whole net's.

    Differs from the paper: capacity is a share of the weights, not of the width. Its scaler, which
    changes nothing before a norm, and its masked cross-entropy are not part of the view.
    Reference: https://github.com/diaoenmao/HeteroFL

    >>> from torch import nn
    >>> from fedloom.algorithm import Round
    >>> net = Net(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1)))
    >>> Width().view(None, net, 0.25, Round(0, 1.0, 0.1)).net.module[0]
    Linear(in_features=2, out_features=2, bias=True)
    """

    cuts: ClassVar[bool] = True
    fixed: ClassVar[bool] = True

    exact: bool = hyper(default=True, choices=(True, False), source="equality with the masked net")

    def chosen(self, units: int, keep: int, rnd: Now) -> Tensor:
        """Which `keep` of `units` channels, or whole groups of them, are kept: rising (keep,)."""
        return torch.arange(keep)

    def view(self, x: Vec | None, net: Net, capacity: float, rnd: Now) -> View:
        check_capacity(self, capacity)
        if capacity == 1:
            return whole(net.layout)
        small, held = cut_net(
            net,
            self.name,
            math.sqrt(capacity),
            lambda units, keep: self.chosen(units, keep, rnd),
            self.exact,
        )
        return View(held, small, None, small.layout, net.layout.d)
