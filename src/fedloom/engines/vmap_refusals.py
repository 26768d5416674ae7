"""What cannot be computed for many clients or examples at once: refused before the run."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn, vmap

from ..core.dropout import seeded
from ..core.net import Net
from ..core.vector import Vec, rec
from ..errors import CompositionError
from ..federation.federation import Federation
from ..plan import Plan
from .author_rules import Explained, with_note
from .base import one_thread
from .client_round import Client
from .private_gradient import clipped_sum, example_loss, loss_label

_RANDOM = (
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
    nn.RReLU,
)


class Feature(NamedTuple):
    """What needs such a model, and what to do without it. counters: no buffer may count calls."""

    name: str
    instead: str
    counters: bool = False


MANY = {
    name: Feature(f"engine {name}", "; or run engine = serial or workers", name == "streams")
    for name in ("vectorised", "streams")
}


def refuse_model(
    plan: Plan, fed: Federation, net: Net, feature: Feature = MANY["vectorised"]
) -> None:
    """Raise CompositionError for a model that cannot be computed for many clients, or examples, at
    once. One with buffers is run on a few samples, to see whether training changes them.
    """
    for name, part in net.module.named_modules():
        if why := _why_not(part):
            raise refusal(part, name, why, feature)
    if not any(True for _ in net.module.buffers()):
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


def refuse_changes(net: Net, loaded: Vec, feature: Feature = MANY["vectorised"]) -> None:
    """Raise CompositionError if training has changed a floating buffer since these were loaded, or
    a counter that must not change: the clients share one module, so that the change would belong to
    none of them.
    """
    name = net.changed_buffer(loaded) or (net.changed_counter() if feature.counters else None)
    if name is None:
        return
    owner, _, key = name.rpartition(".")
    why = f"changes its buffer '{key}' in training, which clients share here; keep it constant"
    raise refusal(net.module.get_submodule(owner), owner, why, feature)


def _why_not(part: nn.Module) -> str:
    """Why a layer is refused, "" if it is not."""
    if isinstance(part, _RANDOM):
        return "draws from torch's generator; nn.Dropout does not, its masks are hashed"
    if isinstance(part, nn.RNNBase):
        return "works in no transform of torch.func; fedloom.models.LSTM does"
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


_FEATURE = Feature("local.dp", "")


def refuse_examples(plan: Plan, fed: Federation, net: Net) -> None:
    """Raise CompositionError for a model or a loss that cannot be computed example by example,
    which is tried on a few samples, and for what tells the labels.
    """
    dp = fed.local.dp
    if dp is None:
        return
    for name, part in net.module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            why = "mixes the examples of a batch; use nn.GroupNorm"
            raise refusal(part, name, why, _FEATURE)
    if (scheme := plan.submodel) is not None and scheme.rows(net) is not None:
        raise CompositionError(
            f"local.dp and {scheme.name}: it averages a class's row over the clients that have "
            "the class, which tells their labels; take submodel.owners = false"
        )
    refuse_model(plan, fed, net, _FEATURE)
    client, x, objective = Client(plan, fed, net), net.init(), plan.objective
    batch = fed.trial(fed.data.trial_indices[:8])
    with Explained(plan.algorithm.method, 0, 0), one_thread():
        memory = client.first_memory(x, 0).obj
        download = client.download(client.views.whole, rec(x=x), net.init_buffers())
        loss = example_loss(plan, download, x, memory, 0)
        places = torch.arange(len(batch[1]), device=x.device)
        with net.evaluating(), torch.no_grad():  # without dropout, whose masks differ
            single_mean = vmap(lambda *example: loss(x, *example))(*batch, places).mean()
            arguments = net, x, batch, x, memory
            batch_mean = with_note(loss_label(objective), objective.loss, *arguments).mean()
        if not torch.allclose(single_mean, batch_mean, rtol=1e-3, atol=1e-5, equal_nan=True):
            raise CompositionError(
                f"local.dp and {objective.name}: the loss of a batch is not the mean of its "
                "examples' losses, each computed alone; take a loss, and a model, that do not "
                "compare the examples of a batch"
            )
        net.train()
        clipped_sum(loss, x, batch, x.new_ones(len(places)), dp.clip)
