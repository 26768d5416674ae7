"""Progress over many runs on stderr: a bar in a terminal, a line per run elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from fedloom.core.interrupts import TimeUpError
from fedloom.server.progress import say
from fedloom.study import Observer
from fedloom.study.trial import Run

_PATIENCE = 60.0  # seconds between lines of one run where there is no terminal


class Progress(Observer):
    """Shows runs and rounds that are done of all, the run of now and its newest value. minutes:
    after which time is up; then it stops the runs.
    """

    def __init__(self, quiet: bool, minutes: float | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (
            TextColumn("{task.fields[runs]}"),
            BarColumn(bar_width=20),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
        )
        terminal = sys.stderr.isatty()
        self._lines = not quiet and not terminal
        self._bar = Bar(*columns, console=Console(stderr=True), disable=quiet or not terminal)
        self._task = self._bar.add_task("", total=0, runs="")
        self._until = math.inf if minutes is None else time.monotonic() + 60 * minutes
        self._runs, self._total = 0, 0  # rounds in all
        self._over, self._ended = 0, 0  # rounds and runs that are over
        self._now: dict[int, int] = {}  # rounds that are done of the runs of now
        self._last_line: dict[int, float] = {}

    def add(self, runs: Sequence[Run]) -> None:
        """Show that more runs are to come."""
        self._runs += len(runs)
        self._total += sum(run.rounds for run in runs)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, run: Run) -> None:
        """Show a run that begins, unless time is up."""
        self._stop_if_over()
        self._bar.start()
        self._now[id(run)], self._last_line[id(run)] = 0, time.monotonic()
        self._show(run.title)

    def row(self, run: Run, row: Mapping[str, Any]) -> None:
        """Show a round."""
        self._now[id(run)] = int(row["round"])
        value = next((v for k, v in row.items() if k.startswith("test_") and "_ema" not in k), None)
        text = f"{run.title}  round {row['round']} of {run.rounds}"
        text += "" if value is None else f"  {value:.4g}"
        self._show(text)
        if self._lines and time.monotonic() - self._last_line[id(run)] > _PATIENCE:
            self._last_line[id(run)] = time.monotonic()
            say(text)
        self._stop_if_over()

    def _stop_if_over(self) -> None:
        if time.monotonic() >= self._until:
            raise TimeUpError

    def end(self, run: Run, state: str) -> None:
        """Count a run that is over."""
        self._now.pop(id(run), None)
        if state == "refused":
            self._runs -= 1
            self._total -= run.rounds
        else:
            self._over += run.rounds
            self._ended += 1
        self._show(run.title)
        if self._lines:
            say(f"{self._ended}/{self._runs} {run.title}: {state}{self._left()}")

    def _show(self, text: str) -> None:
        self._bar.update(
            self._task,
            completed=self._over + sum(self._now.values()),
            total=self._total,
            description=f"{text}{self._left()}",
            runs=f"{self._ended}/{self._runs} runs",
        )

    def _left(self) -> str:
        minutes = max(0.0, self._until - time.monotonic()) / 60
        return "" if math.isinf(minutes) else f", {minutes:.1f} minutes left"
