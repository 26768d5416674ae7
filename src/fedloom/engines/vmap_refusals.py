"""What cannot be computed for many clients at once, and is refused by name before the run."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from ..core.dropout import seeded
from ..core.net import Net
from ..core.vector import Vec
from ..errors import CompositionError
from ..federation.federation import Federation
from ..plan import Plan
from .author_rules import Explained, with_note
from .base import one_thread

_RANDOM = (
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
    nn.RReLU,
)


class Feature(NamedTuple):
    """What needs such a model, and what to do without it."""

    name: str
    instead: str


VECTORISED = Feature("engine vectorised", "; or run engine = serial or workers")


def refuse_model(plan: Plan, fed: Federation, net: Net, feature: Feature = VECTORISED) -> None:
    """Raise CompositionError for a model that cannot be computed for many clients, or examples, at
    once. One with buffers is run on a few samples, to see whether training changes them.
    """
    for name, part in net.module.named_modules():
        if why := _why_not(part):
            raise refusal(part, name, why, feature)
    if not net.buffer_layout.d:
        return
    start, index = net.init_buffers(), fed.data.clients.indices[:8]
    net.load_buffers(start)
    net.train()
    try:
        with Explained(plan.algorithm.method, 0, 0), one_thread(), torch.no_grad(), seeded(0):
            with_note("the model", net, net.init(), fed.trial(index)[0])
        refuse_changes(net, start, feature)
    finally:
        net.load_buffers(start)


def refuse_changes(net: Net, loaded: Vec, feature: Feature = VECTORISED) -> None:
    """Raise CompositionError if training has changed a floating buffer since these were loaded: the
    clients share one module, so that the change would belong to none of them.
    """
    if (name := net.changed_buffer(loaded)) is None:
        return
    owner, _, key = name.rpartition(".")
    why = f"changes its buffer '{key}' in training, which clients share here; keep it constant"
    raise refusal(net.module.get_submodule(owner), owner, why, feature)


def _why_not(part: nn.Module) -> str:
    """Why a layer is refused, "" if it is not."""
    if isinstance(part, _RANDOM):
        return "draws from torch's generator; nn.Dropout does not, its masks are hashed"
    if isinstance(part, nn.RNNBase):
        return "cannot be vmapped; fedloom.models.LSTM can"
    if isinstance(rate := getattr(part, "dropout", None), int | float) and rate > 0:
        return "has dropout of its own, which draws from torch's generator"
    if isinstance(part, nn.modules.batchnorm._NormBase) and part.track_running_stats:
        return "keeps running statistics; use nn.GroupNorm"
    return ""


def refusal(part: nn.Module, name: str, why: str, feature: Feature) -> CompositionError:
    """The error about a layer, by its name."""
    return CompositionError(
        f"{feature.name} and {type(part).__name__} ('{name or 'the model'}'): it {why}"
        f"{feature.instead}"
    )
