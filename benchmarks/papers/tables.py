"""docs/results/tables.md and board.md: the papers' tables as far as papers/lines.jsonl has runs;
and README's picture of them, docs/pictures/measured_and_published.png.

    python benchmarks/papers/tables.py [--lines FOLDER] [--out FOLDER]

`fedloom paper NAME --out docs/results/papers` runs a table and appends its lines; the same command
prints what this page has of it. A table whose grids were run (--tune, --halving) is shown at the
best points.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from page import MISSING, per_cent, points_of
from page import table as markdown
from study import LINES, RESULTS, by_bytes

from fedloom.cli.paper_pages import page as printed
from fedloom.core.curves import at, at_equal
from fedloom.papers import ENTRIES, Protocol
from fedloom.papers.board import HEADS, SEEDS, Shown, board, shown
from fedloom.papers.figures import dots, pictures
from fedloom.papers.lines import NAME, Line, read
from fedloom.papers.series import points
from fedloom.papers.table import Number, Table
from fedloom.papers.tune import ETA, RUNGS
from fedloom.report.curve_data import mean
from fedloom.report.statistics import corrected, paired
from fedloom.report.style import Picture, save_pictures

MADE = "<!-- Made by `python benchmarks/papers/tables.py` from papers/lines.jsonl. -->\n\n"
HEAD, BOARD = (
    MADE + (RESULTS / "words" / f"{name}.md").read_text("utf-8") for name in ("tables", "board")
)
NOTHING = "\nNo run has a line yet.\n"


def equal_bytes(found: Table) -> list[str]:
    """What a table's own method is, beside each rival of its first claim, after the rival's bytes,
    as lines of the page; nothing for measures that are no accuracy, and of rivals that send more.
    """
    entry, protocol = found.entry, found.entry.protocols[0]
    if not entry.claims or "acc_" not in entry.claims[0].metric:
        return []
    claim = entry.claims[0]
    ours = found.lines(protocol, claim.better[0])
    both: dict[str, list[dict[int, float]]] = {}  # {rival: [our accuracy, its] by seed}
    ends: dict[str, float] = {}  # {rival: our last round that counts}
    for rival in claim.than:
        theirs = {
            s: by_bytes(line) for s, line in found.lines(protocol, rival).items() if s in ours
        }
        found_at = {s: at_equal(by_bytes(ours[s]), curve) for s, curve in theirs.items()}
        pairs = {s: pair for s, pair in found_at.items() if pair is not None}
        both[rival] = [{s: pair[i] for s, pair in pairs.items()} for i in (0, 1)]
        rounds = {
            s: dict(zip(by_bytes(ours[s]), points(ours[s], "curve"), strict=True)) for s in theirs
        }
        ends[rival] = mean([at(rounds[s], max(curve)) for s, curve in theirs.items()]) or 0.0
    gaps = {rival: paired(*sides) for rival, sides in both.items()}
    known = corrected({rival: gap for rival, gap in gaps.items() if gap is not None})
    if not known:
        return []
    names = {row.key: row.name for row in entry.rows}
    own = names[claim.better[0]]
    head = ["rival", f"{own} until round", own, "rival's accuracy", f"{own} less the rival", "p"]
    cells = [
        [
            names[rival],
            f"{ends[rival]:.1f}",
            *(per_cent(mean([*side.values()])) for side in both[rival]),
            points_of(gap),
            gap.p_words.removeprefix("p ") or MISSING,
        ]
        for rival, gap in known.items()
    ]
    seeds = next(iter(known.values())).n
    said = f"At equal bytes, accuracies in per cent, differences in points, {seeds} seed(s):\n"
    return [said, f"{markdown(head, cells)}\n"]


def text(
    tables: Sequence[Shown],
    drawn: Sequence[Sequence[Picture]],
    others: Sequence[Shown] = (),
) -> str:
    """The page. drawn: each table's pictures; others: what has lines and is not yet a table."""
    out = [HEAD]
    if others:
        names = ", ".join(f"{one.found.entry.id} ({one.plan.scale})" for one in others)
        out.append(f"With lines, not yet a table (fewer than half of the rows are run): {names}.\n")
    for one, own in zip(tables, drawn, strict=True):
        entry, made = one.found.entry, one.plan
        out.append(f"## {entry.id}, scale {made.scale}\n")
        out.append(f"```\n{printed(one.found, ())}\n```\n")
        out += equal_bytes(one.found)
        if one.choices:
            done, whole = one.grid
            said = f"Grids at seed 0: {done} of {whole} runs."
            if one.halved:
                said += (
                    f" Halved (every point for 1/{RUNGS[0]} of the rounds, the best 1/{ETA} of "
                    f"them for 1/{RUNGS[1]}, the best 1/{RUNGS[0]} to the end): "
                    f"{', '.join(dict.fromkeys(one.halved))}."
                )
            out.append(f"{said} Best points:\n")
            out += [f"- {choice.words}" for choice in one.choices]
            out.append("")
        out += [f"![{p.alt}](pictures/{p.name}.png)\n" for p in own]
    return "\n".join(out if tables else [HEAD + NOTHING]).rstrip() + "\n"


def board_text(lines: Sequence[Line]) -> str:
    """The page of the board."""
    rows = [*board(lines, LINES, ENTRIES.values())]
    return f"{BOARD}\n{markdown(HEADS, rows, texts=2)}\n"


def accuracies(found: Table, protocol: Protocol) -> list[Number]:
    """The number of every row that its claims are about, if all rows that the paper prints have it
    for three seeds, as an accuracy.
    """
    measure = found.entry.headline(protocol)
    own = [n for n in found.numbers_of(protocol, measure) if n.published is not None]
    here = [number for number in own if len(number.values) >= SEEDS]
    return here if "acc" in measure[0] and len(here) >= max(2, len(own) - 1) else []


def measured_and_published(tables: Sequence[Shown]) -> Picture:
    """Every table in whose protocol each row has a line for three seeds: what the paper prints, and
    what was measured here.
    """
    grid = []
    for one in tables:
        for protocol in one.found.entry.protocols:
            numbers = accuracies(one.found, protocol)
            rows = [
                (
                    n.wanted.row.name,
                    [_percent(n, v) for v in n.values.values()],
                    _percent(n, n.published),
                )
                for n in numbers
            ]
            if rows:
                grid.append((f"{one.found.entry.id}: {protocol.name}", "test accuracy (%)", rows))
    title = "Published beside measured"
    return Picture("measured_and_published", title, f"{title}: {len(grid)} protocol(s)", dots(grid))


def _percent(number: Number, value: float | None) -> float:
    return (100.0 if "fraction" in number.wanted.metric else 1.0) * (value or 0.0)


def main() -> None:
    """Write the page and its pictures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--lines", type=Path, default=LINES, help=f"folder with {NAME}")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of page and pictures")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    lines = read(options.lines / NAME)
    found = list(shown(lines, LINES, ENTRIES.values()))
    tables, others = [t for t in found if t.whole], [t for t in found if not t.whole]
    drawn = [pictures(one.found) for one in tables]
    for own in drawn:
        save_pictures(own, options.out / "pictures", ["png"])
    if options.out == RESULTS:
        save_pictures([measured_and_published(found)], RESULTS.parent / "pictures")
    for name, page in (
        ("tables", text(tables, drawn, others)),
        ("board", board_text(lines)),
    ):
        file = options.out / f"{name}.md"
        file.write_text(page, encoding="utf-8")
        print(file)


if __name__ == "__main__":
    main()
