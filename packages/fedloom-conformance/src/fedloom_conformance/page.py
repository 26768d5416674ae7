"""python -m fedloom_conformance.page RESULT.json ... --words WORDS.md --out PAGE.md"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import rows

NOTE = (
    "<!-- Made by `nox -s conformance` from words/conformance.md and results: write there. -->\n\n"
)
CELLS = {"right": "right", "reading": "right, as read", "wrong": "**wrong**", "absent": "-"}


def page(results: Sequence[Mapping[str, Any]], words: str) -> str:
    """The words, with what the results say in place of {table}, {readings}, {wrong}."""
    made = {"table": _table(results), "readings": _readings(results), "wrong": _faults(results)}
    for name, part in made.items():
        words = words.replace(f"{{{name}}}", part)
    return NOTE + words


def _table(results: Sequence[Mapping[str, Any]]) -> str:
    names = [result["framework"] for result in results]
    lines = ["| method | " + " | ".join(names) + " |", "|:--|" + ":--|" * len(names)]
    for row in rows():
        cells = [_cell(result["verdicts"][row.name]) for result in results]
        lines.append(f"| {row.label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(verdict: Mapping[str, Any]) -> str:
    return CELLS.get(verdict["kind"], "stops with an error")


def _readings(results: Sequence[Mapping[str, Any]]) -> str:
    """A line for each framework and reading, with its rows."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows():
        for result in results:
            verdict = result["verdicts"][row.name]
            if verdict["kind"] == "reading":
                key = result["framework"], verdict["reading"]
                found.setdefault(key, []).append(row.label)
    lines = [f"- {name}: {', '.join(at)}: {how}." for (name, how), at in sorted(found.items())]
    return "\n".join(lines)


def _faults(results: Sequence[Mapping[str, Any]]) -> str:
    """A line for each verdict that is wrong or an error."""
    lines = []
    for result in results:
        for row in rows():
            verdict = result["verdicts"][row.name]
            name = f"| {result['framework']} | {row.label} |"
            if verdict["kind"] == "wrong":
                lines.append(f"{name} {_words(verdict)} |")
            elif verdict["kind"] == "error":
                lines.append(f"{name} | | {verdict['words']} |")
    head = (
        "| framework | method | first wrong round, difference | smallest case |\n|:--|:--|:--|:--|"
    )
    return "\n".join([head, *lines])


def _words(verdict: Mapping[str, Any]) -> str:
    fault = verdict["fault"]
    right = f"{verdict['right_cases']} of {verdict['cases']} cases right; "
    where = f"round {fault['round']} of {fault['case']}, {fault['size']:.1e}"
    return f"{right if verdict['right_cases'] else ''}{where} | {fault['smallest']}"


def main() -> int:
    """Write the page -> 0."""
    parser = argparse.ArgumentParser(prog="fedloom_conformance.page", description=__doc__)
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--words", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    results = [json.loads(path.read_text(encoding="utf-8")) for path in options.results]
    words = options.words.read_text(encoding="utf-8")
    options.out.write_text(page(results, words), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
