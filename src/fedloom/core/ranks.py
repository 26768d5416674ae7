"""The processes of one run under torchrun. Each has a rank and runs the same code; here is what
they tell each other.

A failure at one rank is an answer like any other: all ranks raise the same error at the same place,
and nobody waits for a rank that has given up.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import pickle
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from ..errors import ConfigError, WorkerError
from .interrupts import heeding, undisturbed

T = TypeVar("T")
_STOPS = (Exception, KeyboardInterrupt, SystemExit)
_CURE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"


class Group:
    """All ranks of a run; this one is for a run in one process, where nobody else is asked.

    local, locals: the number of this rank on its machine, and how many ranks are there. wire: where
    vectors must be to be exchanged.
    """

    rank, size, local, locals = 0, 1, 0, 1
    wire = torch.device("cpu")
    hosts: Sequence[str] = (platform.node(),)  # by rank

    def gather(self, value: T, error: BaseException | None = None) -> list[T]:
        """What every rank gives, by rank. Raises the error of the lowest rank that has one."""
        if error is not None:
            raise error
        return [value]

    def first(self, do: Callable[[], T]) -> T:
        """Do this at rank 0 alone -> its result, or its error, at every rank."""
        return do()

    def attempt(self, do: Callable[[], T]) -> tuple[T | None, BaseException | None]:
        """Do this here -> its result, and its error for gather(). A signal to stop is one too."""
        return do(), None

    def together(self) -> AbstractContextManager[None]:
        """Inside, signals wait for an attempt(), so that no rank stops alone."""
        return contextlib.nullcontext()

    def exchange(self, give: Sequence[Tensor], take: Sequence[int] | None = None) -> list[Tensor]:
        """Give each rank bytes, (n,) uint8 -> what each gives here. take: how many, if known."""
        return list(give)


ALONE = Group()


class Ranks(Group):
    """The ranks that torchrun started. timeout: seconds that one waits for the others."""

    def __init__(self, timeout: float) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.local = int(os.environ.get("LOCAL_RANK", self.rank))
        self.locals = int(os.environ.get("LOCAL_WORLD_SIZE", self.size))
        if "nccl" in str(dist.get_backend_config()):
            self.wire = torch.device("cuda", self.local)
        self._timeout = timeout
        self._lost: WorkerError | None = None
        self.hosts = self.gather(platform.node())

    def gather(self, value: T, error: BaseException | None = None) -> list[T]:
        heads: list[Any] = [None] * self.size
        with self._reaching():
            dist.all_gather_object(heads, (_portable(error), value))
        for rank, (failure, _) in enumerate(heads):
            if failure is not None:  # the own one has a traceback
                raise failure if error is None or rank != self.rank else error
        return [answer for _, answer in heads]

    def first(self, do: Callable[[], T]) -> T:
        value: Any = None
        error: BaseException | None = None
        if self.rank == 0:
            try:
                value = do()
            except _STOPS as raised:
                error = raised
        answers: list[Any] = [(_portable(error), value)]
        with self._reaching():
            dist.broadcast_object_list(answers, 0)
        failure, theirs = answers[0]
        if failure is not None:
            raise failure if error is None else error
        return cast(T, value if self.rank == 0 else theirs)

    def attempt(self, do: Callable[[], T]) -> tuple[T | None, BaseException | None]:
        try:
            with heeding():
                value = do()
        except _STOPS as error:
            return None, error
        return value, None

    def together(self) -> AbstractContextManager[None]:
        return undisturbed()

    def exchange(self, give: Sequence[Tensor], take: Sequence[int] | None = None) -> list[Tensor]:
        sizes = [len(g) for g in give]
        with self._reaching():
            if take is None:
                theirs = torch.empty(self.size, dtype=torch.int64, device=self.wire)
                dist.all_to_all_single(theirs, torch.tensor(sizes, device=self.wire))
                take = theirs.tolist()
            received = torch.empty(sum(take), dtype=torch.uint8, device=self.wire)
            dist.all_to_all_single(received, torch.cat(list(give)).to(self.wire), [*take], sizes)
        return list(torch.split(received, [*take]))

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Turn torch's error about a rank that is gone into ours; nothing is tried after it."""
        if self._lost is not None:
            raise self._lost
        try:
            yield
        except RuntimeError as error:
            self._lost = WorkerError(
                "a rank has ended without a word, or has not answered for ranks.timeout = "
                f"{self._timeout:g} s; the same torchrun command with --resume-if-begun goes on "
                "from the last checkpoint, with --max-restarts 3 it does so by itself"
            )
            raise self._lost from error


_GROUPS: list[Group] = []


def launched() -> bool:
    """True if torchrun, or whoever sets its variables, started several of this process."""
    size = os.environ.get("WORLD_SIZE", "1")
    return "RANK" in os.environ and size.isdecimal() and int(size) > 1


def join(timeout: float) -> Group:
    """All ranks, once they have met; ALONE if nobody started several. The first call decides how
    many seconds one waits for the others. Raises ConfigError if they do not meet.
    """
    if not launched():
        return ALONE
    if not _GROUPS:
        if not dist.is_initialized():
            _meet(timeout)
        _GROUPS.append(Ranks(timeout))
    return _GROUPS[0]


def _meet(timeout: float) -> None:
    wait = timedelta(seconds=timeout)
    # a GPU cannot be shared by ranks of nccl
    gpus_suffice = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    try:
        store, rank, size = _rendezvous(wait)
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and gpus_suffice else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=wait)
    except (RuntimeError, ValueError) as error:
        raise ConfigError(_why(str(error), timeout)) from error
    atexit.register(_leave)


def _leave() -> None:
    """Let go of all ranks while Python still runs: later, torch's threads would wait for it."""
    dist.destroy_process_group()
    _GROUPS.clear()
    gc.collect()  # of an error that holds a group, too


def _rendezvous(wait: timedelta) -> tuple[Any, int, int]:
    """Torch's store of what ranks tell each other by name, this rank, and how many there are."""
    store, rank, size = next(iter(rendezvous("env://", timeout=wait)))
    if os.environ.get("LOCAL_WORLD_SIZE") == str(size):
        # torchrun gives a restart the same store, with the addresses of ranks that ended; only on
        # one machine all ranks know the same number of restarts
        store = PrefixStore(f"fedloom/{_restarts()}", store)
    return store, rank, size


def _restarts() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def _why(message: str, timeout: float) -> str:
    """What torch's error about a meeting means, and what to do."""
    place = f"{os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', '')}"
    if "EADDRINUSE" in message or "already in use" in message:
        return (
            f"the ranks cannot meet at {place} (MASTER_ADDR, MASTER_PORT): the port is in use; "
            "give another, torchrun --rdzv-endpoint HOST:PORT, or --standalone on one machine"
        )
    if _restarts() and ("connectFullMesh" in message or "onnection refused" in message):
        return (
            "the ranks cannot meet after a restart, because torch still has the addresses of those "
            f"that ended: set {_CURE} where torchrun is started, and give the same command again"
        )
    reason = message.splitlines()[0][:200] if message else "no reason given"
    return (
        f"the ranks cannot meet at {place} (MASTER_ADDR, MASTER_PORT) within ranks.timeout = "
        f"{timeout:g} s ({reason}); is torchrun "
        "started on every machine, with the same endpoint, and can the machines reach each other?"
    )


def _portable(error: BaseException | None) -> BaseException | None:
    """The error in a form that another process can read."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # a user's own may hold anything
        return WorkerError(f"{type(error).__name__}: {error}")
    return error
