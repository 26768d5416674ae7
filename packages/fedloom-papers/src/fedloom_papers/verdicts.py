"""Whether a sentence of a paper holds: the one place for tables, pages and the board.

A sentence says in each protocol that a row is above others. Those are its family for Holm: every
comparison that the sentence names there, also one without lines, which is not decided and counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from fedloom.core.curves import LEAST
from fedloom.errors import ConfigError, did_you_mean
from fedloom.report.curve_data import mean
from fedloom.report.statistics import Paired, corrected, paired

from .entry import Claim, Entry, Protocol, Row, Wanted
from .measure import LOWER
from .numbers import Number
from .plan import Plan

Verdict = Literal["holds", "does not hold", "undecided", "not measured"]
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
    where it is no mean over evaluations.
    """

    row: Row
    other: Row
    ours: float | None
    theirs: float | None
    gap: Paired | None
    lower: bool = False
    evaluations: int | None = None

    @property
    def verdict(self) -> Verdict:
        """Whether the row is better."""
        return verdict_on(self.gap, self.lower)

    @property
    def words(self) -> str:
        """Both values, their difference, its p, and on how few evaluations it stands."""
        if self.gap is None:
            return f"{self.row.name} and {self.other.name}: {NO_LINES}"
        gap = self.gap
        p = f"{gap.p_words}, {gap.n} seeds" if gap.p_words else "one seed, no test"
        better = " (lower is better)" if self.lower else ""
        few = self.evaluations is not None and self.evaluations < LEAST
        on = f", on {self.evaluations} evaluation{'s' * (self.evaluations != 1)}" if few else ""
        both = f"{self.row.name} {self.ours:.4g} less {self.other.name} {self.theirs:.4g}"
        return f"{both} is {gap.mean:+.4g}{better}, {p}{on}"


class Reason(NamedTuple):
    """What a claim is in one protocol: its verdict, None where the scale has none of its rows, the
    numbers that carry it, and each comparison.
    """

    place: str
    verdict: Verdict | None
    words: str
    comparisons: tuple[Comparison, ...] = ()

    @property
    def known(self) -> list[Comparison]:
        """The comparisons with lines."""
        return [one for one in self.comparisons if one.gap is not None]

    @property
    def hardest(self) -> Comparison:
        """Of the comparisons with lines the one that is furthest from what the claim says."""
        return min(self.known, key=lambda c: (-1 if c.lower else 1) * (c.gap.mean if c.gap else 0))

    def against(self, other: str) -> Comparison:
        """The comparison with a row of this key. Raises ConfigError for an unknown one."""
        known = {one.other.key: one for one in self.comparisons}
        if other not in known:
            raise ConfigError(f"no comparison with '{other}'; {did_you_mean(other, known)}")
        return known[other]


@dataclass(frozen=True)
class Judged:
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

        >>> Judged(Claim(text="FIARSE's lead at 1/64", better=()), ()).key
        'fiarse-s-lead-at-1-64'
        """
        return re.sub(r"\W+", "-", self.claim.text.lower()).strip("-")

    def at(self, protocol: str = "") -> Reason:
        """What it is in a protocol, by default in the first one with lines. Raises ConfigError for
        an unknown protocol.
        """
        if not protocol:
            return next((r for r in self.reasons if r.known), self.reasons[0])
        known = {r.place.partition(",")[0]: r for r in self.reasons}
        if protocol not in known:
            raise ConfigError(f"no protocol '{protocol}'; {did_you_mean(protocol, known)}")
        return known[protocol]


def judged_claim(claims: Sequence[Judged], name: str) -> Judged:
    """A claim by its words as one word, see `Judged.key`, or "headline": what the paper is about,
    where there are several the first with lines. Raises ConfigError for an unknown one.
    """
    known = {one.key: one for one in claims}
    heads = [one for one in claims if one.claim.headline]
    if heads:
        known["headline"] = next((h for h in heads if any(r.known for r in h.reasons)), heads[0])
    if name not in known:
        raise ConfigError(f"no claim '{name}'; {did_you_mean(name, known)}")
    return known[name]


# ------------------------------------------------------------------------------------- one sentence
Numbers = Callable[[Wanted], Number]


def judge(claim: Claim, plan: Plan, number: Numbers) -> Judged:
    """A claim over its protocols: it holds if it holds in each that this scale has, against each
    row that can run there.
    """
    entry = plan.entry
    reasons: list[Reason] = []
    for protocol in entry.protocols:
        if claim.protocols and protocol.name not in claim.protocols:
            continue
        refused = {row for place, row in plan.refused if place == protocol.name}
        named = pairs_of(claim, entry)
        pairs = [p for p in named if not refused & {p[0].key, p[1].key}]
        if not pairs:
            reasons.append(Reason(protocol.name, None, "not at this scale"))
            continue
        found = _compared(pairs, *measure_of(entry, claim, protocol), protocol, number, len(named))
        without = f", without {', '.join(sorted(refused))}" if refused else ""
        place = f"{protocol.name}{without}"
        made = Reason(place, _verdict(found), "not measured", tuple(found))
        reasons.append(made._replace(words=_words(made)) if made.known else made)
    return Judged(claim, tuple(reasons))


def pairs_of(claim: Claim, entry: Entry) -> list[tuple[Row, Row]]:
    """The rows that a claim compares: pair by pair if there are several on both sides, equally
    many; else each with each.
    """
    known = {row.key: row for row in entry.rows}
    better = [known[key] for key in claim.better]
    than = [known[key] for key in claim.than] if claim.than else []
    than = than or [row for row in entry.rows if row not in better]
    if len(better) == len(than):
        return list(zip(better, than, strict=True))
    return [(one, other) for one in better for other in than]


def measure_of(entry: Entry, claim: Claim, protocol: Protocol) -> tuple[str, str]:
    """What a claim compares in a protocol, as (metric, at)."""
    return (claim.metric, claim.at) if claim.metric else entry.headline(protocol)


def _compared(
    pairs: Sequence[tuple[Row, Row]],
    metric: str,
    at: str,
    protocol: Protocol,
    number: Numbers,
    family: int,
) -> list[Comparison]:
    """Every pair, with p corrected for the family."""
    rows = {row.key: row for pair in pairs for row in pair}
    numbers = {key: number(Wanted(row, protocol, metric, at, None)) for key, row in rows.items()}
    values = {key: one.compared for key, one in numbers.items()}
    raw = {(a.key, b.key): paired(values[a.key], values[b.key]) for a, b in pairs}
    gaps = corrected({key: gap for key, gap in raw.items() if gap is not None}, family)

    def one(row: Row, other: Row) -> Comparison:
        both = [numbers[row.key], numbers[other.key]]
        few = [n.evaluations for n in both if n.evaluations is not None]
        ours, theirs = (mean([*n.compared.values()]) for n in both)
        gap = gaps.get((row.key, other.key))
        return Comparison(row, other, ours, theirs, gap, metric in LOWER, min(few, default=None))

    return [one(a, b) for a, b in pairs]


def _verdict(found: Sequence[Comparison]) -> Verdict:
    """Of one protocol: with a comparison without lines it cannot hold."""
    return overall([one.verdict for one in found])


def _words(reason: Reason) -> str:
    """How many comparisons are clear, and the hardest."""
    count, known = len(reason.comparisons), len(reason.known)
    said = (
        "" if count == 1 else f"{sum(c.verdict == 'holds' for c in reason.known)} of {count} clear"
    )
    said += f", {count - known} {NO_LINES}" if known < count else ""
    return f"{said}{'; hardest: ' * bool(said)}{reason.hardest.words}"


# ----------------------------------------------------------------------------------------- verdicts
def verdict_on(gap: Paired | None, lower: bool = False, noise: float | None = None) -> Verdict:
    """Whether a difference is above zero, or with `lower` below: by its p, corrected if it is one
    of several. noise: what tells one pair, which has no test, from zero; None: nothing does.

    >>> verdict_on(Paired(0.02, 0.001, 3)), verdict_on(Paired(-0.02, 0.05, 3)), verdict_on(None)
    ('holds', 'undecided', 'not measured')
    >>> one = Paired(0.02, None, 1)
    >>> verdict_on(one), verdict_on(one, lower=True, noise=0.01)
    ('undecided', 'does not hold')
    """
    if gap is None:
        return "not measured"
    alone = gap.p is None and noise is not None
    if abs(gap.mean) <= (noise or 0.0) if alone else gap.verdict == "undecided":
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
