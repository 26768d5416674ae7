"""Structured sub-models that are shallower as well as narrower, of models with several exits."""

from __future__ import annotations

import math

import torch

from ..core.hyper import PositiveShare, hyper
from ..core.net import Net
from ..core.vector import Vec
from ..errors import CompositionError
from ..objectives import Needs
from .base import SubModel, View, check_capacity, off_its_size, whole
from .slicing.flow import Cut
from .slicing.walk import GRAIN, cut_net, largest_share


class ScaleFL(SubModel):
    """ScaleFL (Ilhan, Su and Liu, CVPR 2023): the first layers, and of each its first channels.

    A client of capacity p keeps the model up to one of its exits, the earlier exits included, and
    the first channels of every hidden layer in it: about p of all parameters. The exit is the
    deepest whose largest width within p is at least `least` of the full one, else the exit with the
    largest width; widths are in steps of 1/64. So a small client gives up depth before it gives up
    half the width. All exits that it has are trained, by the objective self_distillation; a
    coordinate's mean is over its holders.

    Needs a model with exits, such as model.exits = true of the recipes, or
    fedloom.models.MultiExit.

    scaler: outputs of hidden layers are divided by the share of the width, in training and in
    tests, as in the released code; right before a norm that changes nothing. exact: see HeteroFL.

    Differs from the paper: its widths and depths are a table for each of four levels; here they
    follow from the capacity, by the rule above, for any. Its early exits of a ResNet are three
    convolutions deep, which do not fit into 1/64 of the model; ours are a mean and a linear layer.
    Reference: https://github.com/git-disl/scale-fl

    >>> from fedloom.models import cnn_fafed_fashion
    >>> net = Net(cnn_fafed_fashion(widen=2, exits=True))
    >>> ScaleFL().view(None, net, 1 / 64, 0).net.module.stages
    ('conv1', 'conv2')
    """

    cuts = True
    fixed = True
    trains = Needs.EXITS

    least: PositiveShare = hyper(
        default=0.5,
        meaning="smallest share of the width",
        source="half the width; the papers give none",
    )
    exact: bool = hyper(
        default=True, meaning="cut norms in whole groups", source="equality with the masked net"
    )
    scaler: bool = hyper(
        default=True, meaning="divide outputs by the share that is left", source="ScaleFL's code"
    )

    def remarks(self, view: View, net: Net, capacity: float) -> list[str]:
        advice = "another `least` trades width for depth, and a larger net has finer steps"
        return off_its_size(self, view, capacity, advice)

    def view(self, x: Vec | None, net: Net, capacity: float, round: int) -> View:
        check_capacity(self, capacity)
        exits = len(getattr(net.module, "exits", ()))
        if not exits:
            raise CompositionError(
                f"{self.name} and {type(net.module).__name__}: the model has no exits to end at; "
                "take model.exits = true where a model has it, or build a fedloom.models.MultiExit"
            )
        if capacity == 1:
            return whole(net.layout)
        how = Cut(
            self.name,
            1.0,
            lambda units, keep: torch.arange(keep),
            self.exact,
            "always" if self.scaler else "",
        )
        small, held = cut_net(net, self._solve(net, how, capacity, exits + 1))
        return View(held, small, None, small.layout, net.layout.d)

    def _solve(self, net: Net, how: Cut, capacity: float, exits: int) -> Cut:
        """The depth and the width of a capacity."""
        best = how._replace(share=1 / GRAIN, exits=1)  # nothing fits: the smallest possible
        widest = 0.0
        for depth in range(exits, 0, -1):
            cut = how._replace(exits=depth)
            width = largest_share(net, cut, capacity) or 0.0
            if width >= self.least or math.isclose(width, self.least):
                return cut._replace(share=width)
            if width > widest:
                best, widest = cut._replace(share=width), width
        return best
