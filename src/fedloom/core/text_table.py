"""Tables of text, for a terminal or a pipe."""

from __future__ import annotations

import re
from collections.abc import Sequence


def aligned(
    lines: Sequence[Sequence[str]], heads: Sequence[str] = (), widths: Sequence[int] | None = None
) -> str:
    """Columns for a terminal, to the left; with heads above a rule all but the first to the right.

    widths: of the columns, whose cells are wrapped at words; None: as wide as their text.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = [heads, *lines] if heads else [*lines]
    widths = widths or [max(map(width_of, column)) for column in zip(*rows, strict=True)]
    if heads:
        rows.insert(1, ["-" * width for width in widths])
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for i, width in enumerate(widths):
        right = bool(heads) and i > 0
        table.add_column(width=width, overflow="fold", justify="right" if right else "left")
    for line in rows:
        table.add_row(*map(Text, line))
    width = sum(widths) + 2 * len(widths)
    console = Console(width=width, color_system=None, force_jupyter=False)
    with console.capture() as page:
        console.print(table)
    return "\n".join(line.rstrip() for line in page.get().splitlines())


def width_of(cell: str) -> int:
    """The columns of a terminal that a cell takes, of the longest of its lines."""
    from rich.cells import cell_len

    return max(map(cell_len, cell.split("\n")))


def escaped_line(text: str) -> str:
    """A text on one line, without control characters for the terminal."""
    line = " ".join(text.split())
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda match: f"\\x{ord(match[0]):02x}", line)
