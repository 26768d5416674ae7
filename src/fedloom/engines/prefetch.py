"""Fetching of batches while the step before them is computed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

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
            found = rows_of(sources, index)
            return lambda: found
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
