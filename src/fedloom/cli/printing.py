"""Output, and types of options, of several commands. It imports little, for `list` to be quick."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from fedloom.core.text_table import aligned, escaped_line, width_of
from fedloom.errors import FedloomError

PATH, COUNT = click.Path(path_type=Path), click.IntRange(min=1)


def is_first_rank() -> bool:
    """True for the one of several ranks that prints, and for a process alone."""
    return os.environ.get("WORLD_SIZE", "1") == "1" or os.environ.get("RANK", "0") == "0"


def print_line(text: str) -> None:
    """Print a line of work that goes on even if nobody reads it any more, as `| head -1`."""
    try:
        click.echo(text)
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # what Python still holds goes there at its end
        os.close(nowhere)


def as_json(value: Any) -> str:
    """JSON for other programs, of a kind that docs/schemas describes: NaN and infinity are null.

    >>> as_json([0.5, float("nan")]).split()
    ['[', '0.5,', 'null', ']']
    """
    from pydantic_core import to_json

    return to_json(value, indent=1, inf_nan_mode="null").decode()


def illustrate(run: Path) -> Path | None:
    """Save a run's pictures and report in its folder -> the report, None if none is drawn."""
    report = None
    with drawing(f"fedloom report {shlex.quote(str(run))}"):
        from fedloom.report import write_report

        report = write_report(run, run / "report.html", pictures=run / "pictures")
    return report


@contextlib.contextmanager
def drawing(later: str) -> Iterator[None]:
    """Whatever a drawing library raises, say that pictures are missing. later: the command."""
    try:
        yield
    except Exception as error:
        is_ours = isinstance(error, FedloomError)
        why = " ".join(str(error if is_ours else f"{type(error).__name__}: {error}").split())
        text = f"pictures or the report are missing: {why} (the results are whole; later: {later})"
        click.echo(text, err=True)


def table(lines: Sequence[Sequence[str]], space: int | None = None) -> str:
    """Aligned columns, indented, wrapped at words. space: of the page; None: of the terminal."""
    if not lines:
        return ""
    if space is None and sys.stdout.isatty():
        space = shutil.get_terminal_size().columns
    cells = [[escaped_line(cell) for cell in line] for line in lines]
    text = aligned(cells, widths=_widths([*zip(*cells, strict=True)], space))
    return "\n".join(f"  {line}".rstrip() for line in text.splitlines())


def cuts(lines: Sequence[Sequence[str]], space: int | None) -> bool:
    """True if a table of these lines has to break words to fit a page of `space` columns."""
    words = _longest([*zip(*lines, strict=True)])
    return space is not None and sum(words) + 2 * len(words) > space


def _longest(columns: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(width_of, " ".join(column).split()), default=1) for column in columns]


def _widths(columns: Sequence[Sequence[str]], space: int | None) -> list[int]:
    """The width of every column: the widest are narrowed, to their longest word if need be."""
    natural, words = [max(map(width_of, column)) for column in columns], _longest(columns)
    if space is None or (room := space - 2 * len(columns)) >= sum(natural):
        return natural
    return _narrowed(natural, _narrowed(words, [1] * len(words), room), room)


def _narrowed(widths: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """These widths, the widest narrowed until all fit or are as narrow as they may be."""
    narrowed = [*widths]
    while sum(narrowed) > max(room, sum(least)):
        widest = max((n, i) for i, n in enumerate(narrowed) if n > least[i])[1]
        narrowed[widest] -= 1
    return narrowed


def page_width(piped: int = 80) -> int:
    """The columns of a page: COLUMNS if it is set, else the terminal's, else `piped`."""
    return shutil.get_terminal_size((piped, 24)).columns


def folded(text: str, space: int | None, hang: str = "  ") -> str:
    """A line, broken at words if it is longer than `space`; what follows is indented more."""
    if space is None or len(text) <= space:
        return text
    indent = text[: len(text) - len(text.lstrip())] + hang
    return textwrap.fill(text, space, subsequent_indent=indent, break_on_hyphens=False)


_DOCSTRING = 98  # columns of a docstring's longest line, as `show` prints it


def reflowed(text: str, space: int) -> str:
    """A text with docstrings, its long lines broken at words anew for a page of `space` columns."""
    paragraphs: list[str] = []
    before = ""
    for line in text.splitlines():
        word = line.split(maxsplit=1)[:1]
        if word and before.strip() and len(before.rstrip()) + 1 + len(word[0]) > _DOCSTRING:
            paragraphs[-1] = f"{paragraphs[-1].rstrip()} {line.strip()}"
        else:
            paragraphs.append(line)
        before = line
    return "\n".join(folded(line, space, hang="") for line in paragraphs)
