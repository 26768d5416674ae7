"""Progress: a bar in a terminal or a notebook, a line per evaluation on stderr elsewhere."""

from __future__ import annotations

import contextlib
import html
import sys
import time
from typing import Any

from ..evaluation.declared import unit_of


def say(line: str) -> None:
    """Write one line to where progress is shown; nothing if that terminal is closed."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def in_notebook() -> bool:
    """True if output goes to a notebook's page, whatever program shows it."""
    import builtins

    shell = getattr(builtins, "get_ipython", lambda: None)()
    return shell is not None and getattr(shell, "kernel", None) is not None


def shows_progress(progress: bool | None) -> bool:
    """Whether to show progress; None: in notebooks."""
    return in_notebook() if progress is None else progress


_WIDE = 110  # columns of a terminal in which the bar has all that there is to say
_BESIDE = 48  # columns beside bar and label in a narrower one


class _Cell:
    """A bar in a notebook: HTML that is replaced, at most ten times a second."""

    def __init__(self, label: str, rounds: int) -> None:
        self._label, self._rounds, self._last_update = label, rounds, 0.0
        self._place: Any = None

    def show(self, round: int, text: str) -> None:
        """Show how far the run is."""
        from IPython.display import HTML, display

        now = time.monotonic()
        if self._place is not None and round < self._rounds and now - self._last_update < 0.1:
            return
        self._last_update = now
        text = html.escape(f"{self._label}: round {round}/{self._rounds}  {text}")
        bar = f'<progress value="{round}" max="{self._rounds}"></progress> <code>{text}</code>'
        if self._place is None:
            self._place = display(HTML(bar), display_id=True)
        else:
            self._place.update(HTML(bar))


class Progress:
    """Shows rounds, time left, the headline metric, traffic and clients per second.

    first, sent: rounds and bytes of the run before it went on. remark: a line before them.
    """

    def __init__(
        self, label: str, rounds: int, metric: str, first: int = 0, sent: int = 0, remark: str = ""
    ) -> None:
        self._label, self._rounds, self._metric, self._first = label, rounds, metric, first
        self._column = f"test_{metric}"
        self._remark = remark
        self._bar: Any = None
        self._wide = True
        self._cell: _Cell | None = None
        self._score, self._bytes, self._clients = "", sent, 0
        self._started = time.monotonic()
        self._last_line = 0.0

    @classmethod
    def of(cls, run: Any, label: str, rounds: int) -> Progress:
        """The progress of a run from where it is."""
        from ..evaluation.clients import unmeasured

        state = run.state
        progress = cls(
            label, rounds, run.headline, state.round, state.ledger.traffic, unmeasured(run.fed)
        )
        if run.plan.personalises:  # nobody uses the common model
            progress._column = f"client_{run.headline}_mean"
        return progress

    def __enter__(self) -> None:
        """Begin to show."""
        if self._remark:
            say(self._remark)
        if in_notebook():
            self._cell = _Cell(self._label, self._rounds)
            self._cell.show(self._first, "")
            return
        if not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        console = Console(stderr=True)
        self._wide = console.width >= _WIDE
        self._bar = Bar(
            TextColumn("{task.description:<18}"),
            BarColumn(bar_width=max(4, min(24, console.width - _BESIDE - len(self._label)))),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[text]}"),
            console=console,
        )
        self._task = self._bar.add_task(
            self._label, total=self._rounds, completed=self._first, text=""
        )
        self._bar.start()

    def update(self, row: dict[str, Any]) -> None:
        """Show one more round."""
        value = row.get(self._column)
        if value is not None:
            self._score = f"{self._metric} {in_unit(self._metric, value)}"
        self._bytes += row.get("bytes_up", 0) + row.get("bytes_down", 0)  # none if they are secret
        self._clients += row.get("cohort", 0)
        rate = self._clients / max(time.monotonic() - self._started, 1e-9)
        text = f"{self._score}  {in_bytes(self._bytes)}"
        text += f"  {rate:,.0f} clients/s" if self._wide else ""
        if self._bar is not None:
            self._bar.update(self._task, completed=row["round"], text=text)
            return
        if self._cell is not None:
            self._cell.show(row["round"], text)
            return
        now, last = time.monotonic(), row["round"] >= self._rounds
        if last or (value is not None and now - self._last_line >= 5):
            self._last_line = now
            say(f"{self._label}: round {row['round']}/{self._rounds}  {text}")

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            with contextlib.suppress(OSError):  # the terminal was closed, which stops the run
                self._bar.stop()
            self._bar = None


def in_unit(metric: str, value: float) -> str:
    """A value of a metric, shares in per cent."""
    return f"{value:.2%}" if unit_of(metric) == "share" else f"{value:.4g}"


def in_bytes(n: float) -> str:
    """A number of bytes in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} TiB"
