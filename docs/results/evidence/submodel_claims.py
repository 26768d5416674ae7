"""submodels.md: what FIARSE's paper says, beside what was seen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from fedloom.report.tables import fixed

from .numbers import band, mean, skewness
from .page import Case, Claim, claims_table, judged, per_cent, points_of, said
from .submodel_runs import PARTS, WINDOW, Part, size_name

__all__ = ["claims"]

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
        out += [f"### {PARTS[part.name]}", claims_table(found)]
    return [*out, NOTE]


NOTE = (
    "Accuracies in per cent, means over the seeds; differences in points are paired by seed, with "
    "their standard deviation, and undecided within twice their standard error (of one seed: "
    "within a point). Open while a rule that could be better has no run. *Last 10*: the mean of "
    "the last ten evaluations; FIARSE does not say which one it reports."
)


def _others(part: Part) -> list[str]:
    return [m for m in part.rivals if m != OURS]


def _against_best(part: Part, kind: str, size: str, last: int = 1) -> Case:
    """FIARSE and the best of the others in one column."""
    name = "mean" if size == "mean" else f"size {size_name(size)}"
    name += f", last {last}" if last > 1 else ""
    ours = part.average(OURS, kind, size, last)
    theirs = {m: part.average(m, kind, size, last) for m in _others(part)}
    known = {m: v for m, v in theirs.items() if v is not None}
    if ours is None or not known:
        return Case(name, "open")
    best = max(known, key=lambda m: known[m])
    gap = part.gap(OURS, best, kind, size, last)
    verdict = judged(gap)
    if verdict != "no" and len(known) < len(theirs):
        verdict = "open"  # a rule without a run may yet be better
    return Case(name, verdict, f"{per_cent(ours)}, less {best} {points_of(gap)}")


def _first(part: Part) -> Iterator[Claim]:
    for kind, where in (("local", "Tables 1 and 5"), ("global", "Tables 1 and 5, Figures 3 and 6")):
        cases = [_against_best(part, kind, s) for s in (*part.sizes, "mean")]
        cases.append(_against_best(part, kind, "mean", WINDOW))
        yield Claim(f"FIARSE is first in {kind} accuracy", where, cases)


def _rounds(part: Part) -> Claim:
    cases = []
    for size in part.sizes[:-1]:
        reached = {}
        for method in (m for m in part.rivals if part.runs(m)):
            seeds = part.rounds_to(method, size)
            known = [t for t in seeds if t is not None]
            reached[method] = mean(known) if len(known) == len(seeds) else None
        there = {m: t for m, t in reached.items() if t is not None}
        numbers = ", ".join(f"{m} {t:.0f}" for m, t in there.items()) or "nobody gets there"
        whole = bool(there) and len(reached) == len(part.rivals)
        ours = there.pop(OURS, None)
        ahead = ours is not None and all(ours < t for t in there.values())
        cases.append(Case(f"size {size_name(size)}", said(ahead if whole else None), numbers))
    goal = f"{100 * part.target:g} %"
    says = f"Below the whole model FIARSE needs the fewest rounds to {goal}, in every seed"
    return Claim(says, "Figure 3 (70 % on CIFAR-10)", cases)


def _whole(part: Part) -> Claim:
    """At size 1 FedRolex is close to FIARSE, and both are ahead of the static rules."""
    size = part.sizes[-1]
    close = part.gap(OURS, ROLLING, "global", size)
    near = None if close is None else abs(close.mean) <= NEAR
    cases = [Case(f"{OURS} less {ROLLING}", said(near), points_of(close) if close else "")]
    for ours in (OURS, ROLLING):
        for static in (m for m in STATIC if m in part.planned):
            gap = part.gap(ours, static, "global", size)
            cases.append(Case(f"{ours} less {static}", judged(gap), points_of(gap) if gap else ""))
    says = "At the whole model FedRolex is within two points of FIARSE, both above static rules"
    return Claim(says, "Figure 3", cases)


def _unseen(part: Part) -> Iterator[Claim]:
    smallest = float(part.sizes[0])
    curves = {m: band(part.unseen(m)) for m in part.rivals}
    found = {m: dict(zip(b.x, b.mean, strict=True)) if b else {} for m, b in curves.items()}
    cases = []
    for size, ours in found.get(OURS, {}).items():
        if size >= smallest * (1 - 1e-9):
            continue
        rest = {m: found[m][size] for m in _others(part) if size in found[m]}
        best = max(rest, key=lambda m: rest[m], default=None)
        ahead = None if best is None else ours - rest[best] >= FAR
        if ahead and len(rest) < len(_others(part)):
            ahead = None
        beside = f", {best} {per_cent(rest[best])}" if best else ""
        cases.append(Case(f"size {size_name(size)}", said(ahead), f"{per_cent(ours)}{beside}"))
    says = "On sizes below the smallest trained one FIARSE is at least 10 points ahead"
    yield Claim(says, "Figure 4", cases)
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


def _histograms(part: Part) -> Claim:
    cases = []
    for method in (m for m in (OURS, *STATIC, ROLLING) if m in part.planned):
        values = part.clients(method)
        skew = skewness(values)
        if skew is None:
            cases.append(Case(method, "open"))
            continue
        clear = abs(skew) > 2 * (6 / len(values)) ** 0.5  # twice its standard error, if normal
        left = (skew >= 0) == (method == ROLLING)
        cases.append(Case(method, said(left) if clear else "undecided", f"{skew:+.2f}"))
    says = "Clients' accuracies have a tail to the left, but for FedRolex (skewness)"
    return Claim(says, "Figures 2 and 5", cases)


def _fall(curves: Sequence[Mapping[int, float]], parts: int) -> tuple[float, float] | None:
    """The means over the seeds of a curve's first and last part of so many; None if too short."""
    firsts, lasts = [], []
    for curve in curves:
        values = [curve[t] for t in sorted(curve)]
        length = len(values) // parts
        if length:
            firsts.append(math.fsum(values[:length]) / length)
            lasts.append(math.fsum(values[-length:]) / length)
    return (math.fsum(firsts) / len(firsts), math.fsum(lasts) / len(lasts)) if firsts else None


def _explored(part: Part) -> Iterator[Claim]:
    below = [s for s in part.sizes if float(s) < 1]
    slow, stable, ends = [], [], {}
    for size in below:
        name = f"size {size_name(size)}"
        growth = [_gains(c) for c in part.curves(OURS, f"explored@{size}") if len(c) > 2]
        gain = _fall(growth, 2)
        numbers = "" if gain is None else ", then ".join(fixed(100 * g, 3, "+") for g in gain)
        less = None if gain is None else gain[1] < gain[0]
        slow.append(Case(name, said(less), numbers))
        fall = _fall(part.curves(OURS, f"replaced@{size}"), 5)
        if fall is None:
            stable.append(Case(name, "open"))
            continue
        ends[size] = fall[1]
        numbers = f"{per_cent(fall[0])} %, then {per_cent(fall[1])} %"
        stable.append(Case(name, said(fall[1] < fall[0]), numbers))
    says = "Exploration slows down (points a round, first and second half)"
    yield Claim(says, "Figures 7a, 8a", slow)
    says = "A size's part settles (replaced by a round, first and last fifth)"
    yield Claim(says, "Figures 7b, 8b", stable)
    order = list(ends.values())
    falls = all(a > b for a, b in pairwise(order)) if len(order) == len(below) > 1 else None
    numbers = ", ".join(f"size {size_name(s)} {per_cent(v)} %" for s, v in ends.items())
    says = "The larger the size, the more stable its part (replaced, last fifth)"
    yield Claim(says, "Figures 7b, 8b", [Case("", said(falls), numbers)])


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
        cases = []
        for kind in ("local", "global"):
            for last in (1, WINDOW):
                gap = part.gap(OURS, method, kind, "mean", last)
                beside_it = there.get(kind, "") if last == 1 else ""
                numbers = f"{points_of(gap)}{beside_it}" if gap else ""
                name = f"{kind}, last {last}" if last > 1 else kind
                cases.append(Case(name, judged(gap), numbers))
        yield Claim(f"FIARSE is better than {method} (mean over the sizes)", where, cases)
