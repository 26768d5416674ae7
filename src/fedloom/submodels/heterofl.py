"""Structured sub-models: smaller nets whose hidden layers keep some of their channels."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from ..core.hyper import hyper
from ..core.net import Net
from ..core.vector import Vec
from .base import SubModel, View, check_capacity, off_its_size, whole
from .slicing.flow import Cut
from .slicing.walk import GRAIN, cut_net, largest_share, rows_of_heads


class HeteroFL(SubModel):
    """HeteroFL (Diao, Ding and Tarokh, ICLR 2021, Algorithm 1): the first channels of every layer.

    A client of capacity p keeps the first ceil(sqrt(p) n) of the n channels of every hidden layer,
    so about p of a convolutional net's weights, and of each layer the columns of its inputs.
    The input and the outputs of the classifier are never sliced. A layer's choice depends on its
    width only, so that the branches of a residual block agree. A client trains a smaller network
    and exchanges the slice; a coordinate's mean is over its holders.

    width: "sqrt" as above; "budget": the largest share of the width, in steps of 1/64, that holds
    at most p of all parameters. Take it for nets whose parameters do not fall with the square of
    the width, such as a net of one wide hidden layer; 1/64 is the least.

    exact: a width that a GroupNorm normalises is sliced in whole groups, so that the small net
    computes just what the whole one does with zeros outside. The part then cannot shrink below one
    group: two groups hold about 26 % at capacities 1/4, 1/16 and 1/64 alike. Not exact: the number
    of groups stays and the groups get smaller; the part shrinks with the capacity, but its
    statistics are others than the whole net's.

    scaler: in training, the outputs of hidden layers are divided by the share of the width, so that
    they are as large as the whole net's (section 3.2). Right before a norm that changes nothing.

    owners: a class's row of the classifier's weights, and its bias, is averaged only over clients
    that have training samples of the class, as in the released code (there also without the masked
    cross-entropy); a row of a class that no participant has does not move by their
    updates. Off: over all holders.

    Differs from the paper: capacity is a share of the weights, not of the width. The scaler stands
    behind every hidden layer, also where no norm follows. The masked cross-entropy is an objective,
    masked_cross_entropy.
    Reference: https://github.com/diaoenmao/HeteroFL

    >>> from torch import nn
    >>> net = Net(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1)))
    >>> HeteroFL().view(None, net, 0.25, 0).net.layout.shapes
    ((2, 2), (2,), (1, 2), (1,))
    """

    cuts = True
    fixed = True

    exact: bool = hyper(
        default=True, meaning="cut norms in whole groups", source="equality with the masked net"
    )
    width: Literal["sqrt", "budget"] = hyper(
        default="sqrt",
        meaning="what share of the width a capacity gives",
        source="sqrt: a convolution has width^2 weights",
    )
    scaler: bool = hyper(
        default=True,
        meaning="divide outputs by the share that is left",
        source="HeteroFL, section 3.2",
    )
    owners: bool = hyper(
        default=False,
        meaning="average a class's rows over the clients that have the class",
        source="True in HeteroFL's and FedRolex's code",
    )

    def remarks(self, view: View, net: Net, capacity: float) -> list[str]:
        if self.width == "budget":
            return []  # as near as slices of 1/64 of the width come
        advice = "width = budget takes the widest slice that holds no more than it should"
        return off_its_size(self, view, capacity, advice)

    def chosen(self, units: int, keep: int, round: int) -> Tensor:
        """The kept channels, or whole groups: `keep` of `units`, increasing (keep,)."""
        return torch.arange(keep)

    def rows(self, net: Net) -> Tensor | None:
        return rows_of_heads(net, self.name) if self.owners else None

    def view(self, x: Vec | None, net: Net, capacity: float, round: int) -> View:
        check_capacity(self, capacity)
        if capacity == 1:
            return whole(net.layout)
        how = Cut(
            self.name,
            math.sqrt(capacity),
            lambda units, keep: self.chosen(units, keep, round),
            self.exact,
            "training" if self.scaler else "",
        )
        if self.width == "budget":
            how = how._replace(share=largest_share(net, how, capacity) or 1 / GRAIN)
        small, held = cut_net(net, how)
        return View(held, small, None, small.layout, net.layout.d)
