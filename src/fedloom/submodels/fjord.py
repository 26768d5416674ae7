"""Ordered dropout: a slice of the width, and in every step a narrower slice of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..core.blocks import Block
from ..core.dropout import choice
from ..core.hyper import PositiveShare, hyper
from ..core.net import Net, logits_of
from ..core.vector import Vec
from ..objectives import Needs
from .base import SubModel, View, check_capacity, off_its_size, whole
from .slicing.flow import Cut
from .slicing.walk import cut_net


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
        default=(),
        meaning="shares of the width that are drawn; empty: the capacities",
        source="0.2, 0.4, 0.6, 0.8, 1 in FjORD's code",
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
        return cut_net(net, Cut(self.name, share, lambda units, keep: torch.arange(keep)))
