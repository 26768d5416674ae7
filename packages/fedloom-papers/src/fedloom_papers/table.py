"""A table from lines alone: measured numbers beside the published ones, and a verdict per claim."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fedloom.report.statistics import Paired, common_seeds, corrected, paired, unpaired
from fedloom.report.statistics import Verdict as Side

from .entry import Entry, Protocol, Quantity, Row, settings_of
from .lines import Line, latest
from .measure import Context, Number, base_of, goals, number, round_here
from .plan import Plan
from .verdicts import JudgedClaim, judge, measure_of, unequal

LinesByRow = Mapping[str, Mapping[int, Line]]  # of one protocol: {row: {seed: its line}}
Measure = tuple[str, str]  # metric, at


@dataclass(frozen=True)
class Table:
    """A table as far as there are lines. lines_by_protocol: of each {row: {seed: line}} of the
    finished runs; seeds: those that all its rows have, which alone count; contexts: of each
    protocol and seed what metrics need; failed: (protocol, row, seed, why) of the runs that failed.
    """

    entry: Entry
    plan: Plan
    numbers: tuple[Number, ...]
    lines_by_protocol: Mapping[str, LinesByRow]
    seeds: Mapping[str, Sequence[int]]
    contexts: Mapping[str, Mapping[int, Context]]
    failed: Sequence[tuple[str, str, int, str]] = ()

    @functools.cached_property
    def claims(self) -> tuple[JudgedClaim, ...]:
        """The paper's sentences, each with its verdict."""
        return tuple(judge(claim, self) for claim in self.entry.claims)

    @property
    def comparisons(self) -> int:
        """How many pairs of rows with lines the verdicts rest on."""
        return sum(len(r.measured) for claim in self.claims for r in claim.reasons)

    @property
    def extra_seeds(self) -> dict[str, dict[str, list[int]]]:
        """{protocol: {row's name: its further seeds}}."""
        names = {row.key: row.name for row in self.plan.rows}
        return {
            name: {
                names[row]: sorted({*lines} - {*self.seeds[name]})
                for row, lines in rows.items()
                if {*lines} - {*self.seeds[name]}
            }
            for name, rows in self.lines_by_protocol.items()
        }

    def lines(self, protocol: Protocol, row: str) -> dict[int, Line]:
        """{seed: line} of a row's runs that count."""
        by_seed = self.lines_by_protocol[protocol.name].get(row, {})
        return {seed: by_seed[seed] for seed in self.seeds[protocol.name] if seed in by_seed}

    def numbers_of(self, protocol: Protocol, measure: Measure | None = None) -> list[Number]:
        """The numbers of a protocol, all or those of a (metric, at)."""
        return [
            n
            for n in self.numbers
            if n.quantity.protocol is protocol
            and measure in (None, (n.quantity.metric, n.quantity.at))
        ]

    def rows_of(self, protocol: Protocol) -> list[Row]:
        """The rows of which a protocol wants a number."""
        keys = {n.quantity.row.key for n in self.numbers_of(protocol)}
        return [row for row in self.plan.rows if row.key in keys]

    def measures_of(self, protocol: Protocol) -> list[Measure]:
        """The measures of a protocol, in the paper's order."""
        numbers = self.numbers_of(protocol)
        return list(dict.fromkeys((n.quantity.metric, n.quantity.at) for n in numbers))

    def number(self, protocol: Protocol, row: str, measure: Measure) -> Number | None:
        """A number of a row, in any measure; None of a row that the plan has not."""
        for n in self.numbers_of(protocol, measure):
            if n.quantity.row.key == row:
                return n
        quantities = (Quantity(r, protocol, *measure, None) for r in self.plan.rows if r.key == row)
        return next((number(one, self.contexts[protocol.name]) for one in quantities), None)

    def compared(self, protocol: Protocol, rows: str, measure: Measure) -> dict[int, float]:
        """{seed: what is compared} of any measure of a row, or of the mean of two rows a&b."""
        numbers = [self.number(protocol, key, measure) for key in rows.split("&")]
        values = [{} if n is None else n.compared for n in numbers]
        seeds = sorted(set.intersection(*map(set, values)))
        return {s: math.fsum(by_seed[s] for by_seed in values) / len(values) for s in seeds}

    def less_base(self, protocol: Protocol, base: str) -> dict[str, Paired]:
        """{row: the first measure less the base's}; of the rows that the columns beside name, and
        that agree with the first base in all settings of no method, with p by Holm for all named.
        """
        measure, entry = self.entry.headline(protocol), self.entry
        values = {r.key: self.compared(protocol, r.key, measure) for r in self.rows_of(protocol)}
        gaps = {key: paired(by_seed, values.get(base, {})) for key, by_seed in values.items()}
        raw = {key: gap for key, gap in gaps.items() if gap is not None and key != base}
        methods = {method for one in entry.paper_columns for method in one.gaps()}
        family = {r.key for r in self.plan.rows if r.name.partition(", alpha")[0] in methods}
        family -= {*entry.bases}
        tested = {
            key: gap
            for key, gap in raw.items()
            if key in family and not unequal(self.plan, protocol, key, entry.bases[0])
        }
        return raw | corrected(tested, len(family))

    def round_of(self, at: str, protocol: Protocol) -> int | None:
        """The round here that stands for a printed one; None where none is printed."""
        where = settings_of(at)
        rounds = max((r.rounds for r in self.plan.runs if r.protocol is protocol), default=0)
        if "round" not in where or not rounds:
            return None
        return round_here(float(where["round"]), rounds, protocol)

    def claimed_measures(self, protocol: Protocol) -> set[Measure]:
        """The measures that claims compare in a protocol, as (metric, at)."""
        return {
            measure_of(self.entry, claim, protocol)
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
    equal_by_row: dict[str, Equal] = {}
    for n in numbers:
        published = {} if n.quantity.cell is None else n.quantity.cell.seeds
        both = {s: (published[s], measured) for s, measured in n.values.items() if s in published}
        other = [(n.quantity.metric, s, *v) for s, v in both.items() if abs(v[0] - v[1]) > _SAME]
        if both:
            cells, equal, others = equal_by_row.get(n.quantity.row.name, Equal(0, 0, ()))
            counts = cells + len(both), equal + len(both) - len(other)
            equal_by_row[n.quantity.row.name] = Equal(*counts, (*others, *other))
    return equal_by_row


POINT = 0.01  # means of shares closer than that are called equal


def gaps_to_runs(numbers: Iterable[Number]) -> dict[tuple[str, str], tuple[Paired, Side]]:
    """{(row's key, metric): ours less the published mean, with p by Holm for all of them, and where
    it is}, of numbers whose single runs are published. within: the interval lies within a point.
    """
    gaps = {
        (n.quantity.row.key, n.quantity.metric): gap
        for n in numbers
        if n.quantity.cell is not None and n.quantity.cell.seeds
        if (gap := unpaired([*n.values.values()], [*n.quantity.cell.seeds.values()])) is not None
    }
    return {key: (gap, _side(gap)) for key, gap in corrected(gaps).items()}


def _side(gap: Paired) -> Side:
    if gap.verdict == "undecided" and -POINT < gap.low <= gap.high < POINT:
        return "within"
    return gap.verdict


def table(plan: Plan, lines: Iterable[Line]) -> Table:
    """The numbers and verdicts of a plan's rows, from the lines of its runs."""
    entry, latest_lines = plan.entry, latest(lines, plan.runs)
    runs: dict[str, dict[str, dict[int, Line]]] = {p.name: {} for p in entry.protocols}
    failed = []
    for (name, row, seed), digest in plan.digests.items():
        line = latest_lines.get((digest, seed), {"state": ""})
        if line["state"] == "finished":
            runs[name].setdefault(row, {})[seed] = line
        elif line["state"] == "failed":
            failed.append((name, row, seed, str(line.get("reason") or "no reason given")))
    seeds = {
        name: common_seeds(dict.fromkeys(by_seed, 0.0) for by_seed in rows.values())
        for name, rows in runs.items()
    }
    contexts = {p.name: _contexts(plan, p, runs[p.name], seeds[p.name]) for p in entry.protocols}
    quantities = (w for w in entry.quantities() if w.row in plan.rows)
    numbers = tuple(number(w, contexts[w.protocol.name]) for w in quantities)
    return Table(entry, plan, numbers, runs, seeds, contexts, failed)


def _contexts(
    plan: Plan, protocol: Protocol, by_row: LinesByRow, seeds: Sequence[int]
) -> dict[int, Context]:
    """{seed: what metrics need of a protocol}, of the seeds that all its rows with lines have."""
    base = [line for s, line in by_row.get(base_of(plan.entry).key, {}).items() if s in seeds]
    targets = goals(plan.entry, protocol, base, plan.scale)
    by_seed = {s: {row: lines[s] for row, lines in by_row.items()} for s in seeds}
    return {s: Context(plan.entry, protocol, rows, targets) for s, rows in by_seed.items()}
