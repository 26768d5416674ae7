"""Heartbeats: a worker counts while it computes, and the process that started it reads the count.

A worker beats at every client, gradient and batch of an evaluation. The count is a number in shared
memory, and a beat costs a tenth of a microsecond. A worker without a beat for too long was stopped
or swapped out, or waits for something that never comes.
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
SHARE = 0.01  # share of a processor above which a worker counts as computing
TICK = 0.5  # seconds between two writes of the processor time

_FORMAT = "QQQ"  # beats, task (0: none), milliseconds of processor time
_NAME = "pulse"

# ---------------------------------------------------------------------------------- in the worker
_words: Any = [0, 0, 0]  # this process is no worker


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


def tick() -> None:
    """Write how much processor time this process has used."""
    _words[2] = int(1000 * time.process_time())


# ---------------------------------------------------------------------------------- in the parent
class Hung(NamedTuple):
    """A worker that hangs: its process, its task, and the seconds of silence. worker None: tasks
    wait and no worker begins one.
    """

    worker: int | None
    task: int
    seconds: float


@dataclass
class _LastBeat:
    beats: int
    task: int
    spent: float  # processor seconds when the silence began
    silence: float  # seconds


class Heartbeats:
    """Watches the workers whose heartbeats are in a folder."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder, self.workers = folder, workers
        self.slowest = 0.0  # seconds between two beats, the longest that ended
        self.begin()

    def begin(self, anew: bool = False) -> None:
        """Tasks are handed out now. anew: to new processes."""
        self._last_beats: dict[int, _LastBeat] = {}
        self._idle, self._last = 0.0, time.monotonic()
        for path in self.folder.glob(f"{_NAME}.*") if anew else ():
            path.unlink(missing_ok=True)

    def look(self) -> Hung | None:
        """A worker that hangs, or None. Called while the process waits for tasks."""
        now = time.monotonic()
        # if this process was stopped (Ctrl-Z), the workers were not silent
        passed, self._last = min(now - self._last, 2 * POLL), now
        alive, busy, hung = False, False, None
        for worker, (beats, task, milliseconds) in self._pulses().items():
            spent, last = milliseconds / 1000, self._last_beats.get(worker)
            if last is None or last.beats != beats:
                if last is not None and last.task:
                    self.slowest = max(self.slowest, last.silence + passed)
                self._last_beats[worker] = last = _LastBeat(beats, task, spent, 0.0)
                alive = True
            else:
                last.silence += passed
                if last.silence <= 2 * TICK:  # until then it may not have written it
                    last.spent = spent
            busy = busy or task > 0
            if task and last.silence > self.limit(spent - last.spent > SHARE * last.silence):
                hung = Hung(worker, task, last.silence)
        self._idle = 0.0 if alive or busy else self._idle + passed
        if self._idle > self.limit(len(self._last_beats) < self.workers):  # some are still starting
            return Hung(None, 0, self._idle)
        return hung

    def ready(self) -> bool:
        """True if every worker has loaded the run: it beats once then."""
        return sum(beats > 0 for beats, _, _ in self._pulses().values()) >= self.workers

    def limit(self, longer: bool) -> float:
        """How many seconds of silence are allowed."""
        seconds = max(SILENCE, TIMES * self.slowest)
        return COMPUTING * seconds if longer else seconds

    def _pulses(self) -> dict[int, tuple[int, int, int]]:
        """{process: beats, task, milliseconds}."""
        pulses: dict[int, tuple[int, int, int]] = {}
        for path in self.folder.glob(f"{_NAME}.*"):
            raw = path.read_bytes()
            if len(raw) == struct.calcsize(_FORMAT):  # else it is being made
                beats, task, spent = struct.unpack(_FORMAT, raw)
                pulses[int(path.suffix[1:])] = beats, task, spent
        return pulses


def short_list(clients: list[int]) -> str:
    """The numbers of some clients as text, at most five of them.

    >>> short_list([4]), short_list(list(range(9)))
    ('client 4', 'clients 0, 1, 2, 3, 4 and 4 more')
    """
    some, more = ", ".join(map(str, clients[:5])), len(clients) - 5
    return f"client{'s' * (len(clients) > 1)} {some}" + (f" and {more} more" if more > 0 else "")
