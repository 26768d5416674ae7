"""Make the pages of docs/results, README.md and those of docs/*.md.in, with their pictures.

    python -m fedloom_papers.results [NAME ...] [--check]

NAME is a paper or a study of ours (`fedloom paper list`), or `filled`: README.md and what has a
PAGE.md.in. Without one all are made, with the board, and their digests are kept (made.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fedloom.errors import DataError, FedloomError, did_you_mean
from fedloom.report.style import save_pictures
from fedloom.storage.atomic import write_out

from ..catalogue import TITLES
from . import fill, made, tables
from .fill import RESULTS

NAMES = (*TITLES, "filled")


def make_pages(names: Sequence[str]) -> tuple[dict[Path, str], tables.Results]:
    """{file: text} of the pages of these names, and what the lines make. Raises DataError."""
    for name in {*names} - {*NAMES}:
        raise DataError(f"there is no page '{name}'; {did_you_mean(name, NAMES)}")
    papers = [name for name in names if name != "filled"]
    results = tables.make_results(papers) if papers or not names else tables.Results({}, {})
    filled_pages = fill.pages() if not names or "filled" in names else {}
    return {RESULTS / f"{n}.md": text for n, text in results.pages.items()} | filled_pages, results


def write_pictures(results: tables.Results) -> list[Path]:
    """Write the pictures of pages, and remove those that a page has no more -> the files."""
    files = list[Path]()
    for name, pictures in results.pictures.items():
        folder = (RESULTS if name in results.pages else RESULTS.parent) / "pictures"
        files += save_pictures(pictures, folder, ["png"])
        old = folder.glob(f"{name}-*.png") if name in results.pages else ()
        for file in {*old} - {*files}:
            file.unlink()
    return files


def report_differences(pages: dict[Path, str], command: str) -> int:
    """Say which files are not these pages -> 1 if there is one, else 0."""
    old = [f for f, page in pages.items() if not f.is_file() or f.read_text("utf-8") != page]
    for file in old:
        print(f"{file} differs from its lines; make it again: {command}")
    return int(bool(old))


def main(argv: list[str] | None = None) -> int:
    """Make the pages, or with --check say which differ."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a page differs")
    options = parser.parse_args(argv)
    pages, results = make_pages(options.names)
    if options.check:
        return report_differences(pages, "nox -s results")
    print(*write_pictures(results), *(write_out(f, text) for f, text in pages.items()), sep="\n")
    made.main([])
    return 0


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except FedloomError as error:
        raise SystemExit(f"error: {error}") from None
