"""docs/results/NAME.md of every paper and study, board.md and README.md (from README.md.in), from
the lines of runs; and README's picture, docs/pictures/measured_and_published.png.

`fedloom paper NAME --out docs/results/papers` runs a table and appends its lines; the same command
prints what a paper's page has of it. A table whose grids were run (--tune, --halving) is shown at
the best points. What stands above the claims is written by hand, words/NAME.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from fedloom.core.curves import at, at_equal
from fedloom.report.curve_data import mean
from fedloom.report.statistics import corrected, paired
from fedloom.report.style import Picture
from fedloom.report.tables import MISSING, fixed
from fedloom.study.tune import ETA, RUNGS

from ..board import HEADS, Shown, board, shown
from ..catalogue import ENTRIES, TITLES, entries_of
from ..columns import gap_text
from ..entry import Entry, Protocol
from ..figures import Dots, dots, pictures
from ..lines import evidence
from ..measure import base_of
from ..pages import page as printed
from ..schedule import read_items
from ..series import points
from ..study_measures import by_bytes
from ..study_tables import markdown, study_state, study_tables, tried
from ..table import Table
from ..verdicts import NO_LINES, WORDS, Judged
from .fill import LINES, RESULTS, fill
from .reruns import section

MADE = "<!-- Made by `nox -s results` from papers/lines.jsonl. -->\n\n"
OWN = (
    "<!-- Made by `nox -s results` from lines and from words/{}.md: write there, not here. -->\n\n"
)
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
    both: dict[str, dict[int, tuple[float, float]]] = {}  # {rival: {seed: our accuracy, its}}
    ends: dict[str, list[float | None]] = {}  # {rival: our last rounds that count}
    for rival in claim.than:
        both[rival], ends[rival] = {}, []
        for seed, line in found.lines(protocol, rival).items():
            own, its = by_bytes(ours[seed]) if seed in ours else {}, by_bytes(line)
            if own and (pair := at_equal(own, its)) is not None:
                both[rival][seed] = pair
                rounds = dict(zip(own, points(ours[seed], "curve"), strict=True))
                ends[rival].append(at(rounds, max(its)))
    sides = {rival: [*zip(*pairs.values(), strict=True)] for rival, pairs in both.items() if pairs}
    gaps = {rival: paired(two[0], two[1]) for rival, two in sides.items()}
    known = corrected({rival: gap for rival, gap in gaps.items() if gap is not None})
    if not known:
        return []
    names = {row.key: row.name for row in entry.rows}
    name = names[claim.better[0]]
    head = ["rival", f"{name} until round", name, "rival's accuracy", f"{name} less the rival", "p"]
    cells = [
        [
            names[rival],
            f"{mean(ends[rival]):.1f}",
            *(fixed(100 * (mean(side) or 0.0), 2) for side in sides[rival]),
            gap_text(gap, 100),
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


def text(name: str, tables: Sequence[Shown], drawn: Mapping[str, Sequence[Picture]]) -> str:
    """A page: its headline claim first. drawn: {table's id: its pictures} of those that are shown
    whole; of the others the claims alone.
    """
    found, own = [one.found for one in tables], tables[0].found.entry.own
    written, rows = words(name), claims(name, found)
    said = f"{markdown(CLAIMS, rows, 4)}\n" if rows else ""
    if "{claims}" in written:
        out = [f"{MADE}{written.replace('{claims}', said.strip())}"]
    else:
        out = [f"{OWN.format(name)}{written}", "## Claims\n" * bool(rows), said]
    out += [without_lines(found)]
    if any(overview(one) for one in tables):
        out.append(f"![{TITLES[name]}: {BESIDE}.](pictures/{name}.png)\n")
    out += [*section(name), "## What was run\n", *(states if own else commands)(tables)]
    out.append("\n## All numbers\n")
    for one in (one for one in tables if one.found.entry.id in drawn):
        shown_as = numbers if own else whole
        out += shown_as(one, drawn[one.found.entry.id])
    return "\n".join(part for part in out if part).rstrip() + "\n"


def commands(tables: Sequence[Shown]) -> Iterator[str]:
    """What ran a paper's tables, and what was reduced."""
    reduced: dict[str, list[str]] = {}
    for one in tables:
        command = f"`fedloom paper {one.found.entry.id} --scale {one.plan.scale}`"
        why = one.found.entry.cpu if one.plan.scale == "cpu" else "at the paper's scale"
        reduced.setdefault(why, []).append(command)
    for why, said in reduced.items():
        yield f"- {', '.join(said)}: {why}."


def states(tables: Sequence[Shown]) -> Iterator[str]:
    """What there is of a study, and how many of its lines do not say which code made them."""
    yield from map(study_state, tables)
    lines = [
        line
        for one in tables
        for rows in one.found.own.values()
        for seeds in rows.values()
        for line in seeds.values()
    ]
    if unnamed := sum(not line.get("commit") for line in lines):
        yield (
            f"- {unnamed} of the {len(lines)} runs of this page are from before lines named a "
            "commit and a version; to be re-run."
        )


def claims(name: str, tables: Sequence[Table]) -> list[tuple[str, ...]]:
    """Every claim in each protocol of which a comparison has lines, as cells below CLAIMS: what the
    paper is about first, also where nothing of it has lines.
    """
    found = [(judged, one) for one in tables for judged in one.claims]
    first = [
        cells for judged, one in found if judged.claim.headline for cells in _rows(judged, one)
    ]
    heads = [(e, c) for e in entries_of(name) for c in e.claims if c.headline]
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
        own = of.plan.scale == "paper" and not of.entry.own
        place = f"{of.entry.id}, {reason.place}" + (", the paper's scale" if own else "")
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


def whole(one: Shown, drawn: Sequence[Picture]) -> list[str]:
    """All that is known of a paper's table, as `fedloom paper` prints it, and its pictures."""
    name = f"{one.found.entry.id}, scale {one.plan.scale}"
    out = [f'<details markdown="1"><summary>{name}</summary>\n']
    out += [f"```\n{printed(one.found, ())}\n```\n", *equal_bytes(one.found)]
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
        out += [*(f"- {choice.words}" for choice in one.choices[:-1])]
        out += [f"- {one.choices[-1].words}\n"]
    return [*out, *(f"![{p.alt}](pictures/{p.name}.png)\n" for p in drawn), "</details>\n"]


def numbers(one: Shown, drawn: Sequence[Picture]) -> list[str]:
    """All that is known of an entry of our own: its tables, its grids, its pictures."""
    entry = one.found.entry
    out = [
        f"### {entry.title[0].upper()}{entry.title[1:]}\n",
        *(f"{note}\n" for note in entry.notes),
    ]
    out += [f"{one_table}\n" for one_table in study_tables(one.found)]
    out += [f"What was tried at seed 0 ({entry.tuning}):\n", f"{tried(one)}\n"] * bool(one.choices)
    return [*out, *(f"![{p.alt}](pictures/{p.name}.png)\n" for p in drawn)]


def overview(one: Shown) -> list[tuple[str, str, Dots]]:
    """A panel for every protocol: how many points of accuracy the rows with all seeds that the
    paper prints are above the base, each seed's here and the paper's. At a reduced scale accuracies
    are lower, so that only differences compare.
    """
    entry, out = one.found.entry, list[tuple[str, str, Dots]]()
    for protocol in entry.protocols:
        measure = entry.headline(protocol)
        known = {
            n.wanted.row.name: n
            for n in one.found.numbers_of(protocol, measure)
            if n.published is not None and len(n.values) >= entry.seeds
        }
        base = known.pop(base_of(entry).name, None)
        if base is None or not known or "acc" not in measure[0]:
            continue
        points = 100.0 if "fraction" in measure[0] else 1.0
        rows = [
            (
                name,
                [
                    points * (n.compared[s] - base.compared[s])
                    for s in n.compared
                    if s in base.compared
                ],
                points * ((n.published or 0.0) - (base.published or 0.0)),
            )
            for name, n in known.items()
        ]
        words = f"less {base.wanted.row.name}, points of accuracy"
        out.append((_panel(entry, protocol), words, rows))
    return out


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


class Made(NamedTuple):
    """What the lines make: {name: page}, and the pictures of each."""

    pages: dict[str, str]
    pictures: dict[str, list[Picture]]


def made(names: Sequence[str] = ()) -> Made:
    """The pages and pictures of papers and studies; of all with board, README and its picture."""
    lines = evidence(LINES)
    pages: dict[str, str] = {}
    drawn: dict[str, list[Picture]] = {}
    every: list[Shown] = []
    for name in names or TITLES:
        tables = list(
            shown(lines, LINES, entries_of(name), items=read_items(RESULTS / "plan.toml"))
        )
        every += tables
        if tables:
            best = [one for one in tables if one.whole or one.found.entry.own]
            own = {one.found.entry.id: pictures(one.found) for one in best}
            pages[name] = text(name, tables, own)
            beside = measured_and_published(best, name)
            drawn[name] = [*beside, *(picture for each in own.values() for picture in each)]
    if not names:
        cells = board(lines, every, ENTRIES.values())
        pages["board"] = f"{MADE}{words('board')}\n{markdown(HEADS, cells, texts=2)}\n"
        pages["README"] = fill((RESULTS / "README.md.in").read_text("utf-8"))
        name = "measured_and_published"
        drawn[name] = measured_and_published([one for one in every if one.whole], name)
    return Made(pages, drawn)
