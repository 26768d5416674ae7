"""zoo.md: what the papers say of their methods, beside what was seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from fedloom.papers.series import roughness
from fedloom.report.curve_data import mean
from fedloom.report.statistics import Paired, against, corrected, p_text, paired
from fedloom.report.tables import fixed

from .page import (
    MISSING,
    Case,
    Claim,
    Plot,
    all_of,
    claims_table,
    judged,
    points_of,
    table,
    tested,
)
from .published import ACG_GAINS, CORRECTION, Published, columns
from .zoo_runs import BASE, OWN_RATE, Zoo, accuracies


def papers(zoo: Zoo) -> list[str | Plot]:
    """For each paper's table: every method's distance from FedAvg, there and here."""
    out: list[str | Plot] = []
    for column in columns(zoo.study):
        if not (found := _distances(column, zoo)):
            continue
        bases = [b for b in (BASE, OWN_RATE) if b in zoo.methods]
        head = ["method", "in the paper"]
        for base in bases:
            head += [f"less {BASE} at {zoo.chosen(base) or '?'}", "p by Holm"]
        every = [_gaps(zoo, list(found), base) for base in bases]
        rows = []
        for name, there in found.items():
            own = [gaps.get(name) for gaps in every]
            cells = [c for g in own for c in (points_of(g), _p(g))]
            rows.append([name, f"{there:+.2f}", *cells, _sign(zoo, name, there, own)])
        out += [f"### Less {BASE}, in points: {column.source}", table([*head, "sign"], rows)]
    return [*out, SIGNS] if out else []


SIGNS = (
    "On the mean of the last tenth of evaluations. *As there* and *the other way*: p is below "
    "0.05, by Student's t on the paired differences of the seeds (three seeds: the interval "
    "reaches 4.303 standard errors either way), corrected by Holm for the judged rows of the "
    f"column; *undecided* otherwise. Where {BASE} also ran at the best of its further rates, a "
    "sign needs both comparisons; *at the common rate only* has the first alone. *Not judged*: the "
    "runs differ in a setting that is not the method's, or the method was not tuned; its p is "
    "uncorrected, in brackets. Data, network and rounds differ from the paper's: signs compare, "
    "sizes do not."
)


def _gaps(zoo: Zoo, names: Sequence[str], base: str) -> dict[str, Paired]:
    """{method: less FedAvg}: of the judged ones with p corrected for how many they are."""
    found = {n: g for n in names if (g := zoo.gap(n, base)) is not None}
    return found | corrected({n: g for n, g in found.items() if not zoo.unequal(n)})


def _p(gap: Paired | None) -> str:
    """The corrected p; of a row that is not judged the uncorrected one, in brackets."""
    if gap is None or gap.p is None:
        return MISSING
    return f"({p_text(gap.p)})" if gap.p_holm is None else p_text(gap.p_holm)


def _distances(column: Published, zoo: Zoo) -> dict[str, float]:
    """{method, with either alpha: its distance from FedAvg in the paper}, of those with runs."""
    names = {v: n for n in column.values if n != BASE for v in zoo.variants(n)}
    there = {v: column.values[n] - column.values[BASE] for v, n in names.items()}
    return {v: gap for v, gap in there.items() if zoo.gap(v, BASE) is not None}


def _sign(zoo: Zoo, name: str, there: float, gaps: Sequence[Paired | None]) -> str:
    """Whether the distance from FedAvg has the paper's sign. gaps: from FedAvg at each rate."""
    if reason := zoo.unequal(name):
        return f"not judged: {reason}"
    words = {"yes": "as there", "no": "the other way"}
    seen = [
        words.get(judged(replace(g, mean=math.copysign(1, there) * g.mean)))
        for g in gaps
        if g is not None
    ]
    if not seen[0]:
        return "undecided"
    return seen[0] if len(set(seen)) == 1 else f"{seen[0]}, at the common rate only"


def claims(zoo: Zoo) -> list[str | Plot]:
    """The papers' claims with their verdicts."""
    best = [_best_of(column, zoo) for column in columns(zoo.study)]
    found = [*best, _gains(zoo), _smooth(zoo), _sam(zoo), _correction(zoo)]
    return [claims_table(found), NOTE]


NOTE = (
    "On the mean of the last tenth of evaluations, but for the roughness. Yes or no by Student's t "
    "on paired differences of the seeds (p below 0.05, two-sided, two degrees of freedom with "
    "three seeds), corrected by Holm for the comparisons of the claim; undecided otherwise, open "
    "until the runs are there; not corrected for the number of claims. *Best* needs a clear "
    "difference from every rival; those without one are listed; FedCM and MoFedSAM count with the "
    "decay that suits them better. *Not judged*: other settings than the rivals'. Roughness: mean "
    "of (a_t - m_t)^2 in squared points, m_t the centred mean of five evaluations, five rounds "
    "apart."
)


def _best_of(column: Published, zoo: Zoo) -> Claim:
    """Against all others in the paper's table."""
    says = f"{column.own} is the best of its table's {len(column.values)} methods"
    return Claim(says, column.source, [_place(column, zoo)])


def _place(column: Published, zoo: Zoo) -> Case:
    used = {zoo.variant(n): n for n in column.values}
    ranked = [n for n in zoo.ranked(zoo.tuned) if n in used]
    if missing := sorted(set(used) - set(ranked)):
        return Case("", "open", f"without a run: {', '.join(missing)}")
    own = zoo.variant(column.own)
    numbers = f"place {ranked.index(own) + 1} of {len(ranked)}"
    rivals = [n for n in ranked if n != own]
    if reason := zoo.unequal(own, rivals[0]):
        return Case("", "not judged", f"{numbers}; {reason}")
    part = zoo.tuned
    gaps = against(zoo.values(own, part), {n: zoo.values(n, part) for n in rivals})
    verdicts = {n: judged(gaps.get(n)) for n in rivals}
    clear = sum(v == "yes" for v in verdicts.values())
    numbers += f", clear of {clear} of {len(rivals)}"
    short = [n for n in rivals if verdicts[n] != "yes"] or rivals[:1]
    numbers += "".join(f"; less {n} {tested(gaps.get(n))}" for n in short)
    return Case("", all_of(list(verdicts.values())), numbers)


def _gains(zoo: Zoo) -> Claim:
    found = {n: g for n in ACG_GAINS if (g := zoo.gap(f"{n} + ACG", n)) is not None}
    gaps, cases = corrected(found), []
    for name, (alone, together) in ACG_GAINS.items():
        gap = gaps.get(name)
        numbers = f"{tested(gap)} (there {together - alone:+.2f})" if gap else ""
        cases.append(Case(name, judged(gap), numbers))
    return Claim("The look-ahead of FedACG lifts other methods", "FedACG, Table Aa", cases)


def _smooth(zoo: Zoo) -> Claim:
    says, source = "FedACG's curve is smoother than FedAvgM's", "FedACG, Figure A"
    rough: list[dict[int, float]] = []
    for name in ("FedACG", "FedAvgM"):
        runs = zoo.counted(name, "dirichlet").items()
        found = {s: roughness(accuracies(x)) for s, x in runs}
        rough.append({s: v for s, v in found.items() if v is not None})
    gap = paired(rough[1], rough[0])
    ours, theirs = (mean(list(r.values())) for r in rough)
    if gap is None or ours is None or theirs is None:
        return Claim(says, source, [Case("", "open")])
    momenta = " and ".join(f"{zoo.chosen(n)}" for n in ("FedACG", "FedAvgM"))
    numbers = (
        f"{fixed(ours, 2)} against {fixed(theirs, 2)}, p {p_text(gap.p)}, with momentum {momenta}"
    )
    numbers += " (there 2.26 against 10.30, both with 0.85)"
    return Claim(says, source, [Case("", judged(gap, noise=0.0), numbers)])


def _sam(zoo: Zoo) -> Claim:
    pairs = [("FedSAM", BASE), ("FedSMOO", "FedSAM")]
    pairs[1:1] = [(n, "FedSAM") for n in zoo.variants("MoFedSAM")]
    found = {pair: g for pair in pairs if (g := zoo.gap(*pair)) is not None}
    gaps = found | corrected({pair: g for pair, g in found.items() if not zoo.unequal(*pair)})
    cases = [_case(zoo, pair, gaps.get(pair)) for pair in pairs]
    return Claim(f"{BASE} < FedSAM < MoFedSAM, FedSMOO", "FedSMOO, Table 1", cases)


def _case(zoo: Zoo, pair: tuple[str, str], gap: Paired | None, there: str = "") -> Case:
    """Whether one method is above another."""
    said = " less ".join(pair)
    if gap is None:
        return Case(said, "open", MISSING)
    if reason := zoo.unequal(*pair):
        return Case(said, "not judged", f"{tested(gap)}; {reason}")
    return Case(said, judged(gap), tested(gap) + there)


def _correction(zoo: Zoo) -> Claim:
    """FedSpeed as its authors run it is FedSMOO without the correction of the perturbation."""
    pair = ("FedSMOO", "FedSpeed")
    case = _case(zoo, pair, zoo.gap(*pair), f" (there {CORRECTION:+.2f})")
    return Claim("FedSMOO's correction of the perturbation helps", "FedSMOO, Table 8", [case])
