"""The vectorised engine: many clients are one computation with a leading axis of clients.

Ragged numbers of steps are masked, short batches padded by weight 0; a batch-level loss is never
padded. What needs torch's own randomness, or changes buffers, is refused by name: its draws would
belong to no client.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..errors import CompositionError
from ..net import Net
from ..plan import Federation, Plan
from ..vector import Rec, Vec
from ..views.base import whole
from .base import Score, add, evaluate_range, keep_memory, one_thread
from .client import Client, Done, RangeResult, Share
from .together import NeedsFullError, Together

__all__ = ["Vectorised", "refuse_module"]

CHUNK = 32  # clients at once, unless the configuration says otherwise

_RANDOM = (
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
    nn.RReLU,
)


def refuse_module(module: nn.Module) -> None:
    """Raise CompositionError for a module that cannot be computed for many clients at once."""
    for name, part in module.named_modules():
        kind, why = type(part).__name__, ""
        if isinstance(part, _RANDOM):
            why = "draws from torch's generator; nn.Dropout does not, its masks are hashed"
        elif isinstance(part, nn.RNNBase):
            why = "cannot be vmapped; fedloom.models.LSTM can"
        elif float(getattr(part, "dropout", 0.0) or 0.0) > 0 and not isinstance(
            part.dropout, nn.Module
        ):
            why = "has dropout of its own, which draws from torch's generator"
        elif isinstance(part, nn.modules.batchnorm._NormBase) and part.track_running_stats:
            why = "keeps running statistics; use nn.GroupNorm"
        if why:
            raise CompositionError(
                f"engine vectorised and {kind} ('{name or 'the model'}'): it {why}; "
                "or run engine = serial or workers"
            )


class Vectorised:
    """Clients in chunks of `chunk`, each chunk one vmapped computation."""

    name = "vectorised"

    def __init__(self, chunk: int = CHUNK) -> None:
        self.chunk = chunk

    def open(self, plan: Plan, fed: Federation, net: Net) -> None:
        """Make ready. Raises CompositionError for a module that cannot be vmapped."""
        refuse_module(net.module)
        keep_memory()
        self._plan, self._fed, self._net = plan, fed, net
        self._client = Client(plan, fed, net)
        self._whole = plan.objective.whole or self._scalar()

    def _scalar(self) -> bool:
        """Say whether a loss that promises a value per example gives one for the batch instead."""
        index, x = self._fed.data.clients.indices[:2], self._net.init()
        with self._client.explained(0, 0):
            memory = self._client.first_memory(x, 0, whole(self._net.layout))
        self._net.train(False)
        with torch.no_grad():
            batch = self._fed.batch(index)
            with self._client.explained(0, 0):
                loss = self._plan.objective.loss(self._net, x, batch, x, memory.obj)
                return self._plan.objective.checked(loss, batch).ndim == 0

    def round(
        self, msg: Rec, buffers: Vec, memories: dict[int, Rec], cohort: list[int], round: int
    ) -> RangeResult:
        """Train a cohort."""
        out, client = RangeResult([], {}, []), self._client
        with one_thread():
            shares = client.shares(msg, cohort, round)
            for a in range(0, len(cohort), self.chunk):
                members = cohort[a : a + self.chunk]
                start = {
                    i: memories.get(i)
                    or client.first_memory(msg.x, i, shares[self._fed.capacity(i)].view)
                    for i in members
                }
                done: dict[int, Done] = {}
                for group in self._groups(members, round):
                    share = shares[self._fed.capacity(group[0])]
                    with client.explained(group[0], round):
                        done |= self._together(share, start, group, round)
                for place, i in enumerate(members, a):
                    with client.explained(i, round):
                        share = shares[self._fed.capacity(i)]
                        client.take_in(out, done.pop(i), share, place, i, round)
        return out

    def _together(
        self, share: Share, start: dict[int, Rec], group: list[int], round: int
    ) -> dict[int, Done]:
        try:
            return Together(self._client, share, start, group, round, self._whole).run()
        except NeedsFullError:  # all data in equal batches: a batch-level loss cannot be padded
            return {i: self._client.train(share, start[i], i, round) for i in group}

    def _groups(self, members: list[int], round: int) -> list[list[int]]:
        """Clients that can be one computation: of one view; with a batch-level loss, also of equal
        batches.
        """
        alike: dict[Any, list[int]] = {}
        for i in members:
            sizes = tuple(len(b) for b in self._fed.batches(i, round)) if self._whole else ()
            alike.setdefault((self._fed.capacity(i), sizes), []).append(i)
        return list(alike.values())

    def probe(self, x: Vec, buffers: Vec, clients: list[int]) -> RangeResult:
        """Ask clients once before round 0."""
        with one_thread():
            return self._client.probe_range(x, buffers, clients)

    def evaluate(self, x: Vec, buffers: Vec, inputs: Tensor, targets: Tensor) -> Score:
        """The loss and the metrics of a model on data."""
        with one_thread():
            self._net.load_buffers(buffers)
            return add(evaluate_range(self._plan, self._fed, self._net, x, inputs, targets))

    def close(self) -> None:
        """Nothing to let go of."""
