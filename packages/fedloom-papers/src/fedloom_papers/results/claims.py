"""The papers' claims of a study: its file studies/NAME.toml says what is compared, and a test below
decides it from the lines.

A claim has a sentence (`says`), its place in the paper (`where`), a `test` with its words, and
perhaps further cases (`also`). A measure is a name and, after @, a place such as a size; {at} in it
stands for each of the places `at`. Rows that a table has not are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any

from fedloom.report.curve_data import mean
from fedloom.report.statistics import Paired, against, corrected, p_text, paired
from fedloom.report.tables import human_size

from ..lines import Line
from ..verdicts import Verdict, overall, verdict_on
from .page import Case, Claim, per_cent, points_of, tested
from .study import Study

Words = dict[str, Any]
Values = dict[int, float]  # {seed: value}
NOISE = 0.01  # of shares: below that two runs of one seed each are not told apart


@dataclass(frozen=True)
class Reader:
    """What claims read of a table. measure: (line, name) to a number, None if it has none; runs:
    (table, row) to {seed: line}; unequal: why two rows do not compare, or ""; sizes, every: of
    sub-models, in rising order, those that clients have and all measured ones; goal: "80 %".
    """

    study: Study
    table: str
    measure: Callable[[Line, str], float | None]
    runs: Callable[[str, str], Mapping[int, Line]]
    unequal: Callable[[str, str], str] = lambda row, other: ""
    sizes: Sequence[str] = ()
    every: Sequence[str] = ()
    goal: str = ""

    def has(self, rows: Iterable[str]) -> bool:
        """Whether the table has all these rows; a & b are two."""
        there = self.study.tables[self.table].rows
        return all(one in there for row in rows for one in row.split(" & "))

    def values(self, row: str, name: str) -> Values:
        """{seed: value} of a measure; of rows a & b their mean, where both have one."""
        found = [
            {
                s: v
                for s, x in self.runs(self.table, one).items()
                if (v := self.measure(x, name)) is not None
            }
            for one in row.split(" & ")
        ]
        seeds = set.intersection(*map(set, found))
        return {s: math.fsum(f[s] for f in found) / len(found) for s in sorted(seeds)}

    def places(self, words: Words) -> list[str]:
        """The places of a claim; `sizes`, those `below` the whole model, `every` size that was
        measured, and the `untrained` below the least that a client has are the table's.
        """
        known = {"sizes": self.sizes, "below": self.sizes[:-1], "every": self.every}
        least = min(map(float, self.sizes), default=0.0) * (1 - 1e-9)
        known["untrained"] = [size for size in self.every if float(size) < least]
        return [place for at in words.get("at", [""]) for place in known.get(at, [at])]


def middle(values: Values) -> float:
    """The mean over the seeds."""
    return mean([*values.values()]) or 0.0


def named(at: str) -> str:
    """A place in words: 1/64 for the size 0.015625."""
    return f"size {human_size(float(at))}" if at[:1].isdigit() else at


def claims(of: Reader, more: Iterable[Words] = ()) -> list[Claim]:
    """The claims of a study with their verdicts, but for those about rows that the table has not.
    more: further ones, which come first.
    """
    out, common = [], of.study.words.get("claim", {})
    for words in (common | one for one in (*more, *of.study.words["claims"])):
        parts = (words, *(words | more for more in words.get("also", ())))
        cases = [case for part in parts for case in TESTS[part["test"]](of, part)]
        if cases:
            out.append(Claim(words["says"].format(goal=of.goal), words["where"], cases))
    return out


# -------------------------------------------------------------------------------------- comparisons
@dataclass
class _Compared:
    name: str
    ours: Values
    theirs: Values
    gap: Paired | None
    unequal: str
    more: str  # what stands behind the numbers
    chosen: str  # the rows' values of the setting that was tuned


def _pairs(of: Reader, words: Words) -> Iterator[Case]:
    """Whether the first row of each pair is above the second (`times` its value), or above the
    number `than`; with `lower` below it. Of two measures "a | b" the second is the other row's, or
    the same row's. p is corrected for how many there are, measured and judged or not, unless `holm`
    is false.
    """
    found = list(_compared(of, words))
    gaps = {i: one.gap for i, one in enumerate(found) if one.gap and not one.unequal}
    if len(found) > 1 and words.get("holm", True):
        gaps = corrected(gaps, len(found))
    for i, one in enumerate(found):
        gap = gaps.get(i, one.gap)
        if gap is None:
            yield Case(one.name, "not measured", one.more.removeprefix("; "))
        elif one.unequal:
            yield Case(one.name, "not judged", f"{tested(gap)}; {one.unequal}")
        else:
            verdict = verdict_on(gap, words.get("lower", False), words.get("noise", NOISE))
            yield Case(one.name, verdict, _numbers(words, one, gap) + one.more, gap)


def _compared(of: Reader, words: Words) -> Iterator[_Compared]:
    first, _, last = words["measure"].partition(" | ")
    for (row, *rest), table, at in product(words["pairs"], _tables(of, words), of.places(words)):
        here, other = replace(of, table=table), rest[0] if rest else row
        if not here.has([row, other]):
            continue
        ours = here.values(row, first.format(at=at))
        theirs = here.values(other, (last or first).format(at=at))
        theirs = dict.fromkeys(ours, float(words["than"])) if "than" in words else theirs
        scaled = {s: words.get("times", 1) * v for s, v in theirs.items()}
        name = words.get("name", "{row} less {other}").format(
            row=row, other=other, at=named(at), table=table, kind=row.rpartition(" ")[0]
        )
        gap = paired(ours, scaled)
        there = words.get("there", {}).get(name)
        more = f" (there {there})" if gap and there else ""
        for said, measure in words.get("beside", {}).items():
            of_both = [here.values(r, measure.format(at=at)) for r in (row, other)]
            if beside := paired(of_both[0], of_both[1]):
                more += f"; {said} {points_of(beside)}"
        chosen: list[str] = []
        if "{chosen}" in words.get("shows", ""):
            chosen += [v for r in (row, other) for v in (of.study.chosen(table, r) or {}).values()]
        yield _Compared(name, ours, theirs, gap, of.unequal(row, other), more, " and ".join(chosen))


def _tables(of: Reader, words: Words) -> Sequence[str]:
    """The tables that a claim is about."""
    return words.get("on", [of.table])  # type: ignore[no-any-return]  # TOML holds anything


def _numbers(words: Words, one: _Compared, gap: Paired) -> str:
    """The numbers of a comparison as its claim shows them; A, B: a, b in per cent."""
    a, b = middle(one.ours), middle(one.theirs)
    shown: str = words.get("shows", "{gap}")
    known = {"gap": tested(gap), "p": p_text(gap.p), "A": per_cent(a), "B": per_cent(b)}
    known |= {"chosen": one.chosen, "saved": per_cent(1 - a / b) if b else ""}
    return shown.format(a=a, b=b, **known)


def _sides(of: Reader, words: Words, at: str) -> tuple[Values, dict[str, Values], bool]:
    """The values of a row, those of its rivals with runs, the best first, and whether all have."""
    name = words["measure"].format(at=at)
    rivals = [row for row in words["rivals"] if of.has([row])]
    known = {row: values for row in rivals if (values := of.values(row, name))}
    ranked = sorted(known, key=lambda row: (-middle(known[row]), row))
    return (
        of.values(words["own"], name),
        {row: known[row] for row in ranked},
        len(known) == len(rivals),
    )


def _first(of: Reader, words: Words) -> Iterator[Case]:
    """Whether a row is clear of each rival that the paper names; beside the best of them those
    without a clear difference are listed. A rival with other settings is not compared; it counts in
    the correction, as one without runs does.
    """
    for at in of.places(words):
        ours, known, _ = _sides(of, words, at)
        apart = {row: why for row in known if (why := of.unequal(words["own"], row))}
        known = {row: values for row, values in known.items() if row not in apart}
        if not ours or not known:
            yield Case(named(at), "not measured")
            continue
        family = len(words["rivals"])
        gaps = against(ours, known, family)
        verdicts = {row: verdict_on(gaps.get(row), noise=NOISE) for row in known}
        missing = [row for row in words["rivals"] if row not in known and row not in apart]
        unknown: list[Verdict] = ["not measured"] * (len(apart) + len(missing))
        every = [*verdicts.values(), *unknown]
        first, place = next(iter(known)), 1 + sum(middle(v) > middle(ours) for v in known.values())
        numbers = f"{per_cent(middle(ours))}, place {place} of {1 + len(known)}"
        numbers += f", clear of {[*verdicts.values()].count('holds')} of {len(known)}"
        numbers += f" (the paper names {family})" if family > len(known) else ""
        shown = [row for row in known if row == first or verdicts[row] != "holds"]
        numbers += "".join(f"; less {row} {tested(gaps.get(row))}" for row in shown)
        numbers += "".join(f"; {row} not compared: {why}" for row, why in apart.items())
        numbers += f"; without runs: {', '.join(missing)}" if missing else ""
        yield Case(named(at), overall(every), numbers, gaps.get(first))


def _best(of: Reader, words: Words) -> Iterator[Case]:
    """Whether a row is by `bound` ahead of the best of its rivals."""
    for at in of.places(words):
        ours, known, whole = _sides(of, words, at)
        best = max(known, key=lambda m: middle(known[m]), default="")
        gap = paired(ours, known.get(best, {}))
        verdict = verdict_on(gap and gap.less(words["bound"]), noise=NOISE)
        numbers = per_cent(mean([*ours.values()]))
        numbers += f", {best} {per_cent(middle(known[best]))}" if best else ""
        if gap and gap.sd is not None:
            numbers += f", less it {_beside(gap, words['bound'])}"
        yield Case(named(at), overall([verdict] if whole else [verdict, "not measured"]), numbers)


def _within(of: Reader, words: Words) -> Iterator[Case]:
    """Whether two rows are within `bound` of each other."""
    for (row, other), table, at in product(words["pairs"], _tables(of, words), of.places(words)):
        here, name = replace(of, table=table), words.get("name", "{row} less {other}")
        measure = words["measure"].format(at=at)
        gap = paired(here.values(row, measure), here.values(other, measure))
        sides = [
            g and verdict_on(g.less(-words["bound"]), noise=NOISE)
            for g in (gap, gap and gap.turned)
        ]
        verdict = overall([side or "not measured" for side in sides])
        said = name.format(row=row, other=other, table=table)
        yield Case(said, verdict, _beside(gap, words["bound"]) if gap else "")


def _beside(gap: Paired, bound: float) -> str:
    """A difference, and the p of its test against the nearer of plus and minus a bound."""
    p = gap.less(math.copysign(bound, gap.mean)).p
    return points_of(gap) + ("" if p is None else f", p against {100 * bound:g} {p_text(p)}")


# ----------------------------------------------------------------------------------- orders, counts
def seen(found: bool) -> str:
    """The verdict on what is counted and not tested."""
    return "holds" if found else "does not hold"


def _falls(of: Reader, words: Words) -> Iterator[Case]:
    """Whether a number of a row, or in points how much it is above another, falls from each table
    to the next.
    """
    row, *rest = words["pairs"][0]
    found: list[float] = []
    for table in words["on"]:
        here = replace(of, table=table)
        ours = here.values(row, words["measure"])
        value = mean([*ours.values()])
        if rest:
            gap = paired(ours, here.values(rest[0], words["measure"]))
            value = None if gap is None else 100 * gap.mean
        found += [] if value is None else [value]
    numbers = ", ".join(words["shows"].format(a=value) for value in found)
    whole = len(found) == len(words["on"])
    verdict = seen(all(a > b for a, b in pairwise(found))) if whole else "not measured"
    yield Case(words["name"], verdict, numbers if whole else "")


def _chain(of: Reader, words: Words) -> Iterator[Case]:
    """Whether a measure of a row falls from each place to the next, seed by seed."""
    places = of.places(words)
    found = {at: of.values(words["own"], words["measure"].format(at=at)) for at in places}
    known = {at: values for at, values in found.items() if values}
    verdict = overall([verdict_on(paired(a, b), noise=0.0) for a, b in pairwise(known.values())])
    numbers = ", ".join(f"{named(at)} {per_cent(middle(v))} %" for at, v in known.items())
    yield Case("", verdict if len(known) == len(places) else "not measured", numbers)


def _fewest(of: Reader, words: Words) -> Iterator[Case]:
    """Whether a row needs fewer rounds than each of its rivals in every seed."""
    rows = [row for row in (*words["rivals"], words["own"]) if of.has([row])]
    there = [row for row in rows if of.runs(of.table, row)]
    for at in of.places(words):
        found = {row: of.values(row, words["measure"].format(at=at)) for row in there}
        numbers = ", ".join(
            f"{row} {middle(rounds):.0f}" + _share(rounds, of.runs(of.table, row))
            for row, rounds in found.items()
            if rounds
        )
        ours = found.pop(words["own"], {})
        whole = words["own"] in there and len(there) == len(rows) and bool(numbers)
        ahead = all(
            seed in ours and all(ours[seed] < rival.get(seed, math.inf) for rival in found.values())
            for seed in of.runs(of.table, words["own"])
        )
        verdict = seen(ahead) if whole else "not measured"
        yield Case(named(at), verdict, numbers or "nobody gets there")


def _share(reached: Values, runs: Mapping[int, Line]) -> str:
    """How many seeds reached a target, if not all."""
    return "" if len(reached) == len(runs) else f" ({len(reached)}/{len(runs)})"


def _rises(of: Reader, words: Words) -> Iterator[Case]:
    """Whether most steps from a place to the next are up, and the last value is above the first."""
    for row in (r for r in words["rows"] if of.has([r])):
        found = [of.values(row, words["measure"].format(at=at)) for at in of.places(words)]
        values = [middle(v) for v in found if v]
        if len(values) <= len(of.sizes):
            yield Case(row, "not measured")
            continue
        rises = sum(b >= a for a, b in pairwise(values))
        most = rises > (len(values) - 1) / 2 and values[-1] > values[0]
        ends = f"{per_cent(values[0])} to {per_cent(values[-1])}"
        yield Case(row, seen(most), f"{ends}, {rises} of {len(values) - 1} steps up")


def _near(of: Reader, words: Words) -> Iterator[Case]:
    """Whether a single run is within `bound` of another, or above it; undecided where the last
    value of one of them is further than that from its own moving average.
    """
    for pair, table in product(words["pairs"], words["on"]):
        runs = [x for row in pair for x in of.runs(table, row).values()]
        name = words.get("name", "{table}").format(table=table)
        if len(runs) < 2:
            yield Case(name, "not measured")
            continue
        a, b = (of.measure(x, words["measure"]) or 0.0 for x in runs)
        numbers, verdict = f"{per_cent(a)} against {per_cent(b)}", seen(a >= b - words["bound"])
        if any(abs(x["last"]["value"] - x["last_ema"]) > words["bound"] for x in runs):
            ends = " against ".join(per_cent(x["last_ema"]) for x in runs)
            numbers, verdict = f"{numbers}, moving averages {ends}", "undecided"
        yield Case(name, verdict, numbers)


def _both_kinds(of: Reader, words: Words) -> Iterator[Case]:
    """Whether the best of each kind of rows is above the row `than`, of single runs."""
    rows = [words["than"], *(row for kind in words["kinds"] for row in kind)]
    for at in of.places(words):
        name = words["measure"].format(at=at)
        found = {row: middle(of.values(row, name)) for row in rows}
        numbers = ", ".join(f"{row} {per_cent(v)}" for row, v in found.items() if v)
        ahead = all(max(found[r] for r in kind) > found[words["than"]] for kind in words["kinds"])
        whole = all(of.runs(of.table, row) for row in rows)
        yield Case(words["name"].format(at=at), seen(ahead) if whole else "not measured", numbers)


TESTS: dict[str, Callable[[Reader, Words], Iterator[Case]]] = {
    "pairs": _pairs,
    "first": _first,
    "best": _best,
    "within": _within,
    "falls": _falls,
    "chain": _chain,
    "fewest": _fewest,
    "rises": _rises,
    "near": _near,
    "both kinds": _both_kinds,
}
