"""The batches of some clients side by side, padded to equal numbers and sizes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..core.rng import key, substreams
from ..core.vector import Rec, Vec, rec
from ..federation.federation import Federation


def rows_of(sources: tuple[Tensor, ...], index: Tensor) -> tuple[Tensor, ...]:
    """Rows (n, ...) of some tensors, all on one device, by index (n,), which may be on the CPU."""
    index = index.to(sources[0].device)
    # copies whole rows: twice as fast as indexing
    return tuple(v.index_select(0, index) for v in sources)


class Batches:
    """The batches of C clients in a round: K steps of B examples. like: a vector of the model's
    type and device. whole: the loss is of a whole batch and is never padded, so that all clients'
    k-th batches have one size. steps_done: each client's steps before this round, see
    Federation.order.
    """

    def __init__(
        self,
        fed: Federation,
        group: Sequence[int],
        round: int,
        like: Vec,
        whole: bool,
        steps_done: Sequence[int],
    ) -> None:
        self.fed, self.group, self.round, self.whole = fed, group, round, whole
        self._like = like
        dp, sizes = fed.local.dp, [fed.sizes(*now) for now in zip(group, steps_done, strict=True)]
        poisson = [fed.batches(i, round) for i in group] if dp is not None else []
        self._sizes = [tuple(map(len, batches)) for batches in poisson] or sizes
        self.steps = [len(s) for s in self._sizes]
        live = torch.arange(max(self.steps)) < torch.tensor(self.steps)[:, None]  # (C, K)
        self.live = live.to(like.device)
        if dp is None:
            orders = [fed.order(i, round, n) for i, n in zip(group, steps_done, strict=True)]
            index, weight = _tables(orders, self._sizes)
            self._noises = []
        else:
            expected = [fed.pass_of(i)[0] for i in group]
            index, weight = _poisson_tables(poisson, expected, int(fed.data.trial_indices[0]))
            noises = zip(group, expected, strict=True)
            self._noises = [dp.noises(n, fed.seed, round, i) for i, n in noises]
        self.index, self.weight = index.to(like.device), weight.to(like)  # (C, K, B)

    def __len__(self) -> int:
        return self.index.shape[1]

    def __iter__(self) -> Iterator[tuple[tuple[Tensor, Tensor], Tensor]]:
        """Inputs and targets (C, B, ...), and the weights (C, B) of their examples, one step at a
        time: the batches of all steps are never in memory together.
        """
        for k in range(len(self)):
            size = self._sizes[0][k] if self.whole else self.index.shape[2]
            index, draws = self.index[:, k, :size], self._draws(k, size)
            yield self._data(index, draws), self.weight[:, k, :size]

    def noise(self, shape: torch.Size) -> Tensor | tuple[()]:
        """The noise of all clients' next step (C, *shape), with local.dp."""
        dtype, device = self._like.dtype, self._like.device
        rows = [noise(shape, dtype) for noise in self._noises]
        return torch.stack(rows).to(device) if rows else ()

    def everything(self) -> Rec:
        """All data of every client (C, M, B, ...), in M chunks of its batch size, padded."""
        size = max(self.index.shape[2], 1)
        batch, clients = self.fed.local.batch, self.fed.data.clients
        indices = [clients.of(i) for i in self.group]
        sizes = [tuple(len(c) for c in torch.split(o, batch or len(o))) for o in indices]
        M = max(map(len, sizes))
        index, weight = _tables(indices, sizes, size)
        real = torch.tensor([[float(m < len(s)) for m in range(M)] for s in sizes])
        seeds = [key(self.fed.seed, "full", self.round, i) for i in self.group]
        like = self._like
        inputs, targets = self._data(index.to(like.device))
        return rec(
            inputs=inputs,
            targets=targets,
            weight=(weight * real[:, :, None]).to(like),
            seed=substreams(seeds, M).to(like.device),
        )

    def _data(self, index: Tensor, draws: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Inputs and targets by index (C, ...), with these leading axes, augmented with draws."""
        data = self.fed.data
        inputs, targets = rows_of((data.inputs, data.targets), index.reshape(-1))
        inputs = data.ready(inputs, None if draws is None else draws.flatten(0, 1))
        axes = index.shape
        return inputs.view(*axes, *inputs.shape[1:]), targets.view(*axes, *targets.shape[1:])

    def _draws(self, k: int, size: int) -> Tensor | None:
        """Random numbers to augment all clients' k-th batches, (C, B, ...)."""
        rows: list[Tensor] = []
        for r, i in enumerate(self.group):
            if self.fed.data.transform is None:
                return None
            sizes = self._sizes[r]
            count = sizes[min(k, len(sizes) - 1)]  # a short list is padded with its last batch
            draws = self.fed.draws(i, self.round, k, max(count, 1))
            if draws is None:
                return None
            rows.append(draws[torch.arange(size).clamp_max(max(count, 1) - 1)])
        return torch.stack(rows)


def _tables(
    orders: Sequence[Tensor], sizes: Sequence[tuple[int, ...]], width: int = 0
) -> tuple[Tensor, Tensor]:
    """Indices per client, in batches of these sizes -> indices and weights (C, K, B).

    A short batch is padded with its last index, a short list of batches with its last batch.
    Padding has weight 0.
    """
    K, B = max(map(len, sizes)), max(width, max(map(max, sizes)))
    if len(set(sizes)) == 1:
        slots, weight = _slots(sizes[0], K, B)
        index = torch.stack(list(orders))[:, slots]
        return index, weight.expand(len(orders), K, B)
    both = [_slots(s, K, B) for s in sizes]
    index = torch.stack([o.take(slots) for o, (slots, _) in zip(orders, both, strict=True)])
    return index, torch.stack([weight for _, weight in both])


def _poisson_tables(
    batches: Sequence[Sequence[Tensor]], expected: Sequence[int], fill: int
) -> tuple[Tensor, Tensor]:
    """_tables() of Poisson batches, whose examples weigh 1 / the expected size. Padding has the
    index `fill`.
    """
    K = max(map(len, batches))
    largest = max(len(batch) for client_batches in batches for batch in client_batches)
    B = 8 * (largest // 8 + 1)  # so that few shapes occur
    index, weight = torch.full((len(batches), K, B), fill), torch.zeros(len(batches), K, B).double()
    for r, client_batches in enumerate(batches):
        for k, batch in enumerate(client_batches):
            index[r, k, : len(batch)] = batch
            weight[r, k, : len(batch)] = 1 / expected[r]
    return index, weight


@functools.lru_cache(maxsize=4096)
def _slots(sizes: tuple[int, ...], K: int, B: int) -> tuple[Tensor, Tensor]:
    """Where in a client's order the entries of its table (K, B) come from, and their weights."""
    firsts = torch.tensor([0, *itertools.accumulate(sizes)])[:-1]
    counts = torch.tensor(sizes)
    fill = torch.arange(K).clamp_max(len(sizes) - 1)
    row = torch.arange(B)
    slots = firsts[fill, None] + torch.minimum(row, counts[fill, None] - 1)
    return slots, (row < counts[fill, None]).double()
