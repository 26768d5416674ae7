"""Tabulars of fedloom: their cells, and how wide LaTeX sets them."""

from __future__ import annotations

import re
from pathlib import Path

COLUMN = 3.4 * 72.27  # of a page with two, in LaTeX's points
_GAP = 6  # points


def cells(text: str) -> list[list[str]]:
    """The cells of a tabular, after a look that each line has as many as it has columns."""
    lines = text.splitlines()
    others = re.search(r"\*\{(\d+)\}", lines[0])
    assert others is not None
    found = [line.removesuffix(r" \\").split(" & ") for line in lines if line.endswith(r" \\")]
    assert {len(line) for line in found} == {1 + int(others[1])}
    return found


def width(text: str) -> float:
    """The width of a tabular at \\footnotesize in points, from the widths of Computer Modern's
    letters: what pdflatex says, within 3 %.
    """
    import matplotlib
    from matplotlib.ft2font import FT2Font

    font = FT2Font(str(Path(matplotlib.get_data_path()) / "fonts/ttf/cmr10.ttf"))
    font.set_size(8.5, 72)  # eight points, but cmr8's letters are wider than those of cmr10 by 1/16

    def one(cell: str) -> float:
        bare = re.sub(r"\\rlap\{\$.*?\$\}|\\shortstack\[.\]", "", cell).replace(r"\pm", "+ ")
        wide = []
        for line in re.sub(r"\\(math|text)bf|\\textless|[{}$]", "", bare).split(r"\\"):
            font.set_text(line.replace("\\", ""))
            wide.append(font.get_width_height()[0] / 64)
        return max(wide) * (1.15 if "bf{" in cell else 1.0)

    widths = [max(map(one, column)) for column in zip(*cells(text), strict=True)]
    return sum(widths) + _GAP * (len(widths) - 1)
