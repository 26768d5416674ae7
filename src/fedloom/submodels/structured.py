"""Structured sub-models: smaller nets, of fewer channels in hidden layers, and of fewer layers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..core.blocks import Block
from ..core.dropout import choice
from ..core.hyper import PositiveShare, hyper
from ..core.net import Net, logits_of
from ..core.vector import Vec
from ..errors import CompositionError
from ..objectives import Needs
from .base import SubModel, View, check_capacity, off_its_size, whole
from .slicing import GRAIN, Cut, cut_net, largest_share, rows_of_heads


def _first(units: int, keep: int) -> Tensor:
    """The first channels."""
    return torch.arange(keep)


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

    exact: bool = hyper(True, "cut norms in whole groups", "equality with the masked net")
    width: Literal["sqrt", "budget"] = hyper(
        "sqrt",
        "what share of the width a capacity gives",
        "sqrt: a convolution has width^2 weights",
    )
    scaler: bool = hyper(True, "divide outputs by the share that is left", "HeteroFL, section 3.2")
    owners: bool = hyper(
        False,
        "average a class's rows over the clients that have the class",
        "True in HeteroFL's and FedRolex's code",
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


class FedRolex(HeteroFL):
    """FedRolex (Alam et al., NeurIPS 2022, Algorithm 1): a window of channels that rolls.

    In round j a client keeps the channels {(j + p) mod n : p = 0, ..., ceil(sqrt(capacity) n) - 1}
    of a hidden layer of n: HeteroFL's window, one channel further every round. In n rounds every
    channel is kept equally often. All clients of a round start at the same channel, so smaller
    windows lie in larger ones. With exact GroupNorm the window moves by whole groups.

    Differs from the paper: it rounds the width down. Differs from the released code: there the
    window moves to lower channels, the mirror image.
    Reference: https://github.com/AIoT-MLSys-Lab/FedRolex

    >>> FedRolex().chosen(5, 2, 4)
    tensor([0, 4])
    """

    fixed = False

    def chosen(self, units: int, keep: int, round: int) -> Tensor:
        return ((torch.arange(keep) + round) % units).sort().values


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
        0.5, "smallest share of the width", "half the width; the papers give none"
    )
    exact: bool = hyper(True, "cut norms in whole groups", "equality with the masked net")
    scaler: bool = hyper(True, "divide outputs by the share that is left", "ScaleFL's code")

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
        how = Cut(self.name, 1.0, _first, self.exact, "always" if self.scaler else "")
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


class OrderedNet(Net):
    """A net that in training runs with only some of its parameters, drawn again for every step.

    parts (P, m): 0/1, the nested parts that it draws from with equal probability; the last one is
    all of it. All gradients of a step use the same part. In evaluation it is the whole net.
    """

    def __init__(self, module: nn.Module, parts: Tensor) -> None:
        super().__init__(module)
        self.parts = parts
        self.draws = True

    def _left(self, x: Vec) -> list[Tensor] | None:
        """The parameters x that this step uses, in pieces; None: all of them."""
        index = choice(len(self.parts)) if self.module.training else None
        if index is None:
            return None
        row = index.to(self.parts.device).reshape(1)
        part = self.parts.index_select(0, row)[0]
        # the handle of a loss stands for the module's own parameters, which are differentiated
        pieces = self.params if x is self._live else self.layout.pieces(x)
        return [
            torch.where(mask, piece, 0.0)
            for mask, piece in zip(self.layout.pieces(part), pieces, strict=True)
        ]

    def raw(self, x: Vec, inputs: Any) -> Any:
        left = self._left(x)
        if left is None:
            return super().raw(x, inputs)
        return functional_call(
            self.module, dict(zip(self.layout.names, left, strict=True)), (inputs,)
        )

    def _run(self, block: Block, x: Vec, inputs: Any, pieces: dict[int, list[Tensor]]) -> Any:
        left = self._left(x) if id(x) not in pieces else None
        if left is not None:
            pieces[id(x)] = left
        return super()._run(block, x, inputs, pieces)

    def full(self, x: Vec, inputs: Any) -> Any:
        return logits_of(super().raw(x, inputs))


class FjORD(SubModel):
    """FjORD (Horvath et al., NeurIPS 2021, Algorithm 1): ordered dropout.

    A client of capacity p holds the first ceil(sqrt(p) n) of the n channels of every hidden layer,
    as HeteroFL's. For every batch it draws a width uniformly from `widths` up to its own, and
    trains only the first channels of that width. A coordinate's mean is over its holders.

    widths: shares of the width, such as [0.2, 0.4, 0.6, 0.8, 1.0]; none: the square roots of the
    capacities of the federation, so that equal capacities are the base algorithm. A client's own
    width is always one of those that it draws from. The objective ordered_distillation adds the
    paper's self-distillation. Norms are sliced in whole groups (see HeteroFL, exact), so that every
    narrower slice computes what the whole net does with zeros outside.

    Differs from the paper: capacity is a share of the weights, not of the width. Its batch norm
    keeps statistics of its own for every width; here a norm sees the batch. A narrower slice is
    computed inside the client's own, at the client's cost.
    Reference: https://github.com/adap/flower/tree/main/baselines/fjord

    >>> net = Net(nn.Sequential(nn.Linear(1, 4, bias=False), nn.Linear(4, 1, bias=False)))
    >>> view = FjORD(widths=(0.25, 0.5, 1.0)).view(None, net, 0.25, 0)
    >>> view.held, view.net.parts.int()
    (tensor([0, 1, 4, 5]), tensor([[1, 0, 1, 0],
            [1, 1, 1, 1]], dtype=torch.int32))
    """

    cuts = True
    fixed = True
    trains = Needs.DRAWN_PARTS

    widths: tuple[PositiveShare, ...] = hyper(
        (),
        "shares of the width that are drawn; empty: the capacities",
        "0.2, 0.4, 0.6, 0.8, 1 in FjORD's code",
    )

    def settled(self, levels: Sequence[float]) -> SubModel:
        """-> with widths; if none are given, those of the capacities."""
        if self.widths:
            return self
        return dataclasses.replace(self, widths=tuple(sorted({math.sqrt(c) for c in levels})))

    def remarks(self, view: View, net: Net, capacity: float) -> list[str]:
        advice = "it has sqrt(p) of the width, and this net does not fall with its square"
        return off_its_size(self, view, capacity, advice)

    def view(self, x: Vec | None, net: Net, capacity: float, round: int) -> View:
        check_capacity(self, capacity)
        width = math.sqrt(capacity)
        narrower = sorted({w for w in self.widths if w < width - 1e-9})
        if capacity == 1 and not narrower:
            return whole(net.layout)
        held, module = torch.arange(net.layout.d), net.module
        if capacity < 1:
            small, held = self._cut(net, width)
            module = small.module
        parts = torch.zeros(len(narrower) + 1, len(held), dtype=torch.bool)
        parts[-1] = True
        for row, narrow in zip(parts, narrower, strict=False):
            row[torch.searchsorted(held.cpu(), self._cut(net, narrow)[1].cpu())] = True
        inner = OrderedNet(module, parts.to(net.device)) if narrower else Net(module)
        return View(None if capacity == 1 else held, inner, None, inner.layout, net.layout.d)

    def _cut(self, net: Net, share: float) -> tuple[Net, Tensor]:
        return cut_net(net, Cut(self.name, share, _first))
