"""README.md and every page of docs/ that has a PAGE.md.in: its placeholders filled (fill.py).

Besides the kinds of fill.py:

    {{demo:table.text}}, {{demo:example.text}}     what the two examples of README print
    {{demo:FedAvgM/FedACG.points}}    two rows of that table: points, p (with Holm, for the first)
    {{record:2026-11-25_referee/calibration.json#false_studies/all.percent 1}}    of a record: value
                                                 or percent
    {{lines:zoo.uncommitted}}    of docs/results/zoo.jsonl: all, uncommitted (without a commit)
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedloom.cli.results import fitted
from fedloom.errors import ConfigError
from fedloom.report.statistics import against, p_text

from .fill import SOURCES, fill
from .study import RESULTS

ROOT = RESULTS.parents[1]
RECORDS = ROOT / "benchmarks" / "records"
DEMO = RECORDS / "2026-11-27_demo" / "demo.json"
MADE = "<!-- Made by `make results` from {} and from lines: write there, not here. -->\n\n"
PAGES = ("README.md.in", "docs/*.md.in")  # of docs/results: tables.py and pages.py
WIDTH = 80


@functools.cache
def read(file: Path) -> Any:
    """A record."""
    return json.loads(file.read_text("utf-8"))


def demo(place: str, field: str) -> str | float:
    """Of the demo's record: a text, or a difference of two rows."""
    found = read(DEMO)
    if place == "example":
        return str(found["example"])
    if place == "table":
        text = fitted(found["rows"], space=WIDTH).splitlines()
        return "\n".join(line.rstrip() for line in text if not line.startswith("("))
    one, other = place.split("/")
    values = {name: {int(s): v for s, v in own.items()} for name, own in found["values"].items()}
    gaps = against(values[one], {name: own for name, own in values.items() if name != one})
    gap = gaps[other]
    return abs(100 * gap.mean) if field == "points" else p_text(gap.p_holm)


def record(place: str, field: str) -> str | float:
    """A value of a record, FILE#KEY/KEY."""
    file, _, keys = place.partition("#")
    value: Any = read(RECORDS / file)
    for key in keys.split("/"):
        value = value[int(key) if isinstance(value, list) else key]
    shown: str | float = 100 * value if field == "percent" else value
    return shown


def lines(place: str, field: str) -> int:
    """How many lines a study has, in all or without a commit."""
    file = RESULTS / f"{place}.jsonl"
    if not file.is_file():
        raise ConfigError(f"there is no {file.name}")
    found = [json.loads(text) for text in file.read_text("utf-8").splitlines()]
    return sum(field == "all" or "commit" not in line for line in found)


OWN = {**SOURCES, "demo": demo, "record": record, "lines": lines}


def pages() -> Mapping[Path, str]:
    """{page: its text}."""
    sources = [file for pattern in PAGES for file in sorted(ROOT.glob(pattern))]
    return {
        file.with_suffix(""): MADE.format(file.name) + fill(file.read_text("utf-8"), OWN)
        for file in sources
    }
