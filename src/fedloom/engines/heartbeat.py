"""Heartbeats: a worker counts, in shared memory, at every client, gradient and batch of an
evaluation. One without a beat for too long was stopped, or waits for what never comes.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path
from typing import Any, NamedTuple

POLL = 1.0  # seconds between two looks at the workers
SILENCE = 600.0  # seconds without a beat that are always allowed: a first step can be very long
TIMES = 20  # and so many times the longest time between two beats that was seen

_FORMAT = "QQ"  # beats, task (0: none)
_NAME = "pulse"

# ---------------------------------------------------------------------------------- in the worker
_words: Any = [0, 0]  # this process is no worker


def begin(folder: Path) -> None:
    """Write this process's heartbeats to a folder of shared memory from now on."""
    global _words
    path = folder / f"{_NAME}.{os.getpid()}"
    path.write_bytes(bytes(struct.calcsize(_FORMAT)))
    with open(path, "r+b") as file:
        _words = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")


def beat() -> None:
    """Count one heartbeat of this process."""
    _words[0] += 1


def take(task: int) -> None:
    """Write which task this process has begun; 0: none."""
    _words[1] = task
    beat()


# ---------------------------------------------------------------------------------- in the parent
class Hung(NamedTuple):
    """A process, its task, seconds of silence. worker None: tasks wait and none begins one."""

    worker: int | None
    task: int
    seconds: float


class Heartbeats:
    """Watches the workers whose heartbeats are in a folder."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder, self.workers = folder, workers
        self.slowest = 0.0  # seconds between two beats, the longest that ended
        self.begin()

    def begin(self, anew: bool = False) -> None:
        """Tasks are handed out now. anew: to new processes."""
        self._last: dict[int, tuple[int, float]] = {}  # beats of a worker, seconds without another
        self._idle, self._looked = 0.0, time.monotonic()
        for path in self.folder.glob(f"{_NAME}.*") if anew else ():
            path.unlink(missing_ok=True)

    def look(self) -> Hung | None:
        """A worker that hangs, or None. Called while the process waits for tasks."""
        now = time.monotonic()
        # if this process was stopped (Ctrl-Z), the workers were not silent
        passed, self._looked = min(now - self._looked, 2 * POLL), now
        idle, hung = True, None
        for worker, (beats, task) in self._pulses().items():
            last_beats, silence = self._last.get(worker, (beats, 0.0))
            if beats != last_beats and task:
                self.slowest = max(self.slowest, silence + passed)
            new = beats != last_beats or worker not in self._last
            self._last[worker] = beats, 0.0 if new else silence + passed
            idle = idle and not (new or task)
            if task and self._last[worker][1] > self.limit():
                hung = Hung(worker, task, self._last[worker][1])
        self._idle = self._idle + passed if idle else 0.0
        return Hung(None, 0, self._idle) if self._idle > self.limit() else hung

    def ready(self) -> bool:
        """True if every worker has loaded the run: it beats once then."""
        return sum(beats > 0 for beats, _ in self._pulses().values()) >= self.workers

    def limit(self) -> float:
        """How many seconds of silence are allowed."""
        return max(SILENCE, TIMES * self.slowest)

    def _pulses(self) -> dict[int, tuple[int, int]]:
        """{process: beats, task}."""
        pulses: dict[int, tuple[int, int]] = {}
        for path in self.folder.glob(f"{_NAME}.*"):
            raw = path.read_bytes()
            if len(raw) == struct.calcsize(_FORMAT):  # else it is being made
                beats, task = struct.unpack(_FORMAT, raw)
                pulses[int(path.suffix[1:])] = beats, task
        return pulses


def short_list(clients: list[int]) -> str:
    """The numbers of some clients as text, at most five of them.

    >>> short_list([4]), short_list(list(range(9)))
    ('client 4', 'clients 0, 1, 2, 3, 4 and 4 more')
    """
    some, more = ", ".join(map(str, clients[:5])), len(clients) - 5
    return f"client{'s' * (len(clients) > 1)} {some}" + (f" and {more} more" if more > 0 else "")
