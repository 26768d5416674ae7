"""docs/results/tables.md and board.md: the papers' tables as far as papers/lines.jsonl has runs.

    python benchmarks/papers/tables.py [--lines FOLDER] [--out FOLDER]

`fedloom paper NAME --out docs/results/papers` runs a table and appends its lines; the same command
prints what this page has of it. A table whose grids were run (--tune, --halving) is shown at the
best points.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from page import MISSING, per_cent, points_of
from page import table as markdown
from study import LINES, RESULTS, by_bytes, sent_by

from fedloom.cli.paper_pages import page as printed
from fedloom.core.curves import at, at_equal
from fedloom.papers import ENTRIES
from fedloom.papers.board import HEADS, Shown, board, shown
from fedloom.papers.figures import pictures
from fedloom.papers.lines import NAME, Line, latest, read
from fedloom.papers.series import points
from fedloom.papers.table import Table
from fedloom.papers.tune import ETA, RUNGS
from fedloom.report.curve_data import mean
from fedloom.report.statistics import Paired, corrected, paired
from fedloom.report.style import Picture, save_pictures

HEAD = """<!-- Made by `python benchmarks/papers/tables.py` from papers/lines.jsonl. -->

# The papers' tables

Measured beside published, as `fedloom paper NAME` prints it, from the lines in
`papers/lines.jsonl`: every finished run is one, with its settings, fedloom's version and commit.
[The papers' tables](../papers.md) says what scales, columns and verdicts mean.

- *here* is the mean after the last round, or at the round named, ± the standard deviation.
- *last tenth* is the mean of the last tenth of the evaluations: each verdict is on it.
- All rows of a table count with the seeds that all of them have. Differences are paired by seed and
  tested by Student's t; p is corrected by Holm for the rivals of a claim.
- The best point of a grid is the one with the highest test accuracy after the last round at seed 0,
  as in papers without a validation set. That is one of the seeds shown: the means are a little too
  high.
- *At equal bytes* a method is compared with each rival after as many bytes, up and down, as the
  rival sends in all: at the last tenth of the rival's evaluations, the method between its own
  evaluations on straight lines.
"""
NOTHING = "\nNo run has a line yet.\n"


@dataclass(frozen=True)
class Equal:
    """A method beside a rival at equal bytes, over the seeds that all rows have: both accuracies
    (shares), their difference, and the method's last round that counts.
    """

    rival: str
    ours: float
    theirs: float
    gap: Paired
    round: float


def equal_bytes(found: Table, lines: Sequence[Line]) -> list[Equal]:
    """What a table's own method is, beside each rival of its first claim, after the rival's bytes;
    nothing for measures that are no accuracy, and of rivals that send more.
    """
    entry, protocol = found.entry, found.entry.protocols[0]
    if not entry.claims or "acc_" not in entry.claims[0].metric:
        return []
    claim, seen = entry.claims[0], latest(lines)

    def runs(row: str) -> dict[int, Line]:
        places = {
            s: (found.plan.digests[protocol.name, row, s], s) for s in found.seeds[protocol.name]
        }
        return {s: seen[place] for s, place in places.items() if place in seen}

    names = {row.key: row.name for row in entry.rows}
    ours = runs(claim.better[0])
    own = {s: by_bytes(line) for s, line in ours.items()}
    equal: dict[str, dict[int, tuple[float, float]]] = {}
    ends: dict[str, float | None] = {}
    for rival in claim.than:
        theirs = {s: by_bytes(line) for s, line in runs(rival).items() if s in own}
        both = {s: at_equal(own[s], curve) for s, curve in theirs.items()}
        equal[rival] = {s: pair for s, pair in both.items() if pair is not None}
        ends[rival] = mean(
            [
                at({sent_by(ours[s])(t): float(t) for t in points(ours[s], "curve")}, max(curve))
                for s, curve in theirs.items()
            ]
        )
    gaps = {
        rival: paired(*({s: v[i] for s, v in pairs.items()} for i in (0, 1)))
        for rival, pairs in equal.items()
    }
    known = corrected({rival: gap for rival, gap in gaps.items() if gap is not None})
    return [
        Equal(names[rival], *_middles(equal[rival]), gap, ends[rival] or 0.0)
        for rival, gap in known.items()
    ]


def _middles(pairs: Mapping[int, tuple[float, float]]) -> tuple[float, float]:
    ours, theirs = (mean([pair[i] for pair in pairs.values()]) or 0.0 for i in (0, 1))
    return ours, theirs


def equal_text(found: Table, lines: Sequence[Line]) -> list[str]:
    """The comparison at equal bytes as lines of the page."""
    equal = equal_bytes(found, lines)
    if not equal:
        return []
    own = {row.key: row.name for row in found.entry.rows}[found.entry.claims[0].better[0]]
    head = ["rival", f"{own} until round", own, "rival's accuracy", f"{own} less the rival", "p"]
    cells = [
        [
            one.rival,
            f"{one.round:.1f}",
            per_cent(one.ours),
            per_cent(one.theirs),
            points_of(one.gap),
            one.gap.p_words.removeprefix("p ") or MISSING,
        ]
        for one in equal
    ]
    seeds = equal[0].gap.n
    said = f"At equal bytes, accuracies in per cent, differences in points, {seeds} seed(s):\n"
    return [said, f"{markdown(head, cells)}\n"]


def text(
    tables: Sequence[Shown],
    drawn: Sequence[Sequence[Picture]],
    lines: Sequence[Line] = (),
    others: Sequence[Shown] = (),
) -> str:
    """The page. drawn: the pictures of each table; lines: those of its runs; others: what has lines
    and is not yet a table.
    """
    out = [HEAD]
    if others:
        names = ", ".join(f"{one.found.entry.id} ({one.plan.scale})" for one in others)
        out.append(f"With lines, not yet a table (fewer than half of the rows are run): {names}.\n")
    for one, own in zip(tables, drawn, strict=True):
        entry, made = one.found.entry, one.plan
        out.append(f"## {entry.id}, scale {made.scale}\n")
        out.append(f"```\n{printed(one.found, ())}\n```\n")
        out += equal_text(one.found, lines)
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


BOARD = """<!-- Made by `python benchmarks/papers/tables.py` from papers/lines.jsonl. -->

# The board of the papers' tables

`fedloom papers --board` prints it, for every table and figure:

- *scale*: the paper's own, or reduced; *command only*: `fedloom paper NAME` runs it, and no run has
  a line yet; *no runs*: `fedloom paper NAME` compares without runs.
- *runs*: how many of three seeds' runs have a line.
- *hold*, *do not*, *undecided*: how many claims have this verdict ([one by one](tables.md),
  [what it means](../papers.md)); those of which nothing is measured are left out.
- *commit*: which made the newest line; +1: one other commit made lines, too.

"""


def board_text(lines: Sequence[Line]) -> str:
    """The page of the board."""
    rows = [one.cells for one in board(lines, LINES, ENTRIES.values())]
    return BOARD + markdown(HEADS, rows, texts=2) + "\n"


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
    drawn = [pictures(one.found, lines) for one in tables]
    for own in drawn:
        save_pictures(own, options.out / "pictures", ["png"])
    for name, page in (
        ("tables", text(tables, drawn, lines, others)),
        ("board", board_text(lines)),
    ):
        file = options.out / f"{name}.md"
        file.write_text(page, encoding="utf-8")
        print(file)


if __name__ == "__main__":
    main()
