"""Ranges of a cohort in chunks of clients that are computed together."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..core.dropout import seeded
from ..core.net import Net
from ..core.vector import Rec, Vec, rec, tree
from ..core.wire import nbytes
from ..federation.federation import Federation
from ..plan import Plan
from ..submodels.base import whole
from .base import one_thread
from .client_round import Client, Done, RangeResult, Share, Stats
from .prefetch import Prefetcher
from .summation import finite, push_rows
from .vmap_round import NeedsFullError, Trained, VmapRound

LARGEST = 100  # clients at once, unless the configuration says otherwise
BUDGET = 1 << 30  # bytes that a chunk may take by default
VECTORS = 12  # vectors of length d per client: x, gradient, direction, message, states, sums


class VmapRange:
    """Runs `chunk` clients at a time on one instance of the model."""

    def __init__(self, plan: Plan, fed: Federation, net: Net, chunk: int) -> None:
        self.plan, self.fed, self.net, self.chunk = plan, fed, net, chunk
        self.client = Client(plan, fed, net)
        self.ahead: Prefetcher | None = None  # if there is a second processor
        self._whole = self._depends()

    def _depends(self) -> bool:
        """True if an example's loss depends on the rest of its batch, as with batch norm, or if
        there is no loss per example. Such a batch must not be padded.
        """
        index, x = self.fed.data.clients.indices[:8], self.net.init()
        with self.client.explained(0, 0), one_thread():
            memory = self.client.first_memory(x, 0, whole(self.net.layout))
        self.net.train()
        losses = []
        for some in (index, index[:1].expand(len(index))):
            with torch.no_grad(), seeded(0), self.client.explained(0, 0):
                batch = self.fed.batch(some)
                loss = self.plan.objective.loss(self.net, x, batch, x, memory.obj)
                losses.append(self.plan.objective.checked(loss, batch))
            self.net.load_buffers(self.net.init_buffers())
        if losses[0].ndim == 0:
            return True
        return not torch.allclose(losses[0][0], losses[1][0], rtol=1e-4, atol=1e-6)

    def run_range(
        self,
        msg: Rec,
        buffers: Vec,
        memories: dict[int, Rec],
        cohort: list[int],
        round: int,
        first: int = 0,
    ) -> RangeResult:
        """Train the clients of a range of the cohort, which begins at place `first`.

        memories: {client: its state}, for clients that took part before. Raises ClientError.
        """
        out, client = RangeResult([], {}, []), self.client
        shares = client.shares(msg, cohort, round)
        for a in range(0, len(cohort), self.chunk):
            members = cohort[a : a + self.chunk]
            start = {
                i: memories.get(i)
                or client.first_memory(msg.x, i, shares[self.fed.capacity(i)].view)
                for i in members
            }
            groups = self._groups(members)
            done: dict[int, Done] = {}
            for group in groups:
                share = shares[self.fed.capacity(group[0])]
                with client.explained(group[0], round):
                    trained = self._together(share, start, group, round)
                    if len(groups) == 1 and trained and self._all_in(trained):
                        self._take_in(out, trained, share, members, round, first + a)
                        break
                    for r, i in enumerate(group):
                        done[i] = (
                            trained.done(r) if trained else client.train(share, start[i], i, round)
                        )
            else:
                for place, i in enumerate(members, first + a):
                    with client.explained(i, round):
                        share = shares[self.fed.capacity(i)]
                        client.take_in(out, done.pop(i), share, place, i, round)
        return out

    def probe_range(self, x: Vec, buffers: Vec, clients: list[int], first: int = 0) -> RangeResult:
        """Ask clients once before round 0, one after another."""
        return self.client.probe_range(x, buffers, clients, first)

    def _together(
        self, share: Share, start: dict[int, Rec], group: list[int], round: int
    ) -> Trained | None:
        """None: not possible, all data in equal batches, and a batch-level loss cannot be
        padded.
        """
        try:
            more = (self._whole, self.ahead)
            return VmapRound(self.client, share, start, group, round, *more).run()
        except NeedsFullError:
            return None

    def _groups(self, members: list[int]) -> list[list[int]]:
        """Clients that can be computed together: they share a view; with a batch-level loss, also
        the sizes of their batches.
        """
        alike: dict[Any, list[int]] = {}
        for i in members:
            sizes = self.fed.sizes(i) if self._whole else ()
            alike.setdefault((self.fed.capacity(i), sizes), []).append(i)
        return list(alike.values())

    # ---------------------------------------------------------------------- all updates of a chunk
    def _all_in(self, trained: Trained) -> bool:
        """True if these updates can be added as they are: whole, uncompressed and finite."""
        plan = self.plan
        plain = plan.rule is None and not plan.link.codes
        return plain and all(map(math.isfinite, trained.losses)) and finite(trained.up)

    def _take_in(
        self,
        out: RangeResult,
        trained: Trained,
        share: Share,
        members: list[int],
        round: int,
        first: int,
    ) -> None:
        """Client.take_in for all of these clients at once."""
        up = trained.up
        weight = up.weight.cpu().double()
        rows = rec(
            n=torch.ones_like(weight),
            mass=weight,
            weight=weight,
            delta=up.weight[:, None] * up.delta,
            # single numbers are added on the host, which reads them one by one
            uniform=tree(lambda v: v.cpu() if v.ndim == 1 else v, trained.uniform),
            buffers=up.delta[:, :0],
        )
        push_rows(out.nodes, first, rows)
        sent = nbytes(tree(lambda v: 0.0 if v.ndim == 1 else v[0], up))
        for r, i in enumerate(members):
            steps, loss = len(self.fed.sizes(i)), trained.losses[r]
            calls, passes = trained.gradients(r)
            cost = Stats(i, True, loss, steps, calls, share.down, sent, passes=passes)
            out.memories[i] = trained.memory(r)._replace(last=float(round))
            out.stats.append(cost)


def default_chunk(plan: Plan, fed: Federation, net: Net, most: int = LARGEST) -> int:
    """Number of clients that fit into a gigabyte, at most 100 (or `most`), from the model's length
    and from the memory that the gradient of one batch of the first client needs.
    """
    kept = 0

    def count(t: Tensor) -> Tensor:
        nonlocal kept
        kept += t.nbytes
        return t

    x, client = net.init(), Client(plan, fed, net)
    batch = fed.batch(fed.batches(0, 0)[0])
    net.train()
    counted = torch.autograd.graph.saved_tensors_hooks(count, lambda t: t)
    with client.explained(0, 0), one_thread(), counted, torch.enable_grad():
        memory = client.first_memory(x, 0, whole(net.layout))
        plan.objective.mean(net, net.live(x), batch, x, memory.obj)
    # the batch of the next step is there too
    own: int = VECTORS * x.nbytes + 2 * kept + 2 * sum(t.nbytes for t in batch)
    return max(1, min(most, BUDGET // own))
