"""The result pages of our own studies, from the lines in docs/results.

    python benchmarks/papers/pages.py [NAME ...] [--lines FOLDER] [--out FOLDER] [--check]

NAME is zoo, compression, submodels, robust, private or precision; without one all. Tables, claims
and pictures are made from the lines; what is written by hand is in docs/results/words/NAME.md.
Lines that are not there yet are said to be missing. --lines reads them from another folder, --out
writes elsewhere.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import aggregation
import compression
import precision
import submodels
import zoo
from fill import fill
from page import Page, differing
from study import RESULTS, Study

from fedloom.errors import DataError, FedloomError, did_you_mean

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


def main() -> None:
    """Write the pages."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MAKERS))
    parser.add_argument("--lines", type=Path, default=RESULTS, help="folder with NAME.jsonl")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for pages and pictures")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a page differs")
    options = parser.parse_args()
    if options.check:
        names = options.names or MAKERS
        pages = {options.out / f"{n}.md": page(n, options.lines).text() for n in names}
        raise SystemExit(differing(pages, "python benchmarks/papers/pages.py"))
    for name in options.names or MAKERS:
        for file in page(name, options.lines).write(options.out):
            print(file)


if __name__ == "__main__":
    try:
        main()
    except FedloomError as error:
        raise SystemExit(f"error: {error}") from None
