"""Cutting modules: one walk through a net makes a smaller one and notes what it kept.

What flows between the layers is a Flow: which channels are left of how many. A layer with weights
keeps the columns of the channels that reach it, and chooses its rows; every other layer passes the
flow on. Only modules whose forward is known are cut, by their exact type: a subclass may compute
something else. A module of your own is cut by a method `cut`, see Cuttable; models/blocks.py has
one.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from ..dropout import HashedDropout
from ..errors import CompositionError
from ..net import Net

__all__ = ["Cuttable", "Flow", "Part", "cut_net"]

ELEMENTWISE: tuple[type[nn.Module], ...] = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish),
    *(nn.Softplus, nn.Softsign, nn.Tanh, nn.Sigmoid, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid),
    *(nn.Identity, nn.Dropout, HashedDropout),
)
CHANNELWISE: tuple[type[nn.Module], ...] = (
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.Dropout2d),
)
KNOWN = (
    "build the net of nn.Sequential, fedloom.models.blocks.Residual, Linear, Conv2d, GroupNorm, "
    "activations, pooling, Flatten and Dropout, or give the module a method cut(part, flow)"
)


class Flow(NamedTuple):
    """The channels between two layers.

    ids (kept,): which of `total` channels are left, in rising order; None: the input of the net,
    of which everything is left. kind: "maps" are channels on axis 1 with places behind (N, C, H,
    W), "rows" are features on the last axis, "flat" are maps made into rows, channel by channel.
    """

    ids: Tensor | None = None
    total: int = 0
    kind: Literal["input", "maps", "rows", "flat"] = "input"

    def same(self, other: Flow) -> bool:
        """Say whether two branches carry the same channels, so that they may be added."""
        if self.ids is None or other.ids is None:
            return self.all_left() and other.all_left()
        return self.total == other.total and torch.equal(self.ids, other.ids)

    def all_left(self) -> bool:
        """Say whether no channel is missing."""
        return self.ids is None or len(self.ids) == self.total


class Cuttable(Protocol):
    """A module that knows how to be cut.

    cut(part, flow) returns the smaller module and what flows out of it. `part.child` cuts a
    submodule, `part.channels(n)` chooses among n outputs, `part.keep` cuts one of the module's own
    parameters; every parameter must be named to `part` exactly once, and the smaller module must
    have the same parameters under the same names.
    """

    def cut(self, part: Part, flow: Flow) -> tuple[nn.Module, Flow]:
        """-> the smaller module, and the flow behind it."""


class Part:
    """What a module is given to cut itself: its place in the net and what it may ask for."""

    def __init__(self, walk: _Walk, module: nn.Module, path: str) -> None:
        self._walk, self._module, self.path = walk, module, path

    def child(self, name: str, flow: Flow) -> tuple[nn.Module, Flow]:
        """Cut the submodule of this name."""
        return self._walk.module(self._module.get_submodule(name), flow, self._at(name))

    def channels(self, n: int) -> Tensor:
        """Choose which of n outputs are kept, in rising order. It depends on n alone, so that
        branches of one width agree.
        """
        return self._walk.channels(n)

    def keep(self, name: str, *ids: Tensor | None) -> nn.Parameter | None:
        """Cut a parameter of this module: ids[i] (int64) is what is kept along axis i, None all.

        Returns the smaller parameter; None for one that the module does not have.
        """
        value = getattr(self._module, name)
        if value is None:
            return None
        self._walk.kept[self._at(name)] = ids
        piece = value.detach()
        for axis, some in enumerate(ids):
            piece = piece if some is None else piece.index_select(axis, some.to(piece.device))
        return nn.Parameter(piece.clone(), requires_grad=value.requires_grad)

    def refuse(self, why: str, do: str) -> CompositionError:
        """The error that says why this module cannot be cut, and what to do."""
        kind = type(self._module).__name__
        return CompositionError(
            f"{self._walk.rule} cannot cut {kind} '{self.path or 'the model'}': {why}; {do}"
        )

    def is_head(self) -> bool:
        """Say whether this is the net's last layer with weights, which keeps all its rows."""
        return self._module is self._walk.head

    def exact(self) -> bool:
        """Say whether norms are cut in whole groups."""
        return self._walk.exact

    def _at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name


Choose = Callable[[int, int], Tensor]


class _Walk:
    """One walk. kept[parameter] = (rows, columns, ...), None for all."""

    def __init__(self, rule: str, module: nn.Module, share: float, choose: Choose, exact: bool):
        self.rule, self.share, self.choose, self.exact = rule, share, choose, exact
        self.kept: dict[str, tuple[Tensor | None, ...]] = {}
        self.cuttable = False
        self._met: set[int] = set()
        parts = list(module.modules())
        weighted = [m for m in parts if isinstance(m, nn.Linear | nn.Conv2d)]
        self.head = weighted[-1] if weighted else None
        # two norms of one width must agree on the grain: channels per group, or number of groups
        self._grain: dict[int, int] = {}
        for m in parts:
            if isinstance(m, nn.GroupNorm):
                grain = m.num_channels // m.num_groups if exact else m.num_groups
                before = self._grain.get(m.num_channels, 1)
                self._grain[m.num_channels] = math.lcm(before, grain)

    def channels(self, n: int) -> Tensor:
        grain = self._grain.get(n, 1)
        units = n // grain
        self.cuttable |= units > 1
        keep = max(1, math.ceil(self.share * units - 1e-9))
        if not self.exact:  # any channels, but a number that the groups divide
            return self.choose(n, keep * grain)
        return (self.choose(units, keep)[:, None] * grain + torch.arange(grain)).reshape(-1)

    def module(self, m: nn.Module, flow: Flow, path: str) -> tuple[nn.Module, Flow]:
        part = Part(self, m, path)
        if next(m.parameters(), None) is not None:
            if id(m) in self._met:
                raise part.refuse("it stands in the net twice", "give every place its own module")
            self._met.add(id(m))
        if callable(getattr(type(m), "cut", None)):  # of the class: a child may be called cut
            small, out = cast(Cuttable, m).cut(part, flow)
        elif type(m) in _HOW:
            small, out = _HOW[type(m)](m, part, flow)
        else:
            raise part.refuse("no way is known", KNOWN)
        small.training = m.training
        return small, out


def cut_net(
    net: Net, rule: str, share: float, choose: Choose, exact: bool = True
) -> tuple[Net, Tensor]:
    """Cut a net to a share of every hidden width -> the smaller Net, held (m,).

    choose(units, keep) -> which `keep` of `units` are kept, in rising order. exact: widths that a
    GroupNorm normalises are cut in whole groups; otherwise the number of groups stays. rule is
    named in errors. Raises CompositionError for a net that cannot be cut.

    >>> net = Net(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1)))
    >>> small, held = cut_net(net, "Width", 0.5, lambda units, keep: torch.arange(keep))
    >>> small.layout.shapes, held.tolist()
    (((2, 2), (2,), (1, 2), (1,)), [0, 1, 2, 3, 8, 9, 12, 13, 16])
    """
    walk = _Walk(rule, net.module, share, choose, exact)
    module, out = walk.module(net.module, Flow(), "")
    top = Part(walk, net.module, "")
    if not out.all_left():
        raise top.refuse("its outputs would be cut", "end it with a Linear or Conv2d layer")
    if not walk.cuttable:
        raise top.refuse(
            "no hidden layer has channels, or groups of them, to choose among",
            "take a net with hidden layers (and exact=False for norms of one group)",
        )
    small = Net(module)
    if small.layout.names != net.layout.names or set(net.layout.names) - set(walk.kept):
        odd = sorted({*small.layout.names} ^ {*net.layout.names}) or sorted(
            {*net.layout.names} - {*walk.kept}
        )
        raise top.refuse(f"'{odd[0]}' is tied to another parameter or was not cut", KNOWN)
    held, at = [], 0
    for name, shape, size in zip(
        net.layout.names, net.layout.shapes, net.layout.sizes, strict=True
    ):
        held.append(at + _positions(shape, walk.kept[name]))
        at += size
    return small, torch.cat(held).to(net.device)


def _positions(shape: tuple[int, ...], ids: tuple[Tensor | None, ...]) -> Tensor:
    """Where the kept entries of a tensor stand in its flattened form, in rising order."""
    place = torch.zeros((), dtype=torch.int64)
    for axis, n in enumerate(shape):
        some = ids[axis] if axis < len(ids) else None
        along = torch.arange(n) if some is None else some
        place = place.unsqueeze(-1) * n + along
    return place.reshape(-1)


# --------------------------------------------------------------------- the modules of torch.nn
def _sequential(m: nn.Sequential, part: Part, flow: Flow) -> tuple[nn.Module, Flow]:
    small: OrderedDict[str, nn.Module] = OrderedDict()
    for name, _ in m._modules.items():  # named_children() would leave out a repeated activation
        small[name], flow = part.child(name, flow)
    return nn.Sequential(small), flow


def _linear(m: nn.Linear, part: Part, flow: Flow) -> tuple[nn.Module, Flow]:
    columns = flow.ids
    if columns is not None:
        area = m.in_features // flow.total
        if flow.kind == "maps":
            raise part.refuse("feature maps go into it", "put nn.Flatten() before it")
        if area * flow.total != m.in_features or (flow.kind == "rows" and area != 1):
            raise part.refuse(f"{flow.total} channels go into {m.in_features} inputs", KNOWN)
        columns = (columns[:, None] * area + torch.arange(area)).reshape(-1)
    rows = torch.arange(m.out_features) if part.is_head() else part.channels(m.out_features)
    inputs = m.in_features if columns is None else len(columns)
    small = nn.Linear(inputs, len(rows), m.bias is not None, device="meta")
    return _filled(small, part, (rows, columns)), Flow(rows, m.out_features, "rows")


def _conv(m: nn.Conv2d, part: Part, flow: Flow) -> tuple[nn.Module, Flow]:
    if m.groups != 1:
        raise part.refuse(f"it has {m.groups} groups", "take groups=1, or cut it by a method cut")
    columns = flow.ids
    if columns is not None and (flow.kind != "maps" or flow.total != m.in_channels):
        raise part.refuse(f"{flow.total} {flow.kind} go into {m.in_channels} channels", KNOWN)
    rows = torch.arange(m.out_channels) if part.is_head() else part.channels(m.out_channels)
    inputs = m.in_channels if columns is None else len(columns)
    same: dict[str, Any] = {
        name: getattr(m, name)
        for name in ("kernel_size", "stride", "padding", "dilation", "padding_mode")
    }
    small = nn.Conv2d(inputs, len(rows), bias=m.bias is not None, device="meta", **same)
    return _filled(small, part, (rows, columns)), Flow(rows, m.out_channels, "maps")


def _group_norm(m: nn.GroupNorm, part: Part, flow: Flow) -> tuple[nn.Module, Flow]:
    left = _normalised(m.num_channels, part, flow)
    groups = left * m.num_groups // m.num_channels if part.exact() else m.num_groups
    small = nn.GroupNorm(groups, left, m.eps, m.affine, device="meta")
    return _filled(small, part, (flow.ids,)), flow


def _batch_norm(
    m: nn.BatchNorm1d | nn.BatchNorm2d, part: Part, flow: Flow
) -> tuple[nn.Module, Flow]:
    if m.track_running_stats:
        raise part.refuse(
            "its running statistics are of the whole width",
            "take nn.GroupNorm, or track_running_stats=False",
        )
    left = _normalised(m.num_features, part, flow)
    small = type(m)(left, m.eps, m.momentum, m.affine, track_running_stats=False, device="meta")
    return _filled(small, part, (flow.ids,)), flow


def _normalised(width: int, part: Part, flow: Flow) -> int:
    """How many channels are left of a norm's."""
    if flow.ids is None:
        return width
    if flow.total != width:
        raise part.refuse(f"{flow.total} channels go into a norm of {width}", KNOWN)
    return len(flow.ids)


def _filled(small: Any, part: Part, ids: tuple[Tensor | None, ...]) -> nn.Module:
    """The smaller layer with the kept weights; its bias runs along the first axis."""
    small.weight = part.keep("weight", *ids)
    small.bias = part.keep("bias", ids[0])
    return cast(nn.Module, small)


def _flatten(m: nn.Flatten, part: Part, flow: Flow) -> tuple[nn.Module, Flow]:
    if flow.ids is not None and (m.start_dim, m.end_dim) != (1, -1):
        raise part.refuse("it does not flatten whole examples", "take nn.Flatten()")
    return m, flow._replace(kind="flat") if flow.kind == "maps" else flow


def _elementwise(m: nn.Module, part: Part, flow: Flow) -> tuple[nn.Module, Flow]:
    return m, flow


def _channelwise(m: nn.Module, part: Part, flow: Flow) -> tuple[nn.Module, Flow]:
    if flow.kind not in ("maps", "input"):
        raise part.refuse("no feature maps go into it", "put it behind a Conv2d")
    return m, flow


How = Callable[[Any, Part, Flow], tuple[nn.Module, Flow]]
_HOW: dict[type[nn.Module], How] = {
    nn.Sequential: _sequential,
    nn.Linear: _linear,
    nn.Conv2d: _conv,
    nn.GroupNorm: _group_norm,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.Flatten: _flatten,
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(CHANNELWISE, _channelwise),
}
