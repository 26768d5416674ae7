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

_PATIENCE = 60.0  # seconds between lines of running runs where there is no terminal


class Progress(Observer):
    """Shows how many runs are over, the run of now and its newest value. minutes: after which time
    is up; then it stops the runs.
    """

    def __init__(self, quiet: bool, minutes: float | None = None) -> None:
        from rich.console import Console
        from rich.progress import Progress as Bar

        terminal = sys.stderr.isatty()
        self._lines = not quiet and not terminal
        self._bar = Bar(console=Console(stderr=True), disable=quiet or not terminal)
        self._task = self._bar.add_task("", total=0)
        self._until = math.inf if minutes is None else time.monotonic() + 60 * minutes
        self._runs = self._ended = self._total = 0  # runs, those that are over; rounds in all
        self._done: dict[int, int] = {}  # rounds of each run of now
        self._last_line = time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def add(self, runs: Sequence[Run]) -> None:
        """Show that more runs are to come."""
        self._runs += len(runs)
        self._total += sum(run.rounds for run in runs)

    def begin(self, run: Run) -> None:
        """Show a run that begins, unless time is up."""
        self._stop_if_over()
        self._bar.start()
        self._show(run, 0, run.title)

    def row(self, run: Run, row: Mapping[str, Any]) -> None:
        """Show a round."""
        value = next((v for k, v in row.items() if k.startswith("test_") and "_ema" not in k), None)
        text = f"{run.title}  round {row['round']} of {run.rounds}"
        text += "" if value is None else f"  {value:.4g}"
        self._show(run, int(row["round"]), text)
        if self._lines and time.monotonic() - self._last_line > _PATIENCE:
            self._say(text)
        self._stop_if_over()

    def end(self, run: Run, state: str) -> None:
        """Count a run that is over."""
        self._ended += 1
        self._show(run, run.rounds, run.title)
        del self._done[id(run)]
        if self._lines:
            self._say(f"{self._ended}/{self._runs} {run.title}: {state}{self._left()}")

    def _show(self, run: Run, rounds: int, text: str) -> None:
        new = rounds - self._done.get(id(run), 0)
        self._done[id(run)] = rounds
        text = f"{self._ended}/{self._runs} runs  {text}{self._left()}"
        self._bar.update(self._task, advance=new, total=self._total, description=text)

    def _say(self, text: str) -> None:
        self._last_line = time.monotonic()
        say(text)

    def _stop_if_over(self) -> None:
        if time.monotonic() >= self._until:
            raise TimeUpError

    def _left(self) -> str:
        minutes = max(0.0, self._until - time.monotonic()) / 60
        return "" if math.isinf(minutes) else f", {minutes:.1f} minutes left"
