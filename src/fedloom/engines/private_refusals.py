"""What local.dp cannot protect, and is refused by name before the run."""

from __future__ import annotations

import torch
from torch import nn, vmap

from ..core.net import Net
from ..core.vector import rec
from ..errors import CompositionError
from ..federation.federation import Federation
from ..plan import Plan
from .author_rules import Explained, with_note
from .base import one_thread
from .client_round import Client
from .private_gradient import clipped_sum, example_loss, loss_label
from .vmap_refusals import Feature, refusal, refuse_model

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
