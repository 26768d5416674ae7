"""The batches of some clients side by side, padded to equal numbers and sizes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from ..core.rng import key, substreams
from ..core.vector import Rec, Vec, rec
from ..federation.federation import Federation

Rows = Callable[[], tuple[Tensor, ...]]  # waits if necessary


def rows_of(sources: tuple[Tensor, ...], index: Tensor) -> tuple[Tensor, ...]:
    """Rows (n, ...) of some tensors, all on one device, by index (n,), which may be on the CPU."""
    index = index.to(sources[0].device)
    # copies whole rows: twice as fast as indexing
    return tuple(v.index_select(0, index) for v in sources)


class Prefetcher:
    """Copies rows in a thread of its own. A cohort's batches are scattered over the data, so a copy
    mostly waits for the memory.
    """

    def __init__(self) -> None:
        # a copy shared by threads would wait for the slowest one
        self._pool = ThreadPoolExecutor(1, "fedloom-batches", torch.set_num_threads, (1,))

    def rows(self, sources: tuple[Tensor, ...], index: Tensor) -> Rows:
        """Begin rows_of() -> a function that waits for the result. On a GPU it is done at once."""
        if sources[0].device.type != "cpu":
            copied = rows_of(sources, index)
            return lambda: copied
        # memory of this thread: the C library keeps little of what another one frees
        out = tuple(v.new_empty((len(index), *v.shape[1:])) for v in sources)

        def copy() -> tuple[Tensor, ...]:
            for v, rows in zip(sources, out, strict=True):
                torch.index_select(v, 0, index, out=rows)
            return out

        return self._pool.submit(copy).result

    def close(self) -> None:
        """Let the thread end."""
        self._pool.shutdown(wait=False)


class Batches:
    """The batches of C clients in a round: K steps of B examples. like: a vector of the model's
    type and device. whole: the loss is of a whole batch and is never padded, so that all clients'
    k-th batches have one size. ahead: fetches the samples of the next step while this one is
    computed. steps_done: each client's steps before this round, see Federation.order.
    """

    def __init__(
        self,
        fed: Federation,
        group: Sequence[int],
        round: int,
        like: Vec,
        whole: bool,
        ahead: Prefetcher | None,
        steps_done: Sequence[int],
    ) -> None:
        self.fed, self.group, self.round, self.whole, self.ahead = fed, group, round, whole, ahead
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
        self._first: Rows | None = self._fetched(0)

    def __len__(self) -> int:
        return self.index.shape[1]

    def __iter__(self) -> Iterator[tuple[tuple[Tensor, Tensor], Tensor]]:
        """Inputs and targets (C, B, ...), and the weights (C, B) of their examples, one step at a
        time: the batches of all steps are never in memory together.
        """
        rows, self._first = self._first or self._fetched(0), None
        for k in range(len(self)):
            size, now = self._size(k), rows
            rows = self._fetched(k + 1)
            data = self._data(now(), (len(self.group), size), self._draws(k, size))
            yield data, self.weight[:, k, :size]

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
        like, index = self._like, index.to(self._like.device)
        inputs, targets = self._data(self._rows(index), index.shape)
        return rec(
            inputs=inputs,
            targets=targets,
            weight=(weight * real[:, :, None]).to(like),
            seed=substreams(seeds, M).to(like.device),
        )

    def _size(self, k: int) -> int:
        """B of a step."""
        return self._sizes[0][k] if self.whole else self.index.shape[2]

    def _fetched(self, k: int) -> Rows:
        """The stored samples of all clients' k-th batches, fetched in advance if possible."""
        if k == len(self):
            return tuple
        index = self.index[:, k, : self._size(k)]
        if self.ahead is None:
            return lambda: self._rows(index)
        return self.ahead.rows(*self._sources(index))

    def _sources(self, index: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        data = self.fed.data
        return (data.inputs, data.targets), index.reshape(-1)

    def _rows(self, index: Tensor) -> tuple[Tensor, ...]:
        """Stored inputs and targets by index (C, ...), in a row."""
        return rows_of(*self._sources(index))

    def _data(
        self, rows: tuple[Tensor, ...], axes: tuple[int, ...], draws: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Stored samples -> inputs and targets with these leading axes, augmented with draws"""
        inputs = self.fed.data.ready(rows[0], None if draws is None else draws.flatten(0, 1))
        targets = rows[1]
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
