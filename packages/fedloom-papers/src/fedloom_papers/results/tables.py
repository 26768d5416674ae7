"""docs/results/PAPER.md, board.md and README.md (from README.md.in): the papers' tables as far as
papers/lines.jsonl has runs; and README's picture, docs/pictures/measured_and_published.png.

`fedloom paper NAME --out docs/results/papers` runs a table and appends its lines; the same command
prints what a page has of it. A table whose grids were run (--tune, --halving) is shown at the best
points. What stands above the claims is written by hand, words/PAPER.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedloom.core.curves import at, at_equal
from fedloom.report.curve_data import mean
from fedloom.report.statistics import corrected, paired
from fedloom.report.style import Picture
from fedloom.report.tables import MISSING

from ..board import HEADS, SEEDS, Shown, board, shown
from ..catalogue import ENTRIES, PAPERS, TITLES, Entry, Protocol, entries_of
from ..figures import Dots, dots, pictures
from ..lines import NAME, Line, read
from ..measure import base_of
from ..numbers import Number
from ..pages import page as printed
from ..series import points
from ..table import Table
from ..tune import ETA, RUNGS
from ..verdicts import NO_LINES, WORDS, Judged
from .fill import fill
from .page import per_cent, points_of
from .page import table as markdown
from .reruns import section
from .study import LINES, RESULTS, by_bytes

MADE = "<!-- Made by `make results` from papers/lines.jsonl. -->\n\n"
CLAIMS = ("what the paper says", "of", "verdict", "what it is on")
WIDTH = "100"  # columns of what `fedloom paper` prints
BESIDE = "each method less the first one, in points of accuracy, published beside measured"


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
    gaps = {rival: paired(sides[0], sides[1]) for rival, sides in both.items()}
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
    """What is written by hand on a page, its numbers filled in."""
    return fill((RESULTS / "words" / f"{name}.md").read_text("utf-8"))


def text(paper: str, tables: Sequence[Shown], drawn: Mapping[str, Sequence[Picture]]) -> str:
    """A paper's page: its headline claim first. drawn: {table's id: its pictures} of those that are
    shown whole; of the others the claims alone.
    """
    written = words(paper)
    said = f"{markdown(CLAIMS, claims(paper, [one.found for one in tables]), 4)}\n"
    out = [f"{MADE}{written.replace('{claims}', said.strip())}"]
    out += [without_lines([one.found for one in tables])]
    if any(overview(one) for one in tables):
        out.append(f"![{TITLES[paper]}: {BESIDE}.](pictures/{paper}.png)\n")
    out += section(paper)
    out.append("## What was run\n")
    reduced: dict[str, list[str]] = {}
    for one in tables:
        command = f"`fedloom paper {one.found.entry.id} --scale {one.plan.scale}`"
        why = one.found.entry.cpu if one.plan.scale == "cpu" else "at the paper's scale"
        reduced.setdefault(why, []).append(command)
    out += [f"- {', '.join(commands)}: {why}." for why, commands in reduced.items()]
    out.append("\n## All numbers\n")
    for one in (one for one in tables if one.found.entry.id in drawn):
        own = drawn[one.found.entry.id]
        out += [f'<details markdown="1"><summary>{_name(one)}</summary>\n', *whole(one, own)]
        out.append("</details>\n")
    return "\n".join(out).rstrip() + "\n"


def claims(paper: str, tables: Sequence[Table]) -> list[tuple[str, ...]]:
    """Every claim in each protocol of which a comparison has lines, as cells below CLAIMS: what the
    paper is about first, also where nothing of it has lines.
    """
    found = [(judged, one) for one in tables for judged in one.claims]
    first = [
        cells for judged, one in found if judged.claim.headline for cells in _rows(judged, one)
    ]
    heads = [(e, c) for e in entries_of(paper) for c in e.claims if c.headline]
    if not first:
        first = [(c.text, e.id, NO_LINES, "") for e, c in heads]
    rest = [
        cells for judged, one in found if not judged.claim.headline for cells in _rows(judged, one)
    ]
    return [*first, *rest]


def _rows(judged: Judged, of: Table) -> list[tuple[str, ...]]:
    """A claim in each protocol with lines; of a headline every comparison is shown."""
    rows: list[tuple[str, ...]] = []
    for reason in (r for r in judged.reasons if r.verdict and r.known):
        said = reason.words
        if judged.claim.headline and len(reason.known) > 1:
            more = [one.words for one in reason.known if one is not reason.hardest]
            said = "; ".join([said, *more])
        place = f"{of.entry.id}, {reason.place}"
        rows.append((judged.claim.text, place, WORDS[reason.verdict or "not measured"], said))
    return rows


def without_lines(tables: Sequence[Table]) -> str:
    """The claims of these tables that nothing decides, as a paragraph; "" without any."""
    left = {
        one.entry.id: sum(
            not r.known and r.verdict is not None for j in one.claims for r in j.reasons
        )
        for one in tables
    }
    said = ", ".join(f"{name} ({count})" for name, count in left.items() if count)
    if not said:
        return ""
    return f"Sentences that have no lines in a protocol, and are not decided there: {said}.\n"


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


def less_base(found: Table, protocol: Protocol) -> list[tuple[str, list[float], float]]:
    """(row, each seed here, in the paper): how many points of accuracy every row is above the base,
    of those with three seeds that the paper prints. At a reduced scale accuracies are lower, so
    that only differences compare.
    """
    measure = found.entry.headline(protocol)
    base = base_of(found.entry)
    known = [
        n
        for n in found.numbers_of(protocol, measure)
        if n.published is not None and len(n.values) >= SEEDS
    ]
    own = next((n for n in known if n.wanted.row.key == base.key), None)
    if "acc" not in measure[0] or own is None:
        return []
    return [
        (
            n.wanted.row.name,
            [_percent(n, n.compared[s] - own.compared[s]) for s in n.compared if s in own.compared],
            _percent(n, (n.published or 0.0) - (own.published or 0.0)),
        )
        for n in known
        if n is not own
    ]


def overview(one: Shown) -> list[tuple[str, str, Dots]]:
    """A panel for every protocol with rows of three seeds."""
    base = base_of(one.found.entry).name
    return [
        (_panel(one.found.entry, protocol), f"less {base}, points of accuracy", rows)
        for protocol in one.found.entry.protocols
        if (rows := less_base(one.found, protocol))
    ]


def _panel(entry: Entry, protocol: Protocol) -> str:
    """A panel's title, as "FedSMOO, Table 8: CIFAR-10"."""
    paper = TITLES[entry.paper].partition(" ")[0]
    figure = entry.name.startswith("fig")
    name = f"Figure {entry.name[3:]}" if figure else f"Table {entry.name}"
    return f"{paper}, {name}: {protocol.dataset}"


def measured_and_published(tables: Sequence[Shown], name: str) -> list[Picture]:
    """The picture of some tables, if there is anything to be seen."""
    grid = [panel for one in tables for panel in overview(one)]
    return [Picture(name, BESIDE, f"{BESIDE}.", dots(grid))] if grid else []


def _percent(number: Number, value: float) -> float:
    return (100.0 if "fraction" in number.wanted.metric else 1.0) * value


@dataclass(frozen=True)
class Made:
    """What the lines make: {name: page}, and the pictures of each."""

    pages: dict[str, str]
    pictures: dict[str, list[Picture]]


def made(folder: Path = LINES) -> Made:
    """Every page and picture from the lines of a folder."""
    lines = read(folder / NAME)
    found = list(shown(lines, LINES, ENTRIES.values()))
    pages = {"board": board_text(lines)}
    pages["README"] = fill((RESULTS / "README.md.in").read_text("utf-8"))
    drawn: dict[str, list[Picture]] = {}
    for paper in PAPERS:
        tables = [one for one in found if one.found.entry.paper == paper]
        if tables:
            own = {one.found.entry.id: pictures(one.found) for one in tables if one.whole}
            pages[paper] = text(paper, tables, own)
            best = [one for one in tables if one.whole]
            drawn[paper] = [
                *measured_and_published(best, paper),
                *(p for v in own.values() for p in v),
            ]
    drawn["measured_and_published"] = measured_and_published(
        [one for one in found if one.whole], "measured_and_published"
    )
    return Made(pages, drawn)
