"""Make the pages of docs/results, README.md and those of docs/*.md.in, with their pictures.

    python -m fedloom_papers.results [NAME ...] [--lines FOLDER] [--out FOLDER] [--check]

NAME is a study (zoo, compression, submodels, robust, private, precision), `tables` (the papers'
tables) or `filled` (README.md and what has a PAGE.md.in); without one all are made, and their
digests are kept (made.py). Lines that are not there yet are said to be missing.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from fedloom.errors import FedloomError
from fedloom.report.style import save_pictures
from fedloom.storage.atomic import write_out

from . import filled, made, tables
from .page import differing, remove_old
from .study import RESULTS
from .study_pages import MAKERS, page

NAMES = (*MAKERS, "tables", "filled")


def texts(name: str, lines: Path, out: Path) -> dict[Path, str]:
    """{file: text} of the pages of a name, without their pictures."""
    if name == "filled":
        return {**filled.pages()}
    if name == "tables":
        return {out / f"{n}.md": text for n, text in tables.made(lines / "papers").pages.items()}
    return {out / f"{name}.md": page(name, lines).text()}


def write(name: str, lines: Path, out: Path) -> list[Path]:
    """Write the pages of a name, and their pictures -> the files."""
    if name in MAKERS:
        return page(name, lines).write(out)
    if name == "filled":
        return [write_out(file, text) for file, text in filled.pages().items()]
    found, files = tables.made(lines / "papers"), list[Path]()
    for paper, own in found.pictures.items():
        here = paper != "measured_and_published"
        folder = out / "pictures" if here else RESULTS.parent / "pictures"
        if here or out == RESULTS:
            files += save_pictures(own, folder, ["png"])
            remove_old(folder, paper, files)
    return [*files, *(write_out(out / f"{n}.md", text) for n, text in found.pages.items())]


def main(argv: list[str] | None = None) -> int:
    """Make the pages, or with --check say which differ."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--lines", type=Path, default=RESULTS, help="folder with NAME.jsonl")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for pages and pictures")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a page differs")
    options = parser.parse_args(argv)
    os.environ["COLUMNS"] = tables.WIDTH  # whatever terminal they are made in
    if options.check:
        known = [texts(n, options.lines, options.out) for n in options.names or NAMES]
        return differing(
            {file: text for own in known for file, text in own.items()}, "make results"
        )
    for name in options.names or NAMES:
        print(*write(name, options.lines, options.out), sep="\n")
    if options.out == RESULTS:
        made.main([])
    return 0


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except FedloomError as error:
        raise SystemExit(f"error: {error}") from None
