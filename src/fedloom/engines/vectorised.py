"""The engines of many clients at once, with a leading axis of clients: vectorised, one computation
under vmap, and streams, row by row. Clients with fewer steps are masked, short batches padded with
weight 0.
"""

from __future__ import annotations

import time

import torch

from ..core.net import Net
from ..federation.federation import Federation
from ..plan import Plan
from .base import keep_memory, processors
from .ranges import LARGEST, Clients, default_chunk
from .recorded import Recorded, Threads
from .serial import InProcess
from .vmap_refusals import MANY, refuse_model


class Vectorised(InProcess):
    """Runs clients in chunks, each as one vmapped computation. chunk None: as many as fit into a
    gigabyte, at most 100; an experiment gives the number (see auto.py).
    """

    name = "vectorised"
    by_row = False
    largest = LARGEST  # clients at once, without a number

    def __init__(self, chunk: int | None = None, after: int | None = None) -> None:
        """after: steps of a shape before one is recorded, see recorded.py."""
        self.chunk, self._setting, self._after = chunk or 1, chunk, after

    @property
    def text(self) -> str:
        """The engine as a configuration writes it."""
        return self.name if self._setting is None else f"{self.name}:{self._setting}"

    def open(self, plan: Plan, fed: Federation, net: Net) -> None:
        """Prepare the run. Raises CompositionError for a model that cannot be computed so."""
        refuse_model(plan, fed, net, MANY[self.name])
        keep_memory()
        net.onednn = False
        self.chunk = self._setting or default_chunk(plan, fed, net, self.largest)
        threads = None
        # a count of calls would count the steps that are computed twice, to compare them
        if net.device.type == "cpu" and all(b.is_floating_point() for b in net.module.buffers()):
            threads = Threads(min(torch.get_num_threads(), processors()))
        on_cuda = net.device.type == "cuda"
        clock = time.perf_counter if on_cuda else time.process_time
        self.recorded = Recorded(threads, self._after, clock, exact=not on_cuda)
        self._clients = Clients(plan, fed, net, self.chunk, None, self.recorded, self.by_row)


class Streams(Vectorised):
    """Runs clients in chunks, whose steps CUDA computes side by side, each in a stream of its own:
    one launch for a step of all of them, once it is recorded. Elsewhere one after another.
    """

    name = "streams"
    by_row = True
    largest = 16
