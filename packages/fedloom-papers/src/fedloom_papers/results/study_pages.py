"""The pages of our own studies, from docs/results/NAME.jsonl, papers/lines.jsonl, words/NAME.md."""

from __future__ import annotations

from pathlib import Path

from fedloom.errors import DataError, did_you_mean

from . import aggregation, compression, precision, submodels, zoo
from .fill import fill
from .page import Page
from .study import RESULTS, Study

MAKERS = {
    "zoo": zoo.make,
    "compression": compression.make,
    "submodels": submodels.make,
    "robust": aggregation.robust,
    "private": aggregation.private,
    "precision": precision.make,
}


def page(name: str, lines: Path = RESULTS) -> Page:
    """A page from the lines of a folder; a missing file is no lines yet. Raises DataError for an
    unknown name, a folder that is not there, or lines that cannot be read.
    """
    if name not in MAKERS:
        raise DataError(f"there is no page '{name}'. {did_you_mean(name, [*MAKERS])}")
    if not lines.is_dir():
        raise DataError(f"there is no folder '{lines}'; --lines takes the one with {name}.jsonl")
    words = fill((RESULTS / "words" / f"{name}.md").read_text(encoding="utf-8"))
    return MAKERS[name](Study(name, lines), words)
