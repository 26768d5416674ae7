"""Slicing: one walk through a net makes a smaller one and notes what it kept.

A Flow between two layers says which channels are left of how many. A layer with weights keeps the
columns of the channels that reach it, and chooses its rows; every other layer passes the flow on.
Only modules whose forward is known are sliced, by their exact type: a subclass may compute
something else. A module of your own is sliced by a method `cut(part, flow)`, see Part.
"""

from __future__ import annotations

import copy
import math
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from ..core.dropout import HashedDropout
from ..core.net import Net
from ..errors import CompositionError

KNOWN = (
    "build the net of nn.Sequential, fedloom.models.layers.Residual, Linear, Conv2d, GroupNorm, "
    "activations, pooling, Flatten and Dropout, or give the module a method cut(part, flow)"
)
ELEMENTWISE: tuple[type[nn.Module], ...] = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish),
    *(nn.Softplus, nn.Softsign, nn.Tanh, nn.Sigmoid, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid),
    *(nn.Identity, nn.Dropout, HashedDropout),
)
CHANNELWISE: tuple[type[nn.Module], ...] = (
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.Dropout2d),
)
GRAIN = 64  # widths go in steps of 1/64


class Cut(NamedTuple):
    """How a net is sliced to a share of every hidden width.

    rule is named in errors. choose(units, keep) -> which `keep` of `units` are kept, increasing.
    exact: widths that a GroupNorm normalises are sliced in whole groups; otherwise the number of
    groups stays. scaler: layers divide their outputs by the share in "training", "always", or never
    (""). exits: how many exits a net of several keeps; None: all.
    """

    rule: str
    share: float
    choose: Callable[[int, int], Tensor]
    exact: bool = True
    scaler: str = ""
    exits: int | None = None


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
        """True if two branches carry the same channels, so that they may be added."""
        if self.ids is None or other.ids is None:
            return self.all_left() and other.all_left()
        return self.total == other.total and torch.equal(self.ids, other.ids)

    def all_left(self) -> bool:
        """True if no channel is missing."""
        return self.ids is None or len(self.ids) == self.total


class Walk:
    """What one walk through a net has found. selection[parameter] = (rows, columns, ...), None for
    all; left_out: parameters of modules that the smaller net does not have.
    """

    def __init__(self, module: nn.Module, how: Cut) -> None:
        self.how = how
        self.selection: dict[str, tuple[Tensor | None, ...]] = {}
        self.left_out: set[str] = set()
        self.heads: set[int] = set()
        self.cuttable = False
        self.visited: set[int] = set()
        self.add_head(module)
        # two norms of one width must agree on the grain: channels per group, or number of groups
        self.grain: dict[int, int] = {}
        for m in module.modules():
            if isinstance(m, nn.GroupNorm):
                grain = m.num_channels // m.num_groups if how.exact else m.num_groups
                before = self.grain.get(m.num_channels, 1)
                self.grain[m.num_channels] = math.lcm(before, grain)

    def add_head(self, module: nn.Module) -> None:
        """The last layer with weights of this module gives outputs of the net."""
        weighted = [m for m in module.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
        self.heads.update(id(m) for m in weighted[-1:])


class Part:
    """A module's place in the net, and methods for its parts; the walk so far is shared by all.

    A module that knows how to be cut has a method cut(part, flow) -> the smaller module, and what
    flows out of it. `child` cuts a submodule, `channels` chooses among outputs, `keep` cuts one of
    the module's own parameters. Every parameter must be named exactly once, and the smaller module
    must have the same parameters under the same names.
    """

    def __init__(self, walk: Walk, module: nn.Module, path: str) -> None:
        self._walk, self._module, self.path = walk, module, path

    def cut(self, flow: Flow) -> tuple[nn.Module, Flow]:
        """Cut this module, which the channels of `flow` reach -> the smaller module, and the
        channels that leave it. Raises CompositionError if no way to cut it is known.
        """
        m = self._module
        if next(m.parameters(), None) is not None:
            if id(m) in self._walk.visited:
                raise self.refuse("it stands in the net twice", "give every place its own module")
            self._walk.visited.add(id(m))
        if callable(getattr(type(m), "cut", None)):  # of the class: a child may be called cut
            small, out = cast(Any, m).cut(self, flow)
        elif type(m) in WAYS:
            small, out = WAYS[type(m)](m, self, flow)
        else:
            raise self.refuse("no way is known", KNOWN)
        small.training = m.training
        return small, out

    def child(self, name: str, flow: Flow, head: bool = False) -> tuple[nn.Module, Flow]:
        """Cut the submodule of this name. head: its last layer with weights gives outputs of the
        net, so that it keeps all its rows.
        """
        module = self._module.get_submodule(name)
        if head:
            self._walk.add_head(module)
        return Part(self._walk, module, self._at(name)).cut(flow)

    def leave_out(self, name: str) -> None:
        """Drop the submodule of this name from the smaller module."""
        inner = self._module.get_submodule(name).named_parameters(prefix=self._at(name))
        self._walk.left_out.update(full for full, _ in inner)

    def channels(self, n: int) -> Tensor:
        """Choose which of n outputs are kept, in rising order. It depends on n alone, so that
        branches of one width agree.
        """
        grain, choose = self._walk.grain.get(n, 1), self.how.choose
        units = n // grain
        self._walk.cuttable |= units > 1
        keep = max(1, math.ceil(self.how.share * units - 1e-9))
        if not self.how.exact:  # any channels, but a number that the groups divide
            return choose(n, keep * grain)
        return (choose(units, keep)[:, None] * grain + torch.arange(grain)).reshape(-1)

    def keep(self, name: str, *ids: Tensor | None) -> nn.Parameter | None:
        """Cut a parameter of this module: ids[i] (int64) is what is kept along axis i, None all.

        Returns the smaller parameter; None for one that the module does not have.
        """
        value = getattr(self._module, name)
        if value is None:
            return None
        self._walk.selection[self._at(name)] = ids
        piece = value.detach()
        for axis, some in enumerate(ids):
            piece = piece if some is None else piece.index_select(axis, some.to(piece.device))
        return nn.Parameter(piece.clone(), requires_grad=value.requires_grad)

    def refuse(self, why: str, do: str) -> CompositionError:
        """The error that says why this module cannot be cut, and what to do."""
        kind = type(self._module).__name__
        return CompositionError(
            f"{self._walk.how.rule} cannot cut {kind} '{self.path or 'the model'}': {why}; {do}"
        )

    def is_head(self) -> bool:
        """True for the last layer with weights before outputs of the net: it keeps all its rows."""
        return id(self._module) in self._walk.heads

    @property
    def how(self) -> Cut:
        """How the net is sliced."""
        return self._walk.how

    def _at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name


# ------------------------------------------------------------------------------------- the scaler
class Scaled(nn.Module):
    """A layer whose outputs are divided by the share of the width that is left: in training, or
    always.

    Source: HeteroFL (Diao, Ding and Tarokh, ICLR 2021), section 3.2, "Scaler"; with always as in
    ScaleFL's code.
    """

    share: float = 1.0
    always: bool = False
    trained_with: ClassVar[bool] = True  # see Net.evaluating

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = super().forward(inputs)
        return out / self.share if self.always or self.training else out


class ScaledLinear(Scaled, nn.Linear):
    """A Linear layer with HeteroFL's scaler behind it."""


class ScaledConv2d(Scaled, nn.Conv2d):
    """A Conv2d layer with HeteroFL's scaler behind it."""


_SCALED: dict[type[nn.Module], type[nn.Module]] = {nn.Linear: ScaledLinear, nn.Conv2d: ScaledConv2d}


def unscaled(module: nn.Module) -> nn.Module:
    """Replace layers with a scaler by plain ones, in place -> the module, which evaluates alike.

    A scaler that is always on is multiplied into the weights and the bias.

    >>> layer = ScaledLinear(1, 1)
    >>> layer.share = 0.5
    >>> type(unscaled(nn.Sequential(layer))[0])
    <class 'torch.nn.modules.linear.Linear'>
    """
    for part in module.modules():
        if not isinstance(part, Scaled):
            continue
        if part.always:
            with torch.no_grad():
                for value in part.parameters(recurse=False):
                    value.div_(part.share)
        part.__dict__.pop("share", None)
        part.__dict__.pop("always", None)
        # the layer itself stays: a module may be known by several names
        part.__class__ = type(part).__bases__[1]  # the class it came from
    return module


# -------------------------------------------------------------------------- the modules of torch.nn
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
    small, rows = _weighted(m, part, m.in_features, m.out_features, columns)
    return small, Flow(rows, m.out_features, "rows")


def _conv(m: nn.Conv2d, part: Part, flow: Flow) -> tuple[nn.Module, Flow]:
    if m.groups != 1:
        raise part.refuse(f"it has {m.groups} groups", "take groups=1, or cut it by a method cut")
    if flow.ids is not None and (flow.kind != "maps" or flow.total != m.in_channels):
        raise part.refuse(f"{flow.total} {flow.kind} go into {m.in_channels} channels", KNOWN)
    names = ("kernel_size", "stride", "padding", "dilation", "padding_mode")
    same = {name: getattr(m, name) for name in names}
    small, rows = _weighted(m, part, m.in_channels, m.out_channels, flow.ids, **same)
    return small, Flow(rows, m.out_channels, "maps")


def _weighted(
    m: nn.Linear | nn.Conv2d,
    part: Part,
    inputs: int,
    outputs: int,
    columns: Tensor | None,
    **same: Any,
) -> tuple[nn.Module, Tensor]:
    """The smaller layer, with a scaler if the others have one too, and the rows that it keeps."""
    head = part.is_head()
    rows = torch.arange(outputs) if head else part.channels(outputs)
    kept = inputs if columns is None else len(columns)
    scaled = bool(part.how.scaler) and not head
    make: Any = _SCALED[type(m)] if scaled else type(m)
    small = make(kept, len(rows), bias=m.bias is not None, device="meta", **same)
    if scaled:
        small.share, small.always = part.how.share, part.how.scaler == "always"
    return _cut_weights(small, part, (rows, columns)), rows


def _group_norm(m: nn.GroupNorm, part: Part, flow: Flow) -> tuple[nn.Module, Flow]:
    left = _normalised(m.num_channels, part, flow)
    groups = left * m.num_groups // m.num_channels if part.how.exact else m.num_groups
    small = nn.GroupNorm(groups, left, m.eps, m.affine, device="meta")
    return _cut_weights(small, part, (flow.ids,)), flow


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
    return _cut_weights(small, part, (flow.ids,)), flow


def _normalised(width: int, part: Part, flow: Flow) -> int:
    """How many channels of a norm are left."""
    if flow.ids is None:
        return width
    if flow.total != width:
        raise part.refuse(f"{flow.total} channels go into a norm of {width}", KNOWN)
    return len(flow.ids)


def _cut_weights(small: Any, part: Part, ids: tuple[Tensor | None, ...]) -> nn.Module:
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


Way = Callable[[Any, Part, Flow], tuple[nn.Module, Flow]]
WAYS: dict[type[nn.Module], Way] = {
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


# --------------------------------------------------------------------------------------- whole nets
def _walked(module: nn.Module, how: Cut) -> tuple[Walk, nn.Module]:
    walk = Walk(module, how)
    top = Part(walk, module, "")
    small, out = top.cut(Flow())
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
    small = Net(module)
    left = tuple(name for name in net.layout.names if name not in walk.left_out)
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
    held = lambda k: count_left(net, how._replace(share=k / GRAIN))
    return bisect_right(range(1, GRAIN + 1), budget, key=held) / GRAIN or None


def _positions(shape: tuple[int, ...], ids: tuple[Tensor | None, ...]) -> Tensor:
    """The positions of the kept entries of a tensor in its flattened form, increasing."""
    position = torch.zeros((), dtype=torch.int64)
    for axis, n in enumerate(shape):
        some = ids[axis] if axis < len(ids) else None
        along = torch.arange(n) if some is None else some
        position = position.unsqueeze(-1) * n + along
    return position.reshape(-1)
