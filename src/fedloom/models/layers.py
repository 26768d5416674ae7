"""Layers that torch.nn does not have."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from ..submodels.slicing.flow import Flow, Part


def named(**blocks: nn.Module) -> nn.Sequential:
    """Make a Sequential of modules with these names."""
    return nn.Sequential(OrderedDict(blocks))


class Residual(nn.Module):
    """A residual block, relu(body(a) + shortcut(a)) (He et al., CVPR 2016, section 3.2).

    body and shortcut map to the same shape; shortcut None is the identity, for a body that keeps
    its input's shape. The width rules of fedloom.submodels can slice a network of such blocks.

    >>> import torch
    >>> block = Residual(nn.Conv2d(3, 8, 3, padding=1), shortcut=nn.Conv2d(3, 8, 1))
    >>> block(torch.zeros(2, 3, 5, 5)).shape
    torch.Size([2, 8, 5, 5])
    """

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut

    def forward(self, inputs: Tensor) -> Tensor:
        other = inputs if self.shortcut is None else self.shortcut(inputs)
        return F.relu(self.body(inputs) + other)

    def cut(self, part: Part, flow: Flow) -> tuple[nn.Module, Flow]:
        """Slice both branches; see fedloom.submodels.Cuttable. Raises CompositionError where they
        would keep different channels.
        """
        body, out = part.child("body", flow)
        shortcut, other = (None, flow) if self.shortcut is None else part.child("shortcut", flow)
        if not out.same(other):
            raise part.refuse(
                "its branches keep different channels",
                "give it a shortcut with weights where the input of the net goes in, and end the "
                "net with a classifier",
            )
        return Residual(body, shortcut), out
