"""The interface of engines, and settings of the process that all of them need."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import torch

from ..core.net import Net
from ..core.vector import Vec
from ..errors import FedloomError
from ..federation.federation import Federation
from ..plan import Plan
from .client_results import ClientCost, RangeResult, Request, TrainTask
from .scores import Score


@runtime_checkable
class Engine(Protocol):
    """Runs the clients of a round, and evaluates. Same configuration and seed, same bits."""

    name: str

    @property
    def text(self) -> str:
        """The engine as a configuration writes it: its name with its numbers."""

    def open(self, plan: Plan, fed: Federation, net: Net) -> None:
        """Prepare the run; called once."""

    def map(self, request: Request, task: TrainTask) -> RangeResult:
        """Ask a task's clients for something, or evaluate its batches."""

    def close(self) -> None:
        """Release processes and shared memory. It may be called twice."""


class TooFewError(FedloomError, RuntimeError):
    """Too few clients of a cohort answered, so that the round is to be done again with another
    draw; or without again, that no update counts in it. lost: what asking cost without an update;
    received: {client: cost} of updates that the engine has, for which a client is not asked again
    in this round. fewest: how many updates the aggregation needs, if that is why.
    """

    def __init__(
        self,
        message: str,
        lost: list[ClientCost],
        received: dict[int, ClientCost],
        again: bool = True,
        fewest: int | None = None,
    ) -> None:
        super().__init__(message)
        self.lost, self.received, self.again, self.fewest = lost, received, again, fewest


@runtime_checkable
class Remote(Protocol):
    """An engine whose clients decode what is compressed on the downlink themselves."""

    def announced(self, packet: Mapping[str, bytes], round: int) -> None:
        """Hear the compressed fields of a round's broadcast, before its exchanges."""

    def measured(self, x: Vec, buffers: Vec, round: int) -> dict[int, Score]:
        """{client: the score of a model on the tests that it has}; {} if the server measures."""


def processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


SHARED_FROM = 10**7  # values of a vector from which on several threads gain more than they wait


@contextmanager
def one_thread_below(values: int) -> Iterator[None]:
    """Use one torch thread inside for vectors of fewer values than SHARED_FROM: torch shares an
    operation from 32,768 values on, and then waits for the busiest of its processors.
    """
    threads = torch.get_num_threads()
    if values < SHARED_FROM:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def one_thread(precision: str = "full") -> Iterator[None]:
    """Use one torch thread inside, CUDA's products in this precision (see Local), and leave torch's
    own generator as it was.

    More threads cut sums differently, which gives other bits. On a busy machine they are also
    slower.
    """
    threads, cuda = torch.get_num_threads(), _allow_tf32()
    torch.set_num_threads(1)
    _allow_tf32(precision == "tf32", precision == "tf32")
    try:
        # a run on the CPU must not initialise a GPU
        used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch's is not
        with torch.random.fork_rng(devices=range(torch.cuda.device_count() if used else 0)):
            yield
    finally:
        torch.set_num_threads(threads)
        _allow_tf32(*cuda)


def _allow_tf32(*settings: bool) -> tuple[bool, bool]:
    """Set whether CUDA's products and convolutions may round to TF32 -> what it was."""
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    if settings:
        products.allow_tf32, convolutions.allow_tf32 = settings
    return before


@functools.cache
def keep_memory() -> None:
    """Ask the C library to keep freed memory for the next vector instead of returning it to the
    system.

    Otherwise every vector above 128 KiB is mapped again and costs a page fault per 4 KiB. Vectors
    above 64 MiB are: the gaps between those that are kept cost four to eight more of them.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            trim_threshold, mmap_threshold = -1, -3
            libc.mallopt(mmap_threshold, 1 << 26)
            libc.mallopt(trim_threshold, 1 << 30)
