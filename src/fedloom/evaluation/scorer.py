"""The score of a model: by the engine where it can share the batches out, else here. Batch norm
without running statistics has those of all training samples, or of each test batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..core.net import Net
from ..core.rng import generator, key, seed_torch
from ..core.vector import Rec, Vec
from ..engines.base import Engine, one_thread
from ..engines.client_results import Request
from ..engines.evaluation_batches import Examples, evaluation_task, examples_of
from ..engines.padded_batches import rows_of
from ..engines.scores import EVALUATION_BATCH, Score, add, is_whole, score_of
from ..federation.federation import Federation
from ..models import with_statistics
from ..plan import Plan

BATCH = 256  # the largest batch for gathering statistics; half of it is still 128
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class Current(NamedTuple):
    """A run's model after so many rounds: x (d,), and the module's buffers. msg: the next message,
    for clients that have models of their own.
    """

    x: Vec
    buffers: Vec
    round: int
    msg: Rec = None


class Scorer:
    """Scores models. statistics: of batch norm that keeps none, see Evaluation.statistics."""

    def __init__(self, plan: Plan, fed: Federation, net: Net, statistics: str) -> None:
        self.plan, self.fed, self.net = plan, fed, net
        self._statistics = statistics if keeps_no_statistics(net.module) else ""
        # what a metric of a whole set gathers cannot be merged
        self._mergeable = not self._statistics and not any(map(is_whole, fed.metrics.values()))

    def of(
        self,
        x: Vec,
        buffers: Vec,
        on: Request | Examples,
        engine: Engine | None = None,
        net: Net | None = None,
    ) -> Score:
        """The score on the common test set or the validation split, which exists, or on inputs and
        targets. engine: may compute it; net: what x is of, the run's by default.
        """
        examples: Examples | None
        if not isinstance(on, Request):
            examples = on
        elif self._mergeable and net is None and engine is not None:
            task = evaluation_task(x, buffers, self.fed.data, on)
            return add([*engine.map(on, task).scores])
        else:
            examples = examples_of(self.fed.data, on)
        assert examples is not None
        net = net or self.net
        with one_thread():
            if net.buffer_layout.d == len(buffers):
                net.load_buffers(buffers)
            if self._statistics == "static":
                net = _settled(self.fed, net, x)
                return score_of(self.plan, self.fed, net, net.init(), [examples])
            if self._statistics == "batch":
                return self._by_batches(net, x, examples, on is Request.TEST)
            return score_of(self.plan, self.fed, net, x, [examples])

    def _by_batches(self, net: Net, x: Vec, examples: Examples, common: bool) -> Score:
        """The score of a model that normalises with the test batch, as FIARSE's code does. Batches
        are as large as in training, in order, each of one client's test set (common: these are the
        federation's test samples). Samples that belong to no client come at the end. One example
        alone has no statistics, so it joins the batch before it.
        """
        size = self.fed.local.batch or EVALUATION_BATCH
        batches = _batches(_test_sets(self.fed, len(examples[0]), common), size)
        parts = ((rows_of(examples[:1], i)[0], rows_of(examples[1:], i)[0]) for i in batches)
        total = score_of(self.plan, self.fed, net, x, parts)
        back = torch.cat(batches).argsort()
        each, weights = (
            {k: v[back] for k, v in table.items()} for table in (total.each, total.each_weights)
        )
        return total._replace(each=each, each_weights=weights)


def keeps_no_statistics(module: nn.Module) -> bool:
    """True if a batch norm of the module has only the statistics of its batch."""
    return any(isinstance(m, _NORMS) and m.running_mean is None for m in module.modules())


def samples(fed: Federation) -> Iterator[Tensor]:
    """All training samples as model inputs, shuffled over the clients, in batches of equal size."""
    rows = torch.from_numpy(np.unique(fed.data.clients.indices.numpy()))
    order = torch.randperm(len(rows), generator=generator(fed.seed, "statistics"))
    for index in torch.chunk(rows[order], -(-len(rows) // BATCH)):
        yield fed.batch(index)[0]


def _settled(fed: Federation, net: Net, x: Vec) -> Net:
    """A model x (m,) with statistics over all training samples (HeteroFL, section 3.2)."""
    seed_torch(key(fed.seed, "evaluate", "statistics"), x)  # the model may draw
    return Net(with_statistics(net.export(x), samples(fed)))


def _batches(parts: Sequence[Tensor], size: int) -> list[Tensor]:
    out: list[Tensor] = []
    for part in parts:
        for index in torch.split(part, size):
            if len(index) == 1 and out:
                out[-1] = torch.cat([out[-1], index])
            else:
                out.append(index)
    return out


def _test_sets(fed: Federation, count: int, common: bool) -> list[Tensor]:
    """The test samples client by client, each once, then those of no client."""
    lists, free, out = fed.data.test_clients, torch.ones(count, dtype=torch.bool), []
    if common and lists is not None:
        for i in range(fed.population):
            index = torch.from_numpy(np.unique(lists.of(i).numpy()))
            index = index[free[index]]
            free[index] = False
            out.append(index)
    out.append(free.nonzero()[:, 0])
    return [part for part in out if len(part)]
