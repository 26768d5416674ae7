"""Progress on stderr: a bar in a terminal, a line per evaluation elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any


def say(line: str) -> None:
    """Write one line to where progress is shown; nothing if that terminal is closed."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


class Progress:
    """Shows rounds, time left, the headline metric, traffic and clients per second.

    done, sent: rounds and bytes of the run before it went on.
    """

    def __init__(self, label: str, rounds: int, metric: str, done: int = 0, sent: int = 0) -> None:
        self._label, self._rounds, self._metric, self._done = label, rounds, metric, done
        self._bar: Any = None
        self._score, self._bytes, self._clients = "", sent, 0
        self._started = time.monotonic()
        self._said = 0.0

    def __enter__(self) -> None:
        """Begin to show."""
        self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to show."""
        if not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self._bar = Bar(
            TextColumn("{task.description:<18}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[text]}"),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task(
            self._label, total=self._rounds, completed=self._done, text=""
        )
        self._bar.start()

    def update(self, row: dict[str, Any]) -> None:
        """Show one more round."""
        value = row.get(f"test_{self._metric}")
        if value is not None:
            shown = f"{value:.2%}" if self._metric == "accuracy" else f"{value:.4g}"
            self._score = f"{self._metric} {shown}"
        self._bytes += row["bytes_up"] + row["bytes_down"]
        self._clients += row["cohort"]
        rate = self._clients / max(time.monotonic() - self._started, 1e-9)
        text = f"{self._score}  {_bytes(self._bytes)}  {rate:,.0f} clients/s"
        if self._bar is not None:
            self._bar.update(self._task, completed=row["round"], text=text)
            return
        now, last = time.monotonic(), row["round"] >= self._rounds
        if last or (value is not None and now - self._said >= 5):
            self._said = now
            say(f"{self._label}: round {row['round']}/{self._rounds}  {text}")

    def stop(self) -> None:
        """Stop showing."""
        if self._bar is not None:
            with contextlib.suppress(OSError):  # the terminal was closed, which stops the run
                self._bar.stop()
            self._bar = None


def _bytes(n: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} TiB"
