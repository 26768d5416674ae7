"""Which pages were made from what: docs/results/made.json, a digest of every page and its sources.

    python -m fedloom_papers.results.made --check    of `make check`: nothing was edited since

Making the pages takes minutes, and this a moment: a page that differs from what was made, or a line
or template that is newer than the pages, is named. The slow tests make all pages anew.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[5]  # of the checkout
FILE = "docs/results/made.json"
BY_HAND = ("docs/results/conformance.md",)  # `nox -s conformance` makes it
PAGES = ("docs/results/*.md",)  # and each PAGE.md with a PAGE.md.in
SOURCES = (
    *("README.md.in", "docs/**/*.md.in", "docs/results/words/*.md", "docs/results/plan.toml"),
    *(f"docs/results/{name}.jsonl" for name in ("*", "flamby/lines", "papers/lines")),
    *(f"packages/fedloom-papers/src/fedloom_papers/published/*.{end}" for end in ("toml", "csv")),
    "benchmarks/records/*/*.json",
)


def digests(root: Path) -> dict[str, dict[str, str]]:
    """{"pages", "sources": {file: its digest}}."""
    sources = {file for pattern in SOURCES for file in root.glob(pattern)}
    pages = {file for pattern in PAGES for file in root.glob(pattern)}
    pages |= {file.with_suffix("") for file in sources if file.suffix == ".in"}
    names = {"pages": pages, "sources": sources}
    return {
        kind: {
            name: hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file.is_file() else ""
            for file in sorted(files)
            if (name := file.relative_to(root).as_posix()) not in BY_HAND
        }
        for kind, files in names.items()
    }


def wrong(root: Path) -> list[str]:
    """A sentence for each page that is not as it was made, and each source that has changed."""
    recorded: Mapping[str, Mapping[str, str]] = json.loads((root / FILE).read_text("utf-8"))
    now, out = digests(root), []
    for kind, says in (("pages", "is not as it was made"), ("sources", "is not that of the pages")):
        names = sorted({*recorded[kind], *now[kind]})
        stale = [name for name in names if recorded[kind].get(name) != now[kind].get(name)]
        out += [f"{name} {says}; make the pages again: nox -s results" for name in stale]
    return out


def main(argv: list[str] | None = None) -> int:
    """Keep the digests, or with --check compare them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--root", type=Path, default=ROOT)
    options = parser.parse_args(argv)
    if options.check:
        problems = wrong(options.root)
        print(*problems, sep="\n", end="\n" * bool(problems))
        return int(bool(problems))
    text = json.dumps(digests(options.root), indent=1)
    (options.root / FILE).write_text(f"{text}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
