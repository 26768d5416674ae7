"""Whether a sentence of a paper holds: the one place for tables, pages and the board.

A sentence says in each protocol that a row is above others. Those are its family for Holm: every
comparison that the sentence names there, also one without lines or with other settings, which is
not decided and counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from fedloom.core.curves import LEAST
from fedloom.errors import ConfigError, did_you_mean
from fedloom.report.curve_data import mean
from fedloom.report.statistics import Paired, corrected, paired

from .entry import Claim, Entry, Protocol, Row
from .measure import LOWER
from .plan import Plan

if TYPE_CHECKING:
    from .table import Table

Verdict = Literal["holds", "does not hold", "undecided", "not measured"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
NO_LINES = "not decided: no lines"
WORDS: Mapping[Verdict, str] = {  # of the verdicts on one sentence, on pages
    "holds": "clear",
    "does not hold": "the opposite is clear",
    "undecided": "undecided",
    "not measured": NO_LINES,
}


@dataclass(frozen=True)
class Comparison:
    """A row beside another. gap: the row less the other, with p corrected for the sentence's
    family; None without lines of both. evaluations: how many the compared means are of, None
    where it is no mean over evaluations. margin: how far the row must be above; unequal: the
    settings of no method in which the rows differ, so that nothing is decided.
    """

    row: Row
    other: Row
    ours: float | None
    theirs: float | None
    gap: Paired | None
    lower: bool = False
    evaluations: int | None = None
    margin: float = 0.0
    unequal: str = ""

    @property
    def tested(self) -> Paired | None:
        """What is tested against zero."""
        return self.gap.less(self.margin) if self.gap and self.margin else self.gap

    @property
    def verdict(self) -> Verdict:
        """Whether the row is better."""
        return "not measured" if self.unequal else verdict_on(self.tested, self.lower)

    @property
    def words(self) -> str:
        """Both values, their difference, its p, and on how few evaluations it stands."""
        if self.gap is None or self.tested is None:
            return f"{self.row.name} and {self.other.name}: {NO_LINES}"
        gap, p = self.gap, self.tested.p_words
        if self.margin:
            p = p.replace("p ", f"p against {self.margin:g} ", 1)
        p = f"{p}, {gap.n} seeds" if p else "one seed, no test"
        better = " (lower is better)" if self.lower else ""
        few = self.evaluations is not None and self.evaluations < LEAST
        on = f", on {self.evaluations} evaluation{'s' * (self.evaluations != 1)}" if few else ""
        theirs = f"{self.theirs:.4g}"  # a number has itself as its name
        theirs = theirs if self.other.name == theirs else f"{self.other.name} {theirs}"
        both = f"{self.row.name} {self.ours:.4g} less {theirs}"
        apart = f", not decided: {self.unequal}" if self.unequal else ""
        return f"{both} is {gap.mean:+.4g}{better}, {p}{on}{apart}"


class Reason(NamedTuple):
    """What a claim is in one protocol: its verdict, None where the scale has none of its rows, the
    numbers that carry it, and each comparison.
    """

    where: str
    verdict: Verdict | None
    words: str
    comparisons: tuple[Comparison, ...] = ()

    @property
    def measured(self) -> list[Comparison]:
        """The comparisons with lines."""
        return [one for one in self.comparisons if one.gap is not None and not one.unequal]

    @property
    def hardest(self) -> Comparison:
        """Of the comparisons with lines the one that is furthest from what the claim says."""
        return min(
            self.measured, key=lambda c: (-1 if c.lower else 1) * (c.gap.mean if c.gap else 0)
        )

    def against(self, other: str) -> Comparison:
        """The comparison with a row of this key. Raises ConfigError for an unknown one."""
        by_key = {one.other.key: one for one in self.comparisons}
        if other not in by_key:
            raise ConfigError(f"no comparison with '{other}'; {did_you_mean(other, by_key)}")
        return by_key[other]


@dataclass(frozen=True)
class JudgedClaim:
    """A claim, protocol by protocol."""

    claim: Claim
    reasons: tuple[Reason, ...]

    @property
    def verdict(self) -> Verdict:
        """The verdict over all protocols."""
        return overall([r.verdict for r in self.reasons if r.verdict is not None])

    @property
    def key(self) -> str:
        """The claim's words as one word.

        >>> JudgedClaim(Claim(text="FIARSE's lead at 1/64", better=()), ()).key
        'fiarse-s-lead-at-1-64'
        """
        return re.sub(r"\W+", "-", self.claim.text.lower()).strip("-")

    def at(self, protocol: str = "") -> Reason:
        """What it is in a protocol, by default in the first one with lines. Raises ConfigError for
        an unknown protocol.
        """
        if not protocol:
            return next((r for r in self.reasons if r.measured), self.reasons[0])
        by_protocol = {r.where.partition(",")[0]: r for r in self.reasons}
        if protocol not in by_protocol:
            raise ConfigError(f"no protocol '{protocol}'; {did_you_mean(protocol, by_protocol)}")
        return by_protocol[protocol]


def find_claim(claims: Sequence[JudgedClaim], name: str) -> JudgedClaim:
    """A claim by its words as one word, see `JudgedClaim.key`, or how they begin, or "headline":
    what the paper is about, where there are several the first with lines. Raises ConfigError for an
    unknown one.
    """
    by_key = {one.key: one for one in claims}
    heads = [one for one in claims if one.claim.headline]
    if heads:
        by_key["headline"] = next(
            (h for h in heads if any(r.measured for r in h.reasons)), heads[0]
        )
    name = next((key for key in by_key if key.startswith(f"{name}-")), name)
    if name not in by_key:
        raise ConfigError(f"no claim '{name}'; {did_you_mean(name, by_key)}")
    return by_key[name]


# ------------------------------------------------------------------------------------- one sentence
def judge(claim: Claim, table: Table) -> JudgedClaim:
    """A claim over its protocols: it holds if it holds in each that this scale has, against each
    row that can run there.
    """
    plan, reasons = table.plan, list[Reason]()
    for protocol in plan.entry.protocols:
        if claim.protocols and protocol.name not in claim.protocols:
            continue
        skipped = {row for name, row in plan.refusals if name == protocol.name}
        family = pairs_of(claim, plan.entry)
        pairs = [p for p in family if not skipped & {k for side in p for k in side.split("&")}]
        if not pairs:
            reasons.append(Reason(protocol.name, None, "not at this scale"))
            continue
        comparisons = _compare_pairs(claim, pairs, protocol, table, len(family))
        without = f", without {', '.join(sorted(skipped))}" if skipped else ""
        name = f"{protocol.name}{without}"
        reason = Reason(
            name, overall([one.verdict for one in comparisons]), "not measured", tuple(comparisons)
        )
        reasons.append(reason._replace(words=_words(reason)) if reason.measured else reason)
    return JudgedClaim(claim, tuple(reasons))


def pairs_of(claim: Claim, entry: Entry) -> list[tuple[str, str]]:
    """The rows that a claim compares: pair by pair if there are several on both sides, equally
    many; else each with each. The other side of a number is "".
    """
    keys = [row.key for row in entry.rows]
    unknown = {key for side in (*claim.better, *claim.than) for key in side.split("&")} - {*keys}
    if unknown:
        raise ConfigError(f"{entry.id}: the claim '{claim.text}' names no row '{min(unknown)}'")
    if claim.number is not None:
        return [(one, "") for one in claim.better]
    than = claim.than or [key for key in keys if key not in claim.better]
    if len(claim.better) == len(than):
        return list(zip(claim.better, than, strict=True))
    return [(one, other) for one in claim.better for other in than]


def measure_of(entry: Entry, claim: Claim, protocol: Protocol) -> tuple[str, str]:
    """What a claim compares in a protocol, as (metric, at)."""
    return (claim.metric, claim.at) if claim.metric else entry.headline(protocol)


def _compare_pairs(
    claim: Claim, pairs: Sequence[tuple[str, str]], protocol: Protocol, table: Table, family: int
) -> list[Comparison]:
    """Every pair, with p corrected for the family. A side is a row, the mean of two (a&b), or ""
    for a number.
    """
    measure = measure_of(table.entry, claim, protocol)
    other_measure = (claim.than_metric, claim.than_at) if claim.than_metric else measure
    ours = {a: table.compared(protocol, a, measure) for a, _ in pairs}
    if claim.number is None:
        theirs = {b: table.compared(protocol, b, other_measure) for _, b in pairs}
    else:
        theirs = {"": dict.fromkeys({s for values in ours.values() for s in values}, claim.number)}
    raw = {(a, b): paired(ours[a], theirs[b]) for a, b in pairs}
    apart = {(a, b): unequal(table.plan, protocol, a, b) for a, b in pairs}
    comparable = {key: gap for key, gap in raw.items() if gap is not None and not apart[key]}
    gaps: dict[tuple[str, str], Paired | None] = {**raw, **corrected(comparable, family)}

    def row_of(side: str) -> Row:
        rows = [row for key in side.split("&") for row in table.entry.rows if row.key == key]
        if len(rows) == 1:
            return rows[0]
        names = [row.name for row in rows] or [f"{claim.number:g}"]
        return Row(method=" & ".join(names), changes="")

    def evaluations(side: str, measure: tuple[str, str]) -> int | None:
        n = table.number(protocol, side.partition("&")[0], measure)
        return None if n is None else n.evaluations

    out = []
    for a, b in pairs:
        both = evaluations(a, measure), evaluations(b, other_measure)
        comparison = Comparison(
            row_of(a),
            row_of(b),
            mean([*ours[a].values()]),
            mean([*theirs[b].values()]),
            gaps[a, b],
            measure[0] in LOWER,
            min((count for count in both if count is not None), default=None),
            claim.margin,
            apart[a, b],
        )
        out.append(comparison)
    return out


def unequal(plan: Plan, protocol: Protocol, row: str, other: str) -> str:
    """The settings of no method (Entry.alike) in which two rows' runs differ, as words."""
    if not plan.entry.alike:
        return ""
    one, two = (plan.settings(protocol, key) for key in (row, other))
    return "; ".join(
        f"{key.rpartition('.')[2]} {one.get(key, 'none')} against {two.get(key, 'none')}"
        for key in plan.entry.alike
        if one and two and one.get(key) != two.get(key)
    )


def _words(reason: Reason) -> str:
    """How many comparisons are clear, and the hardest."""
    count, measured = len(reason.comparisons), len(reason.measured)
    apart = sum(bool(c.unequal) for c in reason.comparisons)
    text = (
        ""
        if count == 1
        else f"{sum(c.verdict == 'holds' for c in reason.measured)} of {count} clear"
    )
    text += f", {count - measured - apart} {NO_LINES}" if measured + apart < count else ""
    text += f", {apart} not decided: other settings" if apart else ""
    return f"{text}{'; hardest: ' * bool(text)}{reason.hardest.words}"


# ----------------------------------------------------------------------------------------- verdicts
def verdict_on(gap: Paired | None, lower: bool = False) -> Verdict:
    """Whether a difference is above zero, or with `lower` below: by its p, corrected if it is one
    of several. One pair has no test.

    >>> verdict_on(Paired(0.02, 0.001, 3)), verdict_on(Paired(-0.02, 0.05, 3)), verdict_on(None)
    ('holds', 'undecided', 'not measured')
    >>> verdict_on(Paired(0.02, None, 1)), verdict_on(Paired(0.02, 0.001, 3), lower=True)
    ('undecided', 'does not hold')
    """
    if gap is None:
        return "not measured"
    if gap.verdict == "undecided":
        return "undecided"
    return "holds" if (gap.mean < 0) == lower else "does not hold"


def overall(verdicts: Sequence[Verdict]) -> Verdict:
    """Several verdicts as one: it holds if all hold, and does not if one does not.

    >>> overall(["holds", "undecided"]), overall(["holds", "not measured"]), overall([])
    ('undecided', 'undecided', 'not measured')
    """
    if not verdicts or set(verdicts) == {"not measured"}:
        return "not measured"
    if "does not hold" in verdicts:
        return "does not hold"
    return "holds" if set(verdicts) == {"holds"} else "undecided"
