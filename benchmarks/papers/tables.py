"""docs/results/PAPER.md and board.md: the papers' tables as far as papers/lines.jsonl has runs; and
README's picture of them, docs/pictures/measured_and_published.png.

    python benchmarks/papers/tables.py [--lines FOLDER] [--out FOLDER]

`fedloom paper NAME --out docs/results/papers` runs a table and appends its lines; the same command
prints what a page has of it. A table whose grids were run (--tune, --halving) is shown at the best
points. What stands above the claims is written by hand, words/PAPER.md.
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
from fedloom.papers import ENTRIES, PAPERS, TITLES, Protocol
from fedloom.papers.board import HEADS, SEEDS, Shown, board, shown
from fedloom.papers.figures import Dots, dots, pictures
from fedloom.papers.lines import NAME, Line, read
from fedloom.papers.numbers import Number
from fedloom.papers.series import points
from fedloom.papers.table import Table
from fedloom.papers.tune import ETA, RUNGS
from fedloom.report.curve_data import mean
from fedloom.report.statistics import corrected, paired
from fedloom.report.style import Picture, save_pictures

MADE = "<!-- Made by `python benchmarks/papers/tables.py` from papers/lines.jsonl. -->\n\n"
CLAIMS = ("what the paper says", "of", "verdict", "what it is on")
VERDICTS = {"holds": "clear", "does not hold": "the opposite is clear"}


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


def words(name: str) -> str:
    """What is written by hand on a page."""
    return (RESULTS / "words" / f"{name}.md").read_text("utf-8")


def text(
    paper: str,
    tables: Sequence[Shown],
    drawn: Sequence[Sequence[Picture]],
    others: Sequence[Shown] = (),
) -> str:
    """A paper's page. drawn: each table's pictures; others: what has lines and is not yet a table,
    since it shares runs with one.
    """
    out = [f"{MADE}{words(paper)}"]
    if any(overview(one) for one in tables):
        out.append(f"![{TITLES[paper]}: measured beside published.](pictures/{paper}.png)\n")
    claims = [row for one in tables for row in claimed(one.found)]
    if claims:
        out.append(f"## What the paper says, and what was seen\n\n{markdown(CLAIMS, claims, 4)}\n")
    out.append("## What was run\n")
    reduced: dict[str, list[str]] = {}
    for one in tables:
        command = f"`fedloom paper {one.found.entry.id} --scale {one.plan.scale}`"
        why = one.found.entry.cpu if one.plan.scale == "cpu" else "at the paper's scale"
        reduced.setdefault(why, []).append(command)
    out += [f"- {', '.join(commands)}: {why}." for why, commands in reduced.items()]
    if others:
        names = ", ".join(one.found.entry.id for one in others)
        out.append(f"- Less than half of the rows are run of {names}.")
    out.append("\n## All numbers\n")
    for one, own in zip(tables, drawn, strict=True):
        out += [f'<details markdown="1"><summary>{_name(one)}</summary>\n', *whole(one, own)]
        out.append("</details>\n")
    return "\n".join(out).rstrip() + "\n"


def claimed(found: Table) -> list[tuple[str, ...]]:
    """The claims of a table in each protocol that was run, as cells below CLAIMS."""
    return [
        (
            judged.claim.text,
            f"{found.entry.id}, {r.place}",
            VERDICTS.get(r.verdict, r.verdict),
            r.words,
        )
        for judged in found.claims
        for r in judged.reasons
        if r.verdict not in (None, "not measured")
    ]


def _name(one: Shown) -> str:
    return f"{one.found.entry.id}, scale {one.plan.scale}"


def whole(one: Shown, drawn: Sequence[Picture]) -> list[str]:
    """All that is known of a table, as `fedloom paper` prints it, its grids, and its pictures."""
    out = [f"```\n{printed(one.found, ())}\n```\n", *equal_bytes(one.found)]
    if one.choices:
        done, count = one.grid
        said = f"Grids at seed 0: {done} of {count} runs."
        if one.halved:
            said += (
                f" Halved (every point for 1/{RUNGS[0]} of the rounds, the best 1/{ETA} of "
                f"them for 1/{RUNGS[1]}, the best 1/{RUNGS[0]} to the end): "
                f"{', '.join(dict.fromkeys(one.halved))}."
            )
        out.append(f"{said} Best points:\n")
        out += [f"- {choice.words}" for choice in one.choices]
        out.append("")
    return out + [f"![{p.alt}](pictures/{p.name}.png)\n" for p in drawn]


def board_text(lines: Sequence[Line]) -> str:
    """The page of the board."""
    rows = [*board(lines, LINES, ENTRIES.values())]
    return f"{MADE}{words('board')}\n{markdown(HEADS, rows, texts=2)}\n"


def accuracies(found: Table, protocol: Protocol) -> list[Number]:
    """The number of every row that its claims are about, if all rows that the paper prints have it
    for three seeds, as an accuracy.
    """
    measure = found.entry.headline(protocol)
    own = [n for n in found.numbers_of(protocol, measure) if n.published is not None]
    here = [number for number in own if len(number.values) >= SEEDS]
    return here if "acc" in measure[0] and len(here) >= max(2, len(own) - 1) else []


def overview(one: Shown) -> list[tuple[str, str, Dots]]:
    """A panel for every protocol in which each row has a line for three seeds: what the paper
    prints, and what was measured here.
    """
    grid = []
    for protocol in one.found.entry.protocols:
        rows = [
            (
                n.wanted.row.name,
                [_percent(n, v) for v in n.values.values()],
                _percent(n, n.published),
            )
            for n in accuracies(one.found, protocol)
        ]
        if rows:
            grid.append((f"{one.found.entry.id}: {protocol.name}", "test accuracy (%)", rows))
    return grid


def measured_and_published(tables: Sequence[Shown], name: str) -> list[Picture]:
    """The picture of some tables, if there is anything to be seen."""
    grid = [panel for one in tables for panel in overview(one)]
    title = "Published beside measured"
    said = f"{title}: {len(grid)} protocol(s)"
    return [Picture(name, title, said, dots(grid))] if grid else []


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
    pages = {"board": board_text(lines)}
    for paper in PAPERS:
        tables = [t for t in found if t.whole and t.found.entry.paper == paper]
        others = [t for t in found if not t.whole and t.found.entry.paper == paper]
        if tables:
            drawn = [pictures(one.found) for one in tables]
            pages[paper] = text(paper, tables, drawn, others)
            every = [*measured_and_published(tables, paper), *(p for own in drawn for p in own)]
            save_pictures(every, options.out / "pictures", ["png"])
    if options.out == RESULTS:
        picture = measured_and_published(found, "measured_and_published")
        save_pictures(picture, RESULTS.parent / "pictures")
    for name, page in pages.items():
        file = options.out / f"{name}.md"
        file.write_text(page, encoding="utf-8")
        print(file)


if __name__ == "__main__":
    main()
