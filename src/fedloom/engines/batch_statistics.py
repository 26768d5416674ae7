"""Evaluation of models with batch norm without running statistics (HeteroFL's static one)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ..core.net import Net
from ..core.rng import generator, key, seed_torch
from ..core.vector import Vec
from ..federation.federation import Federation
from ..models import with_statistics
from ..plan import Plan
from .evaluation import EVALUATION_BATCH, Score, score_of
from .padded_batches import rows_of

BATCH = 256  # the largest batch for gathering statistics; half of it is still 128
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def keeps_no_statistics(module: nn.Module) -> bool:
    """True if a batch norm of the module has only the statistics of its batch."""
    return any(isinstance(m, _NORMS) and m.running_mean is None for m in module.modules())


def samples(fed: Federation) -> Iterator[Tensor]:
    """All training samples as model inputs, shuffled over the clients, in batches of equal size."""
    own = torch.from_numpy(np.unique(fed.data.clients.indices.numpy()))
    order = torch.randperm(len(own), generator=generator(fed.seed, "statistics"))
    for index in torch.chunk(own[order], -(-len(own) // BATCH)):
        yield fed.batch(index)[0]


def evaluate_settled(
    plan: Plan, fed: Federation, net: Net, x: Vec, inputs: Tensor, targets: Tensor
) -> Score:
    """The score of a model with statistics over all training samples (HeteroFL, section 3.2); x
    (m,) belongs to this model.
    """
    seed_torch(key(fed.seed, "evaluate", "statistics"), x)  # the model may draw
    settled = Net(with_statistics(net.export(x), samples(fed)))
    return score_of(plan, fed, settled, settled.init(), [(inputs, targets)])


def evaluate_by_batches(
    plan: Plan, fed: Federation, net: Net, x: Vec, inputs: Tensor, targets: Tensor, own: bool
) -> Score:
    """The score of a model that normalises with the test batch, as FIARSE's code does. Batches are
    as large as in training, in order, each of one client's test set (own: these are the
    federation's test samples). Samples that belong to no client come at the end. One example alone
    has no statistics, so it joins the batch before it.
    """
    size = fed.local.batch or EVALUATION_BATCH
    batches = _batches(_test_sets(fed, len(inputs), own), size)
    parts = ((rows_of((inputs,), i)[0], rows_of((targets,), i)[0]) for i in batches)
    total = score_of(plan, fed, net, x, parts)
    back = torch.cat(batches).argsort()
    each, share = ({k: v[back] for k, v in of.items()} for of in (total.each, total.share))
    return total._replace(each=each, share=share)


def _batches(parts: Sequence[Tensor], size: int) -> list[Tensor]:
    out: list[Tensor] = []
    for part in parts:
        for index in torch.split(part, size):
            if len(index) == 1 and out:
                out[-1] = torch.cat([out[-1], index])
            else:
                out.append(index)
    return out


def _test_sets(fed: Federation, count: int, own: bool) -> list[Tensor]:
    """The test samples client by client, each once, then those of no client."""
    lists, free, out = fed.data.test_clients, torch.ones(count, dtype=torch.bool), []
    if own and lists is not None:
        for i in range(fed.population):
            mine = torch.from_numpy(np.unique(lists.of(i).numpy()))
            mine = mine[free[mine]]
            free[mine] = False
            out.append(mine)
    out.append(free.nonzero()[:, 0])
    return [part for part in out if len(part)]
