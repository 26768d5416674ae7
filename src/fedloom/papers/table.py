"""A table from lines alone: measured numbers beside the published ones, and a verdict per claim."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..report.curve_data import mean, sd
from ..report.statistics import p_text, paired
from .entry import Claim, Entry, Protocol, Row, Wanted
from .lines import Line, latest
from .measure import LOWER, Context, base_of, goals, measure
from .plan import Plan

Verdict = Literal["holds", "does not hold", "undecided", "not measured"]
Values = Mapping[int, float]  # {seed: value}


@dataclass(frozen=True)
class Number:
    """A cell: what the paper prints, and each seed's value here (infinite: target not reached)."""

    wanted: Wanted
    values: Values
    rounds: int  # of the runs here

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


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict, and what carries it, protocol by protocol."""

    claim: Claim
    verdict: Verdict
    why: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A table as far as there are lines. comparisons: how many pairs the verdicts rest on."""

    entry: Entry
    plan: Plan
    numbers: tuple[Number, ...]
    claims: tuple[Judged, ...]
    comparisons: int


def table(plan: Plan, lines: Iterable[Line]) -> Table:
    """The numbers and verdicts of a plan's rows, from the lines of its runs."""
    entry = plan.entry
    seen = _seen(plan, lines)
    contexts = {p.name: _contexts(plan, p, seen) for p in entry.protocols}
    numbers = tuple(
        _number(w, contexts[w.protocol.name]) for w in entry.wanted() if w.row in plan.rows
    )
    claims, count = [], 0
    for claim in entry.claims:
        judged, compared = _judge(claim, plan, contexts)
        claims.append(judged)
        count += compared
    return Table(entry, plan, numbers, tuple(claims), count)


def _seen(plan: Plan, lines: Iterable[Line]) -> dict[tuple[str, str, int], Line]:
    """{(protocol, row, seed): the last line of its settings}."""
    found = latest(lines)
    pairs = ((place, found.get((digest, place[2]))) for place, digest in plan.digests.items())
    return {place: line for place, line in pairs if line is not None}


def _contexts(
    plan: Plan, protocol: Protocol, seen: Mapping[tuple[str, str, int], Line]
) -> dict[int, Context]:
    """{seed: what metrics need of a protocol}."""
    own = {place: line for place, line in seen.items() if place[0] == protocol.name}
    base = [line for (_, row, _), line in own.items() if row == base_of(plan.entry).key]
    found = goals(plan.entry, protocol, base, plan.scale)
    by_seed = {s: {r: x for (_, r, t), x in own.items() if t == s} for s in plan.seeds}
    return {s: Context(plan.entry, protocol, rows, found) for s, rows in by_seed.items()}


def _number(wanted: Wanted, contexts: Mapping[int, Context]) -> Number:
    found = {seed: measure(wanted, context) for seed, context in contexts.items()}
    lines = [c.seen[wanted.row.key] for c in contexts.values() if wanted.row.key in c.seen]
    rounds = max((int(line.get("rounds", 0)) for line in lines), default=0)
    return Number(wanted, {s: v for s, v in found.items() if v is not None}, rounds)


# ----------------------------------------------------------------------------------------- verdicts
def _judge(
    claim: Claim, plan: Plan, contexts: Mapping[str, Mapping[int, Context]]
) -> tuple[Judged, int]:
    """A claim over its protocols: it holds if it holds in each that this scale has, against each
    row that can run there.
    """
    entry = plan.entry
    verdicts: list[Verdict] = []
    why: list[str] = []
    count = 0
    for protocol in entry.protocols:
        if claim.protocols and protocol.name not in claim.protocols:
            continue
        refused = {row for place, row in plan.refused if place == protocol.name}
        pairs = [p for p in _pairs(claim, entry) if not refused & {p[0].key, p[1].key}]
        if not pairs:
            why.append(f"{protocol.name}: not at this scale")
            continue
        metric, at = entry.headline(protocol) if not claim.metric else (claim.metric, claim.at)
        gaps = [
            (one.key, other.key, _gap(one, other, protocol, metric, at, contexts[protocol.name]))
            for one, other in pairs
        ]
        known = [(a, b, gap) for a, b, gap in gaps if gap is not None]
        count += len(known)
        verdict, said = _together(known, len(gaps))
        verdicts.append(verdict)
        without = f", without {', '.join(sorted(refused))}" if refused else ""
        why.append(f"{protocol.name}{without}: {said}")
    return Judged(claim, overall(verdicts), tuple(why)), count


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


@dataclass(frozen=True)
class _Gap:
    """By how much one row is better than another: the mean over seeds, its p, and the verdict."""

    mean: float
    p: float | None
    seeds: int

    @property
    def verdict(self) -> Verdict:
        if self.p is None or self.p >= 0.05:
            return "undecided"
        return "holds" if self.mean > 0 else "does not hold"


def _gap(
    one: Row, other: Row, protocol: Protocol, metric: str, at: str, contexts: Mapping[int, Context]
) -> _Gap | None:
    """The paired difference over the seeds that both have; None without one. A target that was
    not reached counts as one round more than the run had, the least that it can be; seconds and
    traffic until then are not compared.
    """
    ours, theirs = (
        _number(Wanted(row, protocol, metric, at, None), contexts) for row in (one, other)
    )
    sign = -1 if metric in LOWER else 1
    a, b = (
        {s: sign * v for s, v in _finite(n, metric).items() if math.isfinite(v)}
        for n in (ours, theirs)
    )
    found = paired(a, b)
    return None if found is None else _Gap(found.mean, found.p, found.n)


def _finite(number: Number, metric: str) -> Values:
    """The values, with a least number of rounds for a target that was not reached."""
    if metric != "rounds_to_acc":
        return number.values
    least = float(number.rounds + 1)
    return {s: v if math.isfinite(v) else least for s, v in number.values.items()}


def _together(gaps: Sequence[tuple[str, str, _Gap]], wanted: int) -> tuple[Verdict, str]:
    """The verdict of one protocol, and its numbers."""
    if not gaps:
        return "not measured", "not measured"
    verdicts = [gap.verdict for _, _, gap in gaps]
    verdict = overall(verdicts)
    if verdict == "holds" and len(gaps) < wanted:
        verdict = "undecided"
    clear = verdicts.count("holds")
    worst = min(gaps, key=lambda g: g[2].mean)
    said = f"{clear} of {wanted} clear"
    if len(gaps) < wanted:
        said += f", {wanted - len(gaps)} not measured"
    one, other, gap = worst
    p = "one seed, no test" if gap.p is None else f"p {p_text(gap.p)}, {gap.seeds} seeds"
    return verdict, f"{said}; least {one} less {other} {gap.mean:+.4g} ({p})"


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
