"""Signs of life: a worker counts as it computes, and the process that started it reads the count.

A worker beats at every client, gradient and batch of an evaluation; that is a number in shared
memory, and costs a tenth of a microsecond. One that has not beaten for too long has been stopped,
swapped out, or waits for what never comes.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

POLL = 1.0  # seconds between two looks at the workers
SILENCE = 60.0  # seconds without a beat that are always allowed,
TIMES = 20  # and so many times the longest time between two beats that was seen
COMPUTING = 10  # so many times longer for a worker that computes: a first step can be very long
SHARE = 0.01  # of a processor, from which on a worker is taken to compute
TICK = 0.5  # seconds after which a worker writes anew what it has spent

_FORMAT = "QQQ"  # beats, task (0: none), milliseconds of processor that were spent
_NAME = "pulse"

# ---------------------------------------------------------------------------------- in the worker
_words: Any = [0, 0, 0]  # who is no worker counts for nobody


def begin(folder: Path) -> None:
    """Let this process's signs of life be seen in a folder of shared memory."""
    global _words
    path = folder / f"{_NAME}.{os.getpid()}"
    path.write_bytes(bytes(struct.calcsize(_FORMAT)))
    with open(path, "r+b") as file:
        _words = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")


def beat() -> None:
    """Show that this process goes on."""
    _words[0] += 1


def take(task: int) -> None:
    """Show which task this process has taken up, 0 when it is done."""
    _words[1] = task
    beat()


def tick() -> None:
    """Show how much of a processor this process has had."""
    _words[2] = int(1000 * time.process_time())


# ---------------------------------------------------------------------------------- in the parent
class Still(NamedTuple):
    """A worker that stands still: its process, its task, and for how many seconds. worker None:
    tasks are waiting, and nobody takes one up.
    """

    worker: int | None
    task: int
    seconds: float


@dataclass
class _Seen:
    beats: int
    task: int
    spent: float  # seconds of processor when the silence began
    silence: float  # seconds


class Watch:
    """Looks after workers who show their signs of life in a folder."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder, self.workers = folder, workers
        self.slowest = 0.0  # seconds between two beats, the longest that ended
        self.begin()

    def begin(self, anew: bool = False) -> None:
        """Tasks are handed out now; anew: to new processes."""
        self._seen: dict[int, _Seen] = {}
        self._idle, self._last = 0.0, time.monotonic()
        for path in self.folder.glob(f"{_NAME}.*") if anew else ():
            path.unlink(missing_ok=True)

    def look(self) -> Still | None:
        """A worker that stands still, if there is one. Called while tasks are waited for."""
        now = time.monotonic()
        # a stop of this process (Ctrl-Z) is no worker's silence
        passed, self._last = min(now - self._last, 2 * POLL), now
        moved, busy, still = False, False, None
        for worker, (beats, task, milliseconds) in self._pulses().items():
            spent, seen = milliseconds / 1000, self._seen.get(worker)
            if seen is None or seen.beats != beats:
                if seen is not None and seen.task:
                    self.slowest = max(self.slowest, seen.silence + passed)
                self._seen[worker] = seen = _Seen(beats, task, spent, 0.0)
                moved = True
            else:
                seen.silence += passed
                if seen.silence <= 2 * TICK:  # until then it may not have written it
                    seen.spent = spent
            busy = busy or task > 0
            if task and seen.silence > self.limit(spent - seen.spent > SHARE * seen.silence):
                still = Still(worker, task, seen.silence)
        self._idle = 0.0 if moved or busy else self._idle + passed
        if self._idle > self.limit(len(self._seen) < self.workers):  # some are still starting
            return Still(None, 0, self._idle)
        return still

    def limit(self, longer: bool) -> float:
        """How many seconds of silence are allowed."""
        seconds = max(SILENCE, TIMES * self.slowest)
        return COMPUTING * seconds if longer else seconds

    def _pulses(self) -> dict[int, tuple[int, int, int]]:
        """{process: beats, task, milliseconds}."""
        found: dict[int, tuple[int, int, int]] = {}
        for path in self.folder.glob(f"{_NAME}.*"):
            raw = path.read_bytes()
            if len(raw) == struct.calcsize(_FORMAT):  # else it is being made
                beats, task, spent = struct.unpack(_FORMAT, raw)
                found[int(path.suffix[1:])] = beats, task, spent
        return found


def listed(clients: list[int]) -> str:
    """Clients by their numbers, at most five of them.

    >>> listed([4]), listed(list(range(9)))
    ('client 4', 'clients 0, 1, 2, 3, 4 and 4 more')
    """
    some, more = ", ".join(map(str, clients[:5])), len(clients) - 5
    return f"client{'s' * (len(clients) > 1)} {some}" + (f" and {more} more" if more > 0 else "")
