"""submodels.md: what FIARSE's paper says, beside what was seen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from fedloom.report.curve_data import mean, sd
from fedloom.report.statistics import Paired, against, corrected, p_text, paired
from fedloom.report.tables import fixed

from .drawing import band
from .page import (
    Case,
    Claim,
    all_of,
    claims_table,
    judged,
    per_cent,
    points_of,
    said,
    tested,
)
from .submodel_runs import COLUMNS, TENTH, WINDOW, Part, size_name

OURS, ROLLING = "FIARSE", "FedRolex"
STATIC = ("HeteroFL", "ScaleFL")
NEAR = 0.02  # "less discernible"
FAR = 0.1  # "at least 10 %", read as points


def claims(parts: Sequence[Part]) -> list[str]:
    """The claims of every part with their verdicts."""
    out = []
    for part in parts:
        found = [*_first(part), _rounds(part), _whole(part), *_unseen(part), _histograms(part)]
        found += [*_explored(part), *_ablation(part)]
        one = max(len(part.runs(m)) for m in part.there) == 1
        out += [f"### {part.table.title}", claims_table(found, one_seed=one)]
    return [*out, NOTE]


NOTE = (
    "Accuracies in per cent, means over the seeds of the last tenth of evaluations (two of 20), "
    "but for sizes that nobody trained and the clients, which are measured after the last round. "
    "Differences in points are paired by seed, over the seeds that all rows of a comparison have, "
    "with the 95 % interval (±) and the p of Student's t (three seeds: 4.303 standard errors). "
    "Undecided: p is 0.05 or more, by Holm for the rivals, or for local and global together. "
    "*First* needs a clear difference from every rival: beside the best of them, those without one "
    "are listed. *Within* and *at least* so many points are tested against that number. A part "
    "with one seed has no test: yes and no say what single runs did, by more than a point. Open "
    "while a rule that could be better has no run. *Last* and *last 10*: the difference after the "
    "last round, and of the means of the last ten evaluations, not judged; FIARSE does not say "
    "which one it reports. *ScaleFL* has what its widths and exits allow: see what each size "
    "holds, under *Messages and rounds*."
)


def _others(part: Part) -> list[str]:
    return [m for m in part.rivals if m != OURS]


def _against_all(part: Part, kind: str, size: str) -> Case:
    """FIARSE and the others in one column."""
    name = "mean" if size == "mean" else f"size {size_name(size)}"
    ours = part.average(OURS, kind, size)
    theirs = {m: part.average(m, kind, size) for m in _others(part)}
    known = {m: v for m, v in theirs.items() if v is not None}
    if ours is None or not known:
        return Case(name, "open")
    ranked = sorted(known, key=lambda m: -known[m])
    rows = {m: part.values(m, kind, size) for m in ranked}
    gaps = against(part.values(OURS, kind, size), rows)
    verdicts = {m: judged(gaps.get(m)) for m in ranked}
    verdict = all_of(list(verdicts.values()))
    if verdict != "no" and len(known) < len(theirs):
        verdict = "open"  # a rule without a run may yet be better
    shown = [m for m in ranked if m == ranked[0] or verdicts[m] != "yes"]
    beside = "".join(f", less {m} {tested(gaps.get(m))}" for m in shown)
    return Case(name, verdict, f"{per_cent(ours)}{beside}")


def _first(part: Part) -> Iterator[Claim]:
    for kind, where in (("local", "Tables 1 and 5"), ("global", "Tables 1 and 5, Figures 3 and 6")):
        cases = [_against_all(part, kind, s) for s in (*part.sizes, "mean")]
        yield Claim(f"FIARSE is first in {kind} accuracy", where, cases)


def _rounds(part: Part) -> Claim:
    cases = []
    for size in part.sizes[:-1]:
        methods = [m for m in part.rivals if part.runs(m)]
        reached = {
            m: dict(zip(part.runs(m), part.rounds_to(m, size), strict=True)) for m in methods
        }
        there = {m: [t for t in r.values() if t is not None] for m, r in reached.items()}
        numbers = ", ".join(_reached(m, t, len(reached[m])) for m, t in there.items() if t)
        ours = reached.pop(OURS, {})
        whole = bool(ours) and any(there.values()) and len(methods) == len(part.rivals)
        ahead = all(
            t is not None and all(t < (r.get(seed) or math.inf) for r in reached.values())
            for seed, t in ours.items()
        )
        name = f"size {size_name(size)}"
        cases.append(Case(name, said(ahead if whole else None), numbers or "nobody gets there"))
    goal = f"{100 * part.target:g} %"
    says = f"Below the whole model FIARSE needs the fewest rounds to {goal}, in every seed"
    return Claim(says, "Figure 3 (70 % on CIFAR-10)", cases)


def _reached(method: str, rounds: Sequence[int], seeds: int) -> str:
    """A method's rounds to the target, and how many seeds reached it if not all."""
    share = "" if len(rounds) == seeds else f" ({len(rounds)}/{seeds})"
    return f"{method} {mean(rounds):.0f}{share}"


def _whole(part: Part) -> Claim:
    """At size 1 FedRolex is close to FIARSE, and both are ahead of the static rules."""
    size = part.sizes[-1]
    close = part.gap(OURS, ROLLING, "global", size)
    near = all_of([judged(close and close.turned, -NEAR), judged(close, -NEAR)])
    cases = [Case(f"{OURS} less {ROLLING}", near, _against(close, NEAR) if close else "")]
    pairs = [(o, s) for o in (OURS, ROLLING) for s in STATIC if s in part.planned]
    found = {pair: part.gap(*pair, "global", size) for pair in pairs}
    gaps = corrected({pair: gap for pair, gap in found.items() if gap is not None})
    for pair in pairs:
        gap = gaps.get(pair)
        cases.append(Case(" less ".join(pair), judged(gap), tested(gap) if gap else ""))
    says = "At the whole model FedRolex is within two points of FIARSE, both above static rules"
    return Claim(says, "Figure 3", cases)


def _against(gap: Paired, bound: float) -> str:
    """A difference, and the p of its test against the nearer of plus and minus a bound."""
    p = gap.less(math.copysign(bound, gap.mean)).p
    return points_of(gap) + ("" if p is None else f", p against {100 * bound:g} {p_text(p)}")


def _unseen(part: Part) -> Iterator[Claim]:
    smallest = float(part.sizes[0])
    curves = {m: band(part.unseen(m)) for m in part.rivals}
    found = {m: dict(zip(b.x, b.mean, strict=True)) if b else {} for m, b in curves.items()}
    below = [s for s in found.get(OURS, {}) if s < smallest * (1 - 1e-9)]
    says = "On sizes below the smallest trained one FIARSE is at least 10 points ahead"
    yield Claim(says, "Figure 4", [_far_ahead(part, s, found) for s in below])
    cases = []
    for method, curve in found.items():
        values = [curve[s] for s in sorted(curve)]
        if len(values) <= len(part.sizes):
            cases.append(Case(method, "open"))
            continue
        rises = sum(b >= a for a, b in pairwise(values))
        ends = f"{per_cent(values[0])} to {per_cent(values[-1])}"
        most = rises > (len(values) - 1) / 2 and values[-1] > values[0]
        cases.append(Case(method, said(most), f"{ends}, {rises} of {len(values) - 1} steps up"))
    yield Claim("All rules are generally better the larger the size", "Figure 4", cases)


def _far_ahead(part: Part, size: float, means: Mapping[str, Mapping[float, float]]) -> Case:
    """Whether FIARSE is ten points ahead of the best of the others at a size."""
    rest = {m: means[m][size] for m in _others(part) if size in means[m]}
    best = max(rest, key=lambda m: rest[m], default=None)
    name, numbers = f"size {size_name(size)}", per_cent(means[OURS][size])
    if best is None:
        return Case(name, "open", numbers)
    ours, theirs = (
        {s: c[size] for s, c in zip(part.runs(m), part.unseen(m), strict=True) if size in c}
        for m in (OURS, best)
    )
    gap = paired(ours, theirs)
    verdict = judged(gap, FAR)
    if verdict != "no" and len(rest) < len(_others(part)):
        verdict = "open"
    spread = f", less it {_against(gap, FAR)}" if gap and gap.sd is not None else ""
    return Case(name, verdict, f"{numbers}, {best} {per_cent(rest[best])}{spread}")


def _histograms(part: Part) -> Claim:
    cases = []
    for method in (m for m in (OURS, *STATIC, ROLLING) if m in part.planned):
        by_seed = part.clients_by_seed(method).values()
        skews = [k for values in by_seed if (k := skewness(values)) is not None]
        if not skews:
            cases.append(Case(method, "open"))
            continue
        middle = math.fsum(skews) / len(skews)
        to_the_left = middle if method == ROLLING else -middle
        # of one seed: 1.96 standard errors of a normal sample's skewness
        noise = 1.96 * (6 / min(map(len, by_seed))) ** 0.5
        verdict = judged(Paired(to_the_left, sd(skews), len(skews)), noise=noise)
        cases.append(Case(method, verdict, fixed(middle, 2, "+")))
    says = "Clients' accuracies have a tail to the left, but for FedRolex (skewness)"
    return Claim(says, "Figures 2 and 5", cases)


def _ends(curves: Sequence[Mapping[int, float]], parts: int) -> list[tuple[float, float]]:
    """Of each seed the means of its curve's first and last part of so many; not of short ones."""
    out = []
    for curve in curves:
        values = [curve[t] for t in sorted(curve)]
        if length := len(values) // parts:
            first, last = math.fsum(values[:length]), math.fsum(values[-length:])
            out.append((first / length, last / length))
    return out


def _falls(ends: Sequence[tuple[float, float]]) -> tuple[Paired, float, float] | None:
    """The first less the last part, seed by seed, and the mean of each; None of nothing."""
    firsts, lasts = (
        (dict(enumerate(side)) for side in zip(*ends, strict=True)) if ends else ({}, {})
    )
    gap = paired(firsts, lasts)
    if gap is None:
        return None
    return gap, math.fsum(firsts.values()) / len(firsts), math.fsum(lasts.values()) / len(lasts)


def _explored(part: Part) -> Iterator[Claim]:
    below = [s for s in part.sizes if float(s) < 1]
    slow, stable, ends = [], [], {}
    for size in below:
        name = f"size {size_name(size)}"
        growth = [_gains(c) for c in part.curves(OURS, f"explored@{size}") if len(c) > 2]
        gain = _falls(_ends(growth, 2))
        numbers = "" if gain is None else ", then ".join(fixed(100 * g, 3, "+") for g in gain[1:])
        slow.append(Case(name, judged(gain and gain[0], noise=0.0), numbers))
        replaced = _ends(part.curves(OURS, f"replaced@{size}"), 5)
        fall = _falls(replaced)
        if fall is None:
            stable.append(Case(name, "open"))
            continue
        ends[size] = dict(enumerate(last for _, last in replaced))
        numbers = f"{per_cent(fall[1])} %, then {per_cent(fall[2])} %"
        stable.append(Case(name, judged(fall[0], noise=0.0), numbers))
    says = "Exploration slows down (points a round, first and second half)"
    yield Claim(says, "Figure 7a", slow)
    says = "A size's part settles (replaced by a round, first and last fifth)"
    yield Claim(says, "Figure 7b", stable)
    steps = [judged(paired(a, b), noise=0.0) for a, b in pairwise(ends.values())]
    verdict = all_of(steps) if len(ends) == len(below) else "open"
    numbers = ", ".join(
        f"size {size_name(s)} {per_cent(mean(list(v.values())))} %" for s, v in ends.items()
    )
    says = "The larger the size, the more stable its part (replaced, last fifth)"
    yield Claim(says, "Figure 7b", [Case("", verdict, numbers)])


def _gains(curve: Mapping[int, float]) -> dict[int, float]:
    """By how much a curve rises a round, {round: rise since the evaluation before, per round}."""
    return {t: (curve[t] - curve[s]) / (t - s) for s, t in pairwise(sorted(curve))}


def _ablation(part: Part) -> Iterator[Claim]:
    beside = {
        "Pruning-Greedy": ("Table 6", {"local": " (there +3.35)", "global": " (there +3.39)"}),
        "re-masking alone": ("not in the paper", {}),
        "factor alone": ("not in the paper", {}),
    }
    for method, (where, there) in beside.items():
        if method not in part.planned:
            continue
        gaps = {
            last: {kind: part.gap(OURS, method, kind, "mean", last) for kind in COLUMNS}
            for last in (TENTH, 1, WINDOW)
        }
        cases = _kinds(gaps, there)
        yield Claim(f"FIARSE is better than {method} (mean over the sizes)", where, cases)
    for idea, with_it, without in IDEAS:
        if not {*with_it, *without} <= set(part.planned):
            continue
        gaps = {
            last: {kind: part.effect(with_it, without, kind, last) for kind in COLUMNS}
            for last in (TENTH, 1, WINDOW)
        }
        says = f"{idea} helps: the two variants with it less the two without, mean over the sizes"
        yield Claim(says, "not in the paper", _kinds(gaps, {}))


def _kinds(gaps: Mapping[int, Mapping[str, Paired | None]], there: Mapping[str, str]) -> list[Case]:
    """Local and global accuracy: judged on the last tenth; what the last evaluation and the last
    ten say stands beside it. there: what the paper has.
    """
    known = corrected({kind: gap for kind, gap in gaps[TENTH].items() if gap is not None})
    cases = []
    for kind in gaps[TENTH]:
        gap = known.get(kind)
        beside = [
            f"{said} {points_of(other)}"
            for last, said in ((1, "last"), (WINDOW, f"last {WINDOW}"))
            if (other := gaps[last][kind]) is not None
        ]
        numbers = "" if gap is None else f"{tested(gap)}{there.get(kind, '')}"
        cases.append(Case(kind, judged(gap), "; ".join(filter(None, [numbers, *beside]))))
    return cases


GREEDY, MASKS, FACTOR = "Pruning-Greedy", "re-masking alone", "factor alone"
IDEAS = (
    ("Re-masking", (OURS, MASKS), (FACTOR, GREEDY)),
    ("The bias factor", (OURS, FACTOR), (MASKS, GREEDY)),
)


def skewness(values: Sequence[float]) -> float | None:
    """Fisher's moment coefficient E[(x - m)^3] / s^3; negative with a longer tail to the left.

    >>> skewness([1.0, 2.0, 3.0]), skewness([0.0, 3.0, 3.0]) < 0, skewness([1.0, 1.0])
    (0.0, True, None)
    """
    if not values:
        return None
    middle = math.fsum(values) / len(values)
    second = math.fsum((v - middle) ** 2 for v in values) / len(values)
    third = math.fsum((v - middle) ** 3 for v in values) / len(values)
    return third / second**1.5 if second > 0 else None
