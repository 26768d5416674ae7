"""A Markdown table."""

from __future__ import annotations

from collections.abc import Sequence


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """A Markdown table; the first `texts` columns to the left, the numbers to the right."""
    marks = [":--"] * texts + ["--:"] * (len(head) - texts)
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (head, *rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (cells[0], marks, *cells[1:]))
