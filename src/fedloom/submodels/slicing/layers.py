"""How the modules of torch.nn are sliced."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from ...core.dropout import HashedDropout
from .flow import KNOWN, Flow, Part

ELEMENTWISE: tuple[type[nn.Module], ...] = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish),
    *(nn.Softplus, nn.Softsign, nn.Tanh, nn.Sigmoid, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid),
    *(nn.Identity, nn.Dropout, HashedDropout),
)
CHANNELWISE: tuple[type[nn.Module], ...] = (
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.Dropout2d),
)


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


_PLAIN: dict[type[nn.Module], type[nn.Module]] = {ScaledLinear: nn.Linear, ScaledConv2d: nn.Conv2d}


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
        part.__class__ = _PLAIN[type(part)]  # type: ignore[assignment]  # to the class it came from
    return module


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
    if part.how.scaler and not part.is_head():
        small = ScaledLinear(inputs, len(rows), m.bias is not None, device="meta")
        small.share, small.always = part.how.share, part.how.scaler == "always"
    return _cut_weights(small, part, (rows, columns)), Flow(rows, m.out_features, "rows")


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
    if part.how.scaler and not part.is_head():
        small = ScaledConv2d(inputs, len(rows), bias=m.bias is not None, device="meta", **same)
        small.share, small.always = part.how.share, part.how.scaler == "always"
    return _cut_weights(small, part, (rows, columns)), Flow(rows, m.out_channels, "maps")


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
