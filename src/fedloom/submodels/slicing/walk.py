"""Slicing: one walk through a net makes a smaller one and notes what it kept.

A Flow between two layers says which channels are left of how many. A layer with weights keeps the
columns of the channels that reach it, and chooses its rows; every other layer passes the flow on.
Only modules whose forward is known are sliced, by their exact type: a subclass may compute
something else. A module of your own is sliced by a method `cut`, see Cuttable; models/layers.py has
one.
"""

from __future__ import annotations

import copy
import math
from typing import cast

import torch
from torch import Tensor, nn

from ...core.net import Net
from .flow import KNOWN, Cut, Cuttable, Flow, Part
from .layers import WAYS

GRAIN = 64  # widths go in steps of 1/64


class CuttingWalk:
    """One walk. selection[parameter] = (rows, columns, ...), None for all; left_out: parameters of
    modules that the smaller net does not have.
    """

    def __init__(self, module: nn.Module, how: Cut) -> None:
        self.how = how
        self.selection: dict[str, tuple[Tensor | None, ...]] = {}
        self.left_out: set[str] = set()
        self.heads: set[int] = set()
        self.cuttable = False
        self._visited: set[int] = set()
        self.add_head(module)
        # two norms of one width must agree on the grain: channels per group, or number of groups
        self._grain: dict[int, int] = {}
        for m in module.modules():
            if isinstance(m, nn.GroupNorm):
                grain = m.num_channels // m.num_groups if how.exact else m.num_groups
                before = self._grain.get(m.num_channels, 1)
                self._grain[m.num_channels] = math.lcm(before, grain)

    def add_head(self, module: nn.Module) -> None:
        """The last layer with weights of this module gives outputs of the net."""
        weighted = [m for m in module.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
        self.heads.update(id(m) for m in weighted[-1:])

    def channels(self, n: int) -> Tensor:
        """Which of n channels are kept."""
        grain = self._grain.get(n, 1)
        units = n // grain
        self.cuttable |= units > 1
        keep = max(1, math.ceil(self.how.share * units - 1e-9))
        if not self.how.exact:  # any channels, but a number that the groups divide
            return self.how.choose(n, keep * grain)
        return (self.how.choose(units, keep)[:, None] * grain + torch.arange(grain)).reshape(-1)

    def module(self, m: nn.Module, flow: Flow, path: str) -> tuple[nn.Module, Flow]:
        """See Walk.module; notes in `selection` what is left of its parameters."""
        part = Part(self, m, path)
        if next(m.parameters(), None) is not None:
            if id(m) in self._visited:
                raise part.refuse("it stands in the net twice", "give every place its own module")
            self._visited.add(id(m))
        if callable(getattr(type(m), "cut", None)):  # of the class: a child may be called cut
            small, out = cast(Cuttable, m).cut(part, flow)
        elif type(m) in WAYS:
            small, out = WAYS[type(m)](m, part, flow)
        else:
            raise part.refuse("no way is known", KNOWN)
        small.training = m.training
        return small, out

    def left(self, net: Net) -> tuple[str, ...]:
        """The names of the trained parameters that are not left out, in order."""
        return tuple(name for name in net.layout.names if name not in self.left_out)


def _walked(module: nn.Module, how: Cut) -> tuple[CuttingWalk, nn.Module]:
    walk = CuttingWalk(module, how)
    small, out = walk.module(module, Flow(), "")
    top = Part(walk, module, "")
    if not out.all_left():
        raise top.refuse("its outputs would be cut", "end it with a Linear or Conv2d layer")
    if not walk.cuttable and how.exits is None:  # else it may be shallower
        raise top.refuse(
            "no hidden layer has channels, or groups of them, to choose among",
            "take a net with hidden layers (and exact=False for norms of one group)",
        )
    return walk, small


def cut_net(net: Net, how: Cut) -> tuple[Net, Tensor]:
    """Slice a net -> the smaller Net, held (m,). Raises CompositionError for one that cannot be
    sliced.

    >>> net = Net(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1)))
    >>> small, held = cut_net(net, Cut("HeteroFL", 0.5, lambda units, keep: torch.arange(keep)))
    >>> small.layout.shapes, held.tolist()
    (((2, 2), (2,), (1, 2), (1,)), [0, 1, 2, 3, 8, 9, 12, 13, 16])
    """
    walk, module = _walked(net.module, how)
    small, left = Net(module), walk.left(net)
    if small.layout.names != left or set(left) - set(walk.selection):
        wrong = sorted({*small.layout.names} ^ {*left}) or sorted({*left} - {*walk.selection})
        raise Part(walk, net.module, "").refuse(
            f"'{wrong[0]}' is tied to another parameter or was not cut", KNOWN
        )
    held, offset = [], 0
    for name, shape, size in zip(
        net.layout.names, net.layout.shapes, net.layout.sizes, strict=True
    ):
        if name not in walk.left_out:
            held.append(offset + _positions(shape, walk.selection[name]))
        offset += size
    return small, torch.cat(held).to(net.device)


def rows_of_heads(net: Net, rule: str) -> Tensor:
    """(d,) int64: for weights and biases of the layers that give outputs of the net, the number of
    their output; -1 for all other coordinates.

    Raises CompositionError for a net that cannot be sliced.

    >>> net = Net(nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 2)))
    >>> rows_of_heads(net, "HeteroFL").tolist()
    [-1, -1, -1, -1, 0, 0, 1, 1, 0, 1]
    """
    module = copy.deepcopy(net.module).to("meta")
    walk, _ = _walked(module, Cut(rule, 1.0, lambda units, keep: torch.arange(keep)))
    heads = [path for path, m in module.named_modules() if id(m) in walk.heads]
    owned = {f"{path}.{name}" if path else name for path in heads for name in ("weight", "bias")}
    pieces = [
        torch.arange(shape[0]).repeat_interleave(math.prod(shape[1:]))
        if name in owned
        else torch.full((math.prod(shape),), -1)
        for name, shape in zip(net.layout.names, net.layout.shapes, strict=True)
    ]
    return torch.cat(pieces).to(net.device)


def count_left(net: Net, how: Cut) -> int:
    """m, the number of coordinates that cut_net() would keep, without copying any."""
    walk, _ = _walked(copy.deepcopy(net.module).to("meta"), how)
    total = 0
    for name, shape in zip(net.layout.names, net.layout.shapes, strict=True):
        if name not in walk.left_out:
            ids = walk.selection.get(name, ())
            lengths = [n if i is None else len(i) for n, i in zip(shape, ids, strict=False)]
            total += math.prod(lengths) * math.prod(shape[len(lengths) :])
    return total


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


def _positions(shape: tuple[int, ...], ids: tuple[Tensor | None, ...]) -> Tensor:
    """The positions of the kept entries of a tensor in its flattened form, increasing."""
    position = torch.zeros((), dtype=torch.int64)
    for axis, n in enumerate(shape):
        some = ids[axis] if axis < len(ids) else None
        along = torch.arange(n) if some is None else some
        position = position.unsqueeze(-1) * n + along
    return position.reshape(-1)
