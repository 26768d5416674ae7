"""Several pieces of work at once: processes that take one piece after the other, and say how far
they are.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar, cast

from ..core.interrupts import stoppable
from ..errors import FedloomError

Say = Callable[[Any], None]  # what a piece of work says before it is done
Work = Callable[[Any, Say], Any]
P = TypeVar("P")
_PATIENCE = 60.0  # seconds that a stopped process has to save its state


class Jobs:
    """Does pieces of work in `count` processes, each on its share of the processors; of one, in
    this process.

    work: called in a process as work(piece, say); it is sent there once, and keeps what it keeps
    from piece to piece. It must be a module's function or an object of a module's class. SIGINT of
    a terminal is left to this process, which stops the others with SIGTERM.
    """

    def __init__(self, work: Work, count: int) -> None:
        self._work, self._count = work, count
        self._running: dict[Connection, tuple[Any, Any]] = {}  # its process, and its piece

    def run(
        self, pieces: Sequence[P], begin: Callable[[P], None], on_message: Callable[[P, Any], None]
    ) -> Iterator[tuple[P, Any]]:
        """Yield (piece, its result) as they end. begin(piece) and on_message(piece, text) are
        called here. Raises what a piece raised, or what is raised here, after all others have been
        stopped; and FedloomError for a process that was killed.
        """
        count = min(self._count, len(pieces))
        if count < 2:
            for piece in pieces:
                begin(piece)
                yield piece, self._work(piece, functools.partial(on_message, piece))
            return
        left = list(pieces)[::-1]
        with stoppable():
            try:
                for number in range(count):
                    self._start(number, count)
                for pipe in list(self._running):
                    self._next(pipe, left, begin)
                while self._running:
                    for pipe in cast("list[Connection]", wait(list(self._running))):
                        result = self._read(pipe, on_message)
                        if result is not None:
                            yield result
                            self._next(pipe, left, begin)
            finally:
                self._stop()

    def _start(self, number: int, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        near_end, far_end = context.Pipe()
        process = context.Process(
            target=_serve, args=(far_end, self._work, number, count), daemon=False
        )
        process.start()
        far_end.close()
        self._running[near_end] = (process, None)

    def _next(self, pipe: Any, left: list[P], begin: Callable[[P], None]) -> None:
        """Give a process its next piece, or let it end."""
        process, _ = self._running[pipe]
        if not left:
            with suppress(OSError):
                pipe.send(None)
            process.join(_PATIENCE)
            pipe.close()
            del self._running[pipe]
            return
        piece = left.pop()
        self._running[pipe] = (process, piece)
        begin(piece)
        pipe.send(piece)

    def _read(self, pipe: Any, on_message: Callable[[P, Any], None]) -> tuple[P, Any] | None:
        """What a process says: the result of its piece, or None before that."""
        process, piece = self._running[pipe]
        try:
            kind, value = pipe.recv()
        except (EOFError, OSError):
            process.join(_PATIENCE)
            raise FedloomError(
                f"a process that ran a job ended (exit code {process.exitcode}), perhaps for want "
                "of memory; take fewer at once, and run the same command again to "
                "resume"
            ) from None
        if kind == "said":
            on_message(piece, value)
            return None
        if kind == "raised":
            raise value
        return piece, value

    def _stop(self) -> None:
        """End all processes; each saves what it runs."""
        for process, _ in self._running.values():
            if process.is_alive():
                process.terminate()
        for pipe, (process, _) in self._running.items():
            pipe.close()
            process.join(_PATIENCE)
            if process.is_alive():
                process.kill()
        self._running.clear()


def _serve(pipe: Connection, work: Work, number: int, count: int) -> None:
    """What a process does: pieces of work until there are none."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops everybody
    _take_share(number, count)
    with suppress(EOFError, OSError, KeyboardInterrupt):  # the parent is gone, or stops this
        while (piece := pipe.recv()) is not None:
            try:
                result = work(piece, lambda value: pipe.send(("said", value)))
            except (FedloomError, OSError) as error:
                pipe.send(("raised", error))
                continue
            pipe.send(("done", result))


def _take_share(number: int, count: int) -> None:
    """Use this process's share of the processors, at least one: so an engine that starts processes
    of its own starts no more than that.
    """
    count_each = 1
    if hasattr(os, "sched_setaffinity"):
        processors = sorted(os.sched_getaffinity(0))
        count_each = max(1, len(processors) // count)
        first = number * count_each % len(processors)
        os.sched_setaffinity(0, processors[first : first + count_each])
    if torch := sys.modules.get("torch"):  # the work may need none
        torch.set_num_threads(count_each)
