"""docs/results/NAME.md of every paper and study, board.md and README.md (from README.md.in), from
the lines of runs; and README's picture, docs/pictures/measured_and_published.png.

A page has no table: `fedloom paper NAME --show --out docs/results/papers` prints each from the same
lines. What stands above the claims, and beside them, is written by hand, words/NAME.md.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedloom.core.curves import at, at_equal
from fedloom.report.curve_data import mean
from fedloom.report.statistics import Paired, corrected
from fedloom.report.style import Picture
from fedloom.report.tables import MISSING, fixed

from ..board import HEADS, MeasuredTable, board, measured_tables
from ..catalogue import ENTRIES, TITLES, entries_of
from ..columns import gap_text
from ..entry import Entry, Protocol
from ..figures import Dots, dots, pictures
from ..lines import evidence
from ..measure import base_of
from ..schedule import read_items
from ..series import points
from ..study_measures import by_bytes
from ..table import Table
from ..verdicts import NO_LINES, WORDS, JudgedClaim, Reason
from .fill import LINES, PLAN, RESULTS, fill
from .reruns import markdown, section
from .what_was_run import what_was_run

MADE = "<!-- Made by `nox -s results` from papers/lines.jsonl. -->\n\n"
OWN = (
    "<!-- Made by `nox -s results` from lines and from words/{}.md: write there, not here. -->\n\n"
)
WITHOUT = ("command only", "no runs")  # the board's states without lines
CLAIMS = ("what the paper says", "of", "verdict", "what it is on")
BESIDE = "each method less the first one, in points of accuracy, published beside measured"


def equal_bytes(one: MeasuredTable) -> list[str]:
    """What a table's own method is, beside each rival of its first claim, after the rival's bytes,
    as lines of the page; nothing for measures that are no accuracy, and of rivals that send more.
    """
    table, entry, protocol = one.table, one.table.entry, one.table.entry.protocols[0]
    if not entry.claims or "acc_" not in entry.claims[0].metric:
        return []
    claim = entry.claims[0]
    ours = table.lines(protocol, claim.better[0])
    both: dict[str, dict[int, tuple[float, float]]] = {}  # {rival: {seed: our accuracy, its}}
    ends: dict[str, list[float | None]] = {}  # {rival: our last rounds that count}
    for rival in claim.than:
        both[rival], ends[rival] = {}, []
        for seed, line in table.lines(protocol, rival).items():
            our_curve, its_curve = by_bytes(ours[seed]) if seed in ours else {}, by_bytes(line)
            if our_curve and (pair := at_equal(our_curve, its_curve)) is not None:
                both[rival][seed] = pair
                rounds = dict(zip(our_curve, points(ours[seed], "curve"), strict=True))
                ends[rival].append(at(rounds, max(its_curve)))
    sides = {rival: [*zip(*pairs.values(), strict=True)] for rival, pairs in both.items() if pairs}
    gaps = {
        rival: Paired.of([ours - theirs for ours, theirs in pairs.values()])
        for rival, pairs in both.items()
    }
    tested = corrected({rival: gap for rival, gap in gaps.items() if gap is not None})
    if not tested:
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
        for rival, gap in tested.items()
    ]
    seeds = next(iter(tested.values())).n
    caption = f"At equal bytes, {entry.id}, scale {one.plan.scale}, {seeds} seeds, accuracy in %:\n"
    return [caption, f"{markdown(head, cells)}\n"]


def words(name: str) -> str:
    """What is written by hand on a page, its numbers filled in."""
    return fill((RESULTS / "words" / f"{name}.md").read_text("utf-8"))


def text(name: str, tables: Sequence[MeasuredTable], by_id: Mapping[str, Sequence[Picture]]) -> str:
    """A page of one screen: its headline claim first. by_id: {table's id: its pictures} of those of
    which at least half of the rows have all seeds.
    """
    paper_tables, is_study = [one.table for one in tables], tables[0].table.entry.study
    intro, rows = words(name), claims(name, paper_tables)
    claim_table = f"{markdown(CLAIMS, rows, 4)}\n" if rows else ""
    if "{claims}" in intro:
        out = [f"{MADE}{intro.replace('{claims}', claim_table.strip())}"]
    else:
        out = [f"{OWN.format(name)}{intro}", "## Claims\n" * bool(rows), claim_table]
    out += [undecidable(paper_tables)]
    if any(overview(one) for one in tables if one.table.entry.id in by_id):
        out.append(f"![{TITLES[name]}: {BESIDE}.](pictures/{name}.png)\n")
    out += picture_links([p for each in by_id.values() for p in each if p.name not in intro])
    if not is_study:
        out += [part for one in tables if one.table.entry.id in by_id for part in equal_bytes(one)]
    out += [*section(name), "## What was run\n", *what_was_run(tables)]
    return "\n".join(part for part in out if part).rstrip() + "\n"


def picture_links(images: Sequence[Picture]) -> list[str]:
    """Pictures: one, or several in a part that is opened."""
    links = [f"![{p.alt.partition(':')[0]}](pictures/{p.name}.png)\n" for p in images]
    if len(links) < 2:
        return links
    return ['<details markdown="1"><summary>Pictures</summary>\n', *links, "</details>\n"]


def claims(name: str, tables: Sequence[Table]) -> list[tuple[str, ...]]:
    """Every claim in each protocol of which a comparison was tested, as cells below CLAIMS: what
    the paper is about first, also where one seed or nothing of it has lines.
    """
    results = [(result, one) for one in tables for result in one.claims]
    first = [(j, one) for j, one in results if j.claim.headline]
    rest = [(j, one) for j, one in results if not j.claim.headline]
    rows = _rows(first, one_seed_too=True)
    if not rows:
        heads = [(e, c) for e in entries_of(name) for c in e.claims if c.headline]
        rows = [(c.text, e.id, NO_LINES, "") for e, c in heads]
    return [*rows, *_rows(rest)]


_SIZE = re.compile(r"(.*?(?:, size| at| of size| at size)) ([\d./]+|mean)")


class _Part(NamedTuple):
    """What one claim says in one protocol, of those that make a row. at: the size at its end."""

    at: str
    where: str
    text: str


def _tested(reason: Reason) -> bool:
    """Whether a comparison has several seeds, without which nothing is decided."""
    return any(one.gap is not None and one.gap.n > 1 for one in reason.measured)


def _rows(
    results: Sequence[tuple[JudgedClaim, Table]], one_seed_too: bool = False
) -> list[tuple[str, ...]]:
    """A row for each claim with lines; claims of one table that differ in nothing but the protocol
    or the size at their end, and have one verdict, share one.
    """
    parts_by_key: dict[tuple[str, str, str], list[_Part]] = {}
    for result, source in results:
        for reason in (r for r in result.reasons if r.verdict and r.measured):
            if not (one_seed_too or _tested(reason)):
                continue
            size = _SIZE.fullmatch(result.claim.text)
            words, at = size.groups() if size else (result.claim.text, "")
            at_paper_scale = source.plan.scale == "paper" and not source.entry.study
            table = source.entry.id + (", the paper's scale" if at_paper_scale else "")
            key = (words, table, WORDS[reason.verdict or "not measured"])
            part = _Part(at, reason.where, _evidence_text(result, reason, source))
            parts_by_key.setdefault(key, []).append(part)
    return [(*_row(*key, parts),) for key, parts in parts_by_key.items()]


def _row(words: str, table: str, verdict: str, parts: Sequence[_Part]) -> tuple[str, ...]:
    """The cells of a row: a part that is not alone has its size and its protocol before it."""
    protocols = [*dict.fromkeys(part.where for part in parts)]
    sizes = [*dict.fromkeys(part.at for part in parts if part.at)]
    texts = []
    for part in parts:
        labels = [part.at] * (len(sizes) > 1) + [part.where] * (len(protocols) > 1)
        texts.append(f"{', '.join(labels)}: {part.text}" if labels else part.text)
    text = f"{words} {', '.join(sizes)}" if sizes else words
    return text, ", ".join([table, *protocols]), verdict, _shorter("; ".join(texts))


def _shorter(text: str) -> str:
    """Of several differences of equally many seeds the seeds once, at the end; p by Holm where it
    is another one.

    >>> _shorter("A 2 less B 1 is +1, p 0.1 (by Holm 0.1), 3 seeds; A 2 less C 3 is -1, 3 seeds")
    'A 2 less B 1 is +1, p 0.1; A 2 less C 3 is -1; 3 seeds'
    """
    text = re.sub(r"p ([<.\d ]+) \(by Holm \1\)", r"p \1", text)
    counts = re.findall(r", (\d+ seeds|one seed, no test)", text)
    if {*counts} == {"one seed, no test"}:  # of which none can be clear
        text = re.sub(r"0 of \d+ clear; hardest: ", "", text)
    if len(counts) < 2 or len({*counts}) > 1:
        return text
    return f"{text.replace(f', {counts[0]}', '')}; {counts[0]}"


def _evidence_text(result: JudgedClaim, reason: Reason, table: Table) -> str:
    """The numbers of a verdict; of a paper's headline those of every comparison."""
    every = result.claim.headline and not table.entry.study
    more = [one.words for one in reason.measured if every and one is not reason.hardest]
    return "; ".join([reason.words, *more])


def undecidable(tables: Sequence[Table]) -> str:
    """How many claims of these tables have no lines in a protocol, or those of one seed, as a
    paragraph; "" without any.
    """
    none, one_seed = Counter[str](), Counter[str]()
    for one in tables:
        for claim, reason in ((j.claim, r) for j in one.claims for r in j.reasons if r.verdict):
            if not reason.measured:
                none[one.entry.id] += 1
            elif not (claim.headline or _tested(reason)):
                one_seed[one.entry.id] += 1
    kinds = {"have no lines": none, "have one seed, which decides nothing": one_seed}
    texts = [
        f"{what}: " + ", ".join(f"{name} ({count})" for name, count in counts.items())
        for what, counts in kinds.items()
        if counts
    ]
    return f"Sentences that in a protocol {'; that '.join(texts)}.\n" if texts else ""


def overview(one: MeasuredTable) -> list[tuple[str, str, Dots]]:
    """A panel for every protocol: how many points of accuracy the rows with all seeds that the
    paper prints are above the base, each seed's here and the paper's. At a reduced scale accuracies
    are lower, so that only differences compare.
    """
    entry, out = one.table.entry, list[tuple[str, str, Dots]]()
    for protocol in entry.protocols:
        measure = entry.headline(protocol)
        numbers = {
            n.quantity.row.name: n
            for n in one.table.numbers_of(protocol, measure)
            if n.published is not None and len(n.values) >= entry.seeds
        }
        base = numbers.pop(base_of(entry).name, None)
        if base is None or not numbers or "acc" not in measure[0]:
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
            for name, n in numbers.items()
        ]
        words = f"less {base.quantity.row.name}, points of accuracy"
        scale = ", its scale" if one.table.plan.scale == "paper" and not entry.study else ""
        out.append((_panel(entry, protocol) + scale, words, rows))
    return out


def _panel(entry: Entry, protocol: Protocol) -> str:
    """A panel's title, as "FedSMOO, Table 8: CIFAR-10"."""
    paper = TITLES[entry.paper].partition(" ")[0]
    figure = entry.name.startswith("fig")
    name = f"Figure {entry.name[3:]}" if figure else f"Table {entry.name}"
    return f"{paper}, {name}: {protocol.dataset}"


def measured_and_published(tables: Sequence[MeasuredTable], name: str) -> list[Picture]:
    """The picture of some tables, if there is anything to be seen. A table that has runs at its
    paper's scale is seen at that alone.
    """
    at_paper = {t.table.entry.id for t in tables if t.table.plan.scale == "paper" and overview(t)}
    seen = [t for t in tables if t.table.plan.scale == "paper" or t.table.entry.id not in at_paper]
    grid = [panel for one in seen for panel in overview(one)]
    return [Picture(name, BESIDE, f"{BESIDE}.", dots(grid))] if grid else []


class Results(NamedTuple):
    """What the lines make: {name: page}, and the pictures of each."""

    pages: dict[str, str]
    pictures: dict[str, list[Picture]]


def make_results(names: Sequence[str] = ()) -> Results:
    """The pages and pictures of papers and studies; of all with board, README and its picture."""
    lines = evidence(LINES)
    pages: dict[str, str] = {}
    images: dict[str, list[Picture]] = {}
    every: list[MeasuredTable] = []
    for name in names or TITLES:
        tables = list(measured_tables(lines, LINES, entries_of(name), items=read_items(PLAN)))
        every += tables
        if tables:
            best = [one for one in tables if one.whole or one.table.entry.study]
            by_id = {one.table.entry.id: pictures(one.table) for one in best}
            pages[name] = text(name, tables, by_id)
            overviews = measured_and_published(best, name)
            images[name] = [*overviews, *(picture for each in by_id.values() for picture in each)]
    if not names:
        cells = board(lines, every, ENTRIES.values())
        ran = [row for row in cells if row[2]]
        rest = {state: [id for id, kind, *_ in cells if kind == state] for state in WITHOUT}
        left = "\n".join(f"- *{state}*: {', '.join(ids)}" for state, ids in rest.items())
        pages["board"] = f"{MADE}{words('board')}\n{markdown(HEADS, ran, texts=2)}\n\n{left}\n"
        pages["README"] = fill((RESULTS / "README.md.in").read_text("utf-8"))
        name = "measured_and_published"
        images[name] = measured_and_published([one for one in every if one.whole], name)
    return Results(pages, images)
