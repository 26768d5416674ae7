"""Pictures as files for a paper: at the width of its columns, in the formats that it takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..storage.atomic import write_out
from .style import Picture, fit


def save_pictures(
    pictures: Sequence[Picture],
    folder: str | Path,
    kinds: Sequence[str] = ("png",),
    column: float | None = None,
) -> list[Path]:
    """Write drawn pictures in each format (png, svg, pdf) -> the files.

    column: the width of a page's columns in inches, for which the figures are changed; None leaves
    them as they were drawn. Raises ConfigError if the folder cannot be written.
    """
    if column is not None:
        for picture in pictures:
            fit(picture.figure, column)
    return [
        write_out(Path(folder) / f"{picture.name}.{kind}", picture.as_bytes(kind))
        for picture in pictures
        for kind in kinds
    ]
