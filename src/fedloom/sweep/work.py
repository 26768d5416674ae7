"""Many runs, one after the other or several at once, each in a process that keeps its data."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from ..core.interrupts import stoppable
from ..core.jobs import Jobs, Say, Work
from .grid import KeptData, Trial, run_trial


class Shown(Protocol):
    """A run as progress shows it."""

    @property
    def title(self) -> str:
        """What it is."""

    @property
    def rounds(self) -> int:
        """How many rounds it has in all."""


class Watch(Protocol):
    """What wants to know how far many runs are. It may raise TimeUpError."""

    def add(self, runs: Sequence[Shown]) -> None:
        """More runs are to come."""

    def begin(self, run: Shown) -> None:
        """A run begins, or goes on."""

    def row(self, run: Shown, row: Mapping[str, Any]) -> None:
        """A round is done."""

    def end(self, run: Shown, state: str) -> None:
        """A run is over: "finished", "failed" or "refused"."""


class RunTrials:
    """Runs a trial, goes on with it, or skips it if it is over -> its state. warn: whether to say
    what a run warns of; it is in its summary.json in any case.
    """

    def __init__(self, warn: bool = True) -> None:
        self._kept, self._warn = KeptData(), warn

    def __call__(self, trial: Trial, on_row: Say) -> str:
        """on_row: called with every row of the run."""
        log = logging.getLogger("fedloom")
        level = log.level
        if not self._warn:
            log.setLevel(logging.ERROR)
        try:
            return run_trial(trial, data=self._kept.of(trial.config), on_round=on_row)
        finally:
            log.setLevel(level)


def in_jobs(
    work: Work,
    pieces: Sequence[Any],
    runs: Sequence[Shown],
    jobs: int,
    watch: Watch,
) -> Iterator[tuple[int, Any]]:
    """(number of a piece, its result) as they end: in this process, or `jobs` at once. runs: the
    pieces as `watch` is shown them. Raises what Jobs.run raises.
    """

    def begin(number: int) -> None:
        watch.begin(runs[number])

    def heard(number: int, row: Any) -> None:
        watch.row(runs[number], row)

    if jobs > 1 and len(pieces) > 1:
        with stoppable():
            yield from Jobs(work, jobs).run(pieces, begin, heard)
        return
    for number, piece in enumerate(pieces):
        begin(number)
        yield number, work(piece, functools.partial(heard, number))
