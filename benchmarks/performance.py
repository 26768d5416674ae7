"""docs/performance.md, from the lines of the records and the words in records/performance.md.

    python benchmarks/performance.py

The words are written by hand; `{W1}` to `{W4}` in them stand for the newest lines of that work in
benchmarks/records/*/rounds.jsonl, as a table, and `{W1: vmap}` for the median of what `auto` takes
of another contender's time in the same turn. A work without lines is said to have none. `{GPU}` is
the newest record of `make gpu`.
"""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "benchmarks" / "records"
PAGE = ROOT / "docs" / "performance.md"
WORKS = ("W1", "W2", "W3", "W4")
ORDER = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")
ORDER += ("tenth", "eleventh", "twelfth")
NAMES = {
    "plain": "plain loop, 2 threads",
    "engineer": "the same with foreach and channels-last",
    "two processes": "plain loop in two processes",
    "vmap": "40 lines of vmap",
    "auto": "fedloom as it comes, `auto`",
    "gradients only": "the gradients alone, two processes",
    "pfl": "pfl 0.6, one process",
    "pfl:2": "pfl 0.6, two processes",
    "flwr": "Flower 1.42, its simulation",
    "fluke": "fluke 0.8",
}


def _age(file: Path) -> tuple[str, int]:
    """The day of a record, and its number."""
    day, _, name = file.parent.name.partition("_")
    word = name.partition("_")[0]
    return day, ORDER.index(word) if word in ORDER else -1


def newest(work: str) -> tuple[Path | None, list[dict[str, Any]]]:
    """The last record with lines of a work, and these lines."""
    for file in sorted(RECORDS.glob("*/rounds.jsonl"), key=_age, reverse=True):
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        if own := [row for row in rows if row["work"] == work]:
            return file.parent, own
    return None, []


def table(work: str) -> str:
    """A work's contenders: median seconds, the median ratio to the plain loop in a turn, the
    processor's seconds, memory.
    """
    record, rows = newest(work)
    if record is None:
        return "Not measured yet."
    base = rows[0]["s"]  # the plain loop's
    rows = sorted(rows, key=lambda row: row["name"] != "auto")
    out = ["| | s a round | ratio | processor s | GB |", "| :-- | --: | --: | --: | --: |"]
    for row in rows:
        name = NAMES.get(row["name"], f"fedloom `{row['name']}`")
        if row["said"]:
            name += f" (took `{row['said'].partition(',')[0]}`)"
        ratio = statistics.median(s / b for s, b in zip(row["s"], base, strict=True))
        cpu = f"{statistics.median(row['cpu']):.3g}" if "cpu" in row else "-"  # of older records
        cells = f"{statistics.median(row['s']):.3g} | {ratio:.2f} | {cpu} | {row['gb']:.1f}"
        out.append(f"| {name} | {cells} |")
    place = f"../benchmarks/records/{record.name}/README.md"
    turns = f"{len(base)} turns at {rows[0]['commit']}"
    return "\n".join([*out, "", f"{turns}: [record of {record.name.partition('_')[0]}]({place})."])


def beside(work: str, name: str) -> str:
    """What `auto` takes of a contender's time in the same turn, the median."""
    seconds = {row["name"]: row["s"] for row in newest(work)[1]}
    pairs = zip(seconds["auto"], seconds[name], strict=True)
    return f"{statistics.median(ours / theirs for ours, theirs in pairs):.2f}"


def on_gpu() -> str:
    """What rounds take on a GPU, as ratios to the eager loop by hand; the best loop by hand beside
    the engines.
    """
    if not (records := sorted(RECORDS.glob("*_gpu/gpu.jsonl"))):
        return "Not measured by `make gpu` yet."
    rows = [json.loads(line) for line in records[-1].read_text(encoding="utf-8").splitlines()]
    out = ["| work | by hand, ms | best by hand | serial | vectorised | streams | auto |"]
    out.append("|:--|--:|--:|--:|--:|--:|--:|")
    seconds = {row["piece"]: row["s"] for row in rows if "s" in row}
    for work in dict.fromkeys(name.partition(" ")[0] for name in seconds):
        hand = {name: s for name, s in seconds.items() if name.startswith(f"{work} by hand")}
        eager = next((name for name in hand if "eager" in name), None)
        if eager is None:
            continue
        first, usual = hand[eager], eager.rpartition(", ")[2]  # the precision
        cells = [f"{1e3 * first:.3g}", f"{min(hand.values()) / first:.2g}"]
        for engine in ("serial", "vectorised", "streams", "auto"):
            own = seconds.get(f"{work} {usual}, {engine}")
            cells.append("-" if own is None else f"{own / first:.2g}")
        out.append(f"| {work} | {' | '.join(cells)} |")
    about = f"{rows[0]['name']}, torch {rows[0]['torch']}, at {rows[0]['commit']}"
    place = f"../benchmarks/records/{records[-1].parent.name}/README.md"
    return "\n".join([*out, "", f"{about}: [record]({place})."])


def page() -> str:
    """The page."""
    text = (RECORDS / "performance.md").read_text(encoding="utf-8")
    text = re.sub(r"\{(W\d): ([\w: ]+)\}", lambda place: beside(place[1], place[2]), text)
    for work in WORKS:
        text = text.replace(f"{{{work}}}", table(work))
    return text.replace("{GPU}", on_gpu())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
