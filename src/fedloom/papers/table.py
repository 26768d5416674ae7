"""A table from lines alone: measured numbers beside the published ones, and a verdict per claim."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ..report.curve_data import mean, sd
from ..report.sequential import Verdict as Side
from ..report.statistics import Paired, apart, common_seeds, corrected, paired
from .entry import Claim, Entry, Protocol, Row, Wanted
from .lines import Line, latest
from .measure import LOWER, Context, base_of, goals, measure, round_here, tested
from .plan import Plan
from .published_tables import settings_of

Verdict = Literal["holds", "does not hold", "undecided", "not measured"]
Values = Mapping[int, float]  # {seed: value}
Own = Mapping[str, Mapping[int, Line]]  # of one protocol: {row: {seed: its line}}


@dataclass(frozen=True)
class Number:
    """A cell: what the paper prints, and each seed's value here (infinite: target not reached).

    tested: of each seed what a verdict on it is on; rounds: of the runs here.
    """

    wanted: Wanted
    values: Values
    rounds: int
    tested: Values = field(default_factory=dict)

    @property
    def mean(self) -> float | None:
        """The mean over the seeds; infinite if one did not reach its target."""
        return mean(list(self.values.values()))

    @property
    def sd(self) -> float | None:
        """The standard deviation over the seeds (n - 1); None for one, or with an infinite one."""
        values = list(self.values.values())
        return sd(values) if values and all(map(math.isfinite, values)) else None

    @property
    def published(self) -> float | None:
        """What the paper prints, if that is a number."""
        return None if self.wanted.cell is None else self.wanted.cell.value

    @property
    def difference(self) -> float | None:
        """Measured less published."""
        here, there = self.mean, self.published
        return None if here is None or there is None or math.isinf(here) else here - there


class Reason(NamedTuple):
    """What a claim is in one protocol: its verdict, None where the scale has none of its rows, and
    the numbers that carry it.
    """

    place: str
    verdict: Verdict | None
    words: str


@dataclass(frozen=True)
class Judged:
    """A claim, protocol by protocol."""

    claim: Claim
    reasons: tuple[Reason, ...]

    @property
    def verdict(self) -> Verdict:
        """The verdict over all protocols."""
        return overall([r.verdict for r in self.reasons if r.verdict is not None])


@dataclass(frozen=True)
class Table:
    """A table as far as there are lines. comparisons: how many pairs the verdicts rest on; own: of
    each protocol {row: {seed: line}} of the finished runs; seeds: those that all its rows have,
    which alone count.
    """

    entry: Entry
    plan: Plan
    numbers: tuple[Number, ...]
    claims: tuple[Judged, ...]
    comparisons: int
    own: Mapping[str, Own]
    seeds: Mapping[str, Sequence[int]]

    @property
    def more(self) -> dict[str, dict[str, list[int]]]:
        """{protocol: {row's name: its further seeds}}."""
        names = {row.key: row.name for row in self.plan.rows}
        return {
            place: {
                names[row]: sorted({*lines} - {*self.seeds[place]})
                for row, lines in rows.items()
                if {*lines} - {*self.seeds[place]}
            }
            for place, rows in self.own.items()
        }

    def lines(self, protocol: Protocol, row: str) -> dict[int, Line]:
        """{seed: line} of a row's runs that count."""
        found = self.own[protocol.name].get(row, {})
        return {seed: found[seed] for seed in self.seeds[protocol.name] if seed in found}

    def numbers_of(
        self, protocol: Protocol, measure: tuple[str, str] | None = None
    ) -> list[Number]:
        """The numbers of a protocol, all or those of a (metric, at)."""
        return [
            n
            for n in self.numbers
            if n.wanted.protocol is protocol and measure in (None, (n.wanted.metric, n.wanted.at))
        ]

    def round_of(self, at: str, protocol: Protocol) -> int | None:
        """The round here that stands for a printed one; None where none is printed."""
        where = settings_of(at)
        rounds = max((r.rounds for r in self.plan.runs if r.protocol is protocol), default=0)
        if "round" not in where or not rounds:
            return None
        return round_here(float(where["round"]), rounds, protocol)

    def judged(self, protocol: Protocol) -> set[tuple[str, str]]:
        """The measures that claims compare in a protocol, as (metric, at)."""
        return {
            _measure_of(self.entry, claim, protocol)
            for claim in self.entry.claims
            if not claim.protocols or protocol.name in claim.protocols
        }


class Equal(NamedTuple):
    """How many published values of single seeds a row has, how many are equal here, and the others
    as (metric, seed, published, here).
    """

    cells: int
    equal: int
    others: tuple[tuple[str, int, float, float], ...]


_SAME = 5e-7  # values are kept with six digits; one row of the largest test set counts 1/254


def equal_cells(numbers: Iterable[Number]) -> dict[str, Equal]:
    """{row's name: its cells}, of the rows whose seeds are published."""
    found: dict[str, Equal] = {}
    for n in numbers:
        there = {} if n.wanted.cell is None else n.wanted.cell.seeds
        both = {s: (there[s], here) for s, here in n.values.items() if s in there}
        other = [(n.wanted.metric, s, *v) for s, v in both.items() if abs(v[0] - v[1]) > _SAME]
        if both:
            cells, equal, others = found.get(n.wanted.row.name, Equal(0, 0, ()))
            counts = cells + len(both), equal + len(both) - len(other)
            found[n.wanted.row.name] = Equal(*counts, (*others, *other))
    return found


POINT = 0.01  # means of shares closer than that are called equal


def beside_runs(numbers: Iterable[Number]) -> dict[tuple[str, str], tuple[Paired, Side]]:
    """{(row's key, metric): ours less the published mean, with p by Holm for all of them, and where
    it is}, of numbers whose single runs are published. within: the interval lies within a point.
    """
    gaps = {
        (n.wanted.row.key, n.wanted.metric): gap
        for n in numbers
        if n.wanted.cell is not None and n.wanted.cell.seeds
        if (gap := apart([*n.values.values()], [*n.wanted.cell.seeds.values()])) is not None
    }
    return {place: (gap, _side(gap)) for place, gap in corrected(gaps).items()}


def _side(gap: Paired) -> Side:
    if gap.verdict == "undecided" and -POINT < gap.low <= gap.high < POINT:
        return "within"
    return gap.verdict


def table(plan: Plan, lines: Iterable[Line]) -> Table:
    """The numbers and verdicts of a plan's rows, from the lines of its runs."""
    entry, own = plan.entry, _finished(plan, latest(lines))
    seeds = {
        place: common_seeds(dict.fromkeys(found, 0.0) for found in rows.values())
        for place, rows in own.items()
    }
    contexts = {p.name: _contexts(plan, p, own[p.name], seeds[p.name]) for p in entry.protocols}
    numbers = tuple(
        _number(w, contexts[w.protocol.name]) for w in entry.wanted() if w.row in plan.rows
    )
    claims, count = [], 0
    for claim in entry.claims:
        judged, compared = _judge(claim, plan, contexts)
        claims.append(judged)
        count += compared
    return Table(entry, plan, numbers, tuple(claims), count, own, seeds)


def _finished(plan: Plan, seen: Mapping[tuple[str, int], Line]) -> dict[str, Own]:
    """Of each protocol the lines of its rows' finished runs."""
    own: dict[str, dict[str, dict[int, Line]]] = {p.name: {} for p in plan.entry.protocols}
    for (place, row, seed), digest in plan.digests.items():
        line = seen.get((digest, seed))
        if line is not None and line["state"] == "finished":
            own[place].setdefault(row, {})[seed] = line
    return {**own}


def _contexts(plan: Plan, protocol: Protocol, own: Own, seeds: Sequence[int]) -> dict[int, Context]:
    """{seed: what metrics need of a protocol}, of the seeds that all its rows with lines have."""
    base = [line for s, line in own.get(base_of(plan.entry).key, {}).items() if s in seeds]
    found = goals(plan.entry, protocol, base, plan.scale)
    by_seed = {s: {row: lines[s] for row, lines in own.items()} for s in seeds}
    return {s: Context(plan.entry, protocol, rows, found) for s, rows in by_seed.items()}


def _number(wanted: Wanted, contexts: Mapping[int, Context]) -> Number:
    found = {seed: measure(wanted, context) for seed, context in contexts.items()}
    lines = [c.seen[wanted.row.key] for c in contexts.values() if wanted.row.key in c.seen]
    rounds = max((int(line.get("rounds", 0)) for line in lines), default=0)
    judged = {seed: tested(wanted, context) for seed, context in contexts.items()}
    known, late = ({s: v for s, v in of.items() if v is not None} for of in (found, judged))
    return Number(wanted, known, rounds, late)


# ----------------------------------------------------------------------------------------- verdicts
def _judge(
    claim: Claim, plan: Plan, contexts: Mapping[str, Mapping[int, Context]]
) -> tuple[Judged, int]:
    """A claim over its protocols: it holds if it holds in each that this scale has, against each
    row that can run there.
    """
    entry = plan.entry
    reasons: list[Reason] = []
    count = 0
    for protocol in entry.protocols:
        if claim.protocols and protocol.name not in claim.protocols:
            continue
        refused = {row for place, row in plan.refused if place == protocol.name}
        pairs = [p for p in _pairs(claim, entry) if not refused & {p[0].key, p[1].key}]
        if not pairs:
            reasons.append(Reason(protocol.name, None, "not at this scale"))
            continue
        metric, at = _measure_of(entry, claim, protocol)
        rows = {
            row.key: _number(Wanted(row, protocol, metric, at, None), contexts[protocol.name])
            for pair in pairs
            for row in pair
        }
        known = _gaps(pairs, {key: compared(n) for key, n in rows.items()})
        count += len(known)
        verdict, said = _together(known, len(pairs), rows)
        without = f", without {', '.join(sorted(refused))}" if refused else ""
        reasons.append(Reason(f"{protocol.name}{without}", verdict, said))
    return Judged(claim, tuple(reasons)), count


def _pairs(claim: Claim, entry: Entry) -> list[tuple[Row, Row]]:
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


def _measure_of(entry: Entry, claim: Claim, protocol: Protocol) -> tuple[str, str]:
    """What a claim compares in a protocol, as (metric, at)."""
    return (claim.metric, claim.at) if claim.metric else entry.headline(protocol)


Gaps = Mapping[tuple[str, str], Paired]  # {(row, other row): the one less the other}


def _gaps(pairs: Sequence[tuple[Row, Row]], rows: Mapping[str, Values]) -> Gaps:
    """The paired differences of a claim's rows, with p corrected for how many there are."""
    found = {(a.key, b.key): paired(rows[a.key], rows[b.key]) for a, b in pairs}
    return corrected({key: gap for key, gap in found.items() if gap is not None})


def compared(number: Number) -> dict[int, float]:
    """What is compared. A target that was not reached counts as one round more than the run had,
    the least that it can be; seconds and traffic until then are not compared.
    """
    values = number.tested
    if number.wanted.metric == "rounds_to_acc":
        least = float(number.rounds + 1)
        return {s: v if math.isfinite(v) else least for s, v in values.items()}
    return {s: v for s, v in values.items() if math.isfinite(v)}


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


def _together(gaps: Gaps, wanted: int, rows: Mapping[str, Number]) -> tuple[Verdict, str]:
    """The verdict of one protocol, and its numbers: how many comparisons are clear, and the one
    that is furthest from what the claim says.
    """
    if not gaps:
        return "not measured", "not measured"
    lower = next(iter(rows.values())).wanted.metric in LOWER
    verdicts = [verdict_on(gap, lower) for gap in gaps.values()]
    verdict = overall(verdicts)
    if verdict == "holds" and len(gaps) < wanted:
        verdict = "undecided"
    clear = verdicts.count("holds")
    sign = -1 if lower else 1
    one, other = min(gaps, key=lambda pair: sign * gaps[pair].mean)
    gap = gaps[one, other]
    said = "" if wanted == 1 else f"{clear} of {wanted} clear"
    if len(gaps) < wanted:
        said += f", {wanted - len(gaps)} not measured"
    p = f"{gap.p_words}, {gap.n} seeds" if gap.p_words else "one seed, no test"
    ours, theirs = (mean(list(compared(rows[key]).values())) for key in (one, other))
    first, second = (rows[key].wanted.row.name for key in (one, other))
    both = f"{first} {ours:.4g} less {second} {theirs:.4g}"
    better = " (lower is better)" if lower else ""
    said += "; hardest: " * bool(said)
    return verdict, f"{said}{both} is {gap.mean:+.4g}{better}, {p}"


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
