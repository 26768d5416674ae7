"""submodels.md: what FIARSE's paper says, beside what was seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from .numbers import mean, skewness
from .page import Claim, claims_table, per_cent, points_of, together
from .submodel_runs import PARTS, Part, size_name

__all__ = ["claims"]

OURS, ROLLING = "FIARSE", "FedRolex"
STATIC = ("HeteroFL", "ScaleFL")
NEAR = 0.02  # within two points: "less discernible"
Case = tuple[str, bool | None, str]


def claims(parts: Sequence[Part]) -> list[str]:
    """The claims of every part with yes, no or open."""
    out = []
    for part in parts:
        found = [*_first(part), *_rounds(part), _whole(part), *_unseen(part), *_histograms(part)]
        found += [*_explored(part), *_ablation(part)]
        out += [f"### {PARTS[part.name]}", claims_table(found)]
    return [*out, NOTE]


NOTE = (
    "Means over the seeds; differences are paired by seed, with their standard deviation. A claim "
    "over several cases is seen if it is in all of them, and open while a rule has no run."
)


def _others(part: Part) -> list[str]:
    return [m for m in part.rivals if m != OURS]


def _against_best(part: Part, kind: str, size: str) -> Case:
    """FIARSE and the best of the others in one column."""
    name = f"{kind}, {'mean' if size == 'mean' else f'size {size_name(size)}'}"
    ours = part.average(OURS, kind, size)
    theirs = {m: part.average(m, kind, size) for m in _others(part)}
    known = {m: v for m, v in theirs.items() if v is not None}
    if ours is None or not known:
        return name, None, ""
    best = max(known, key=lambda m: known[m])
    said = f"{per_cent(ours)}, less {best} {points_of(part.gap(OURS, best, kind, size))}"
    ahead = ours > known[best]
    return name, ahead if not ahead or len(known) == len(theirs) else None, said


def _first(part: Part) -> Iterator[Claim]:
    where = "Tables 1 and 5"
    sizes = [_against_best(part, "local", s) for s in (*part.sizes, "mean")]
    yield together("FIARSE is first in local accuracy, every size and the mean", where, sizes)
    sizes = [_against_best(part, "global", s) for s in (*part.sizes, "mean")]
    says = "FIARSE is first in global accuracy, every size and the mean"
    yield together(says, f"{where}, Figures 3 and 6", sizes)


def _rounds(part: Part) -> Iterator[Claim]:
    cases: list[Case] = []
    for size in part.sizes[:-1]:
        found = {m: part.rounds_to(m, size) for m in part.rivals if part.runs(m)}
        reached = {m: mean([t for t in r if t is not None]) for m, r in found.items()}
        reached = {m: t if None not in found[m] else None for m, t in reached.items()}
        said = ", ".join(f"{m} {'not' if t is None else f'{t:.0f}'}" for m, t in reached.items())
        ours = reached.get(OURS)
        rest = [t for m, t in reached.items() if m != OURS and t is not None]
        whole = len(reached) == len(part.rivals)
        seen = (ours is not None and all(ours < t for t in rest)) if whole else None
        if whole and ours is None and not rest:
            seen = None  # nobody got there
        cases.append((f"size {size_name(size)}", seen, said))
    says = f"Below the whole model FIARSE needs the fewest rounds to {100 * part.target:g} %"
    yield together(says, "Figure 3 (70 % on CIFAR-10)", cases)


def _whole(part: Part) -> Claim:
    """At size 1 FedRolex is close to FIARSE, and both are ahead of the static rules."""
    size = part.sizes[-1]
    values = {m: part.average(m, "global", size) for m in (OURS, ROLLING, *STATIC)}
    known = {m: v for m, v in values.items() if v is not None}
    planned = [m for m in values if m in part.planned]
    says = "At the whole model FedRolex is close to FIARSE (two points), both above static rules"
    said = ", ".join(f"{m} {per_cent(v)}" for m, v in known.items())
    if not {OURS, ROLLING} <= set(known) or len(known) < len(planned) or len(known) < 3:
        return Claim(says, "Figure 3", None, said)
    close = abs(known[OURS] - known[ROLLING]) <= NEAR
    static = max(v for m, v in known.items() if m in STATIC)
    return Claim(says, "Figure 3", close and min(known[OURS], known[ROLLING]) > static, said)


def _unseen(part: Part) -> Iterator[Claim]:
    smallest = float(part.sizes[0])
    found: dict[str, dict[float, float]] = {}
    for method in part.rivals:
        seeds = part.unseen(method)
        shared = sorted(set.intersection(*map(set, seeds))) if seeds else []
        found[method] = {s: sum(c[s] for c in seeds) / len(seeds) for s in shared}
    ours, cases = found.get(OURS, {}), []
    for size in (s for s in ours if s < smallest * (1 - 1e-9)):
        rest = {m: c[size] for m, c in found.items() if m != OURS and size in c}
        best = max(rest, key=lambda m: rest[m]) if rest else None
        whole = len(rest) == len(_others(part))
        seen = ours[size] - max(rest.values()) >= 0.1 if rest and whole else None
        beside = f", {best} {per_cent(rest[best])}" if best else ""
        cases.append((f"size {size_name(size)}", seen, f"{per_cent(ours[size])}{beside}"))
    says = "On sizes below the smallest trained one FIARSE is at least 10 points ahead"
    yield together(says, "Figure 4", cases)
    cases = []
    for method, curve in found.items():
        values = [curve[s] for s in sorted(curve)]
        if len(values) > len(part.sizes):
            rises = sum(b >= a for a, b in pairwise(values))
            said = f"{rises} of {len(values) - 1} steps up, from {per_cent(values[0])} to "
            cases.append((method, values[-1] > values[0], said + per_cent(values[-1])))
        else:
            cases.append((method, None, ""))
    yield together("All rules are generally better the larger the size", "Figure 4", cases)


def _histograms(part: Part) -> Iterator[Claim]:
    cases: list[Case] = []
    for method in (m for m in (OURS, *STATIC, ROLLING) if m in part.planned):
        skew = skewness(part.clients(method))
        left = None if skew is None else (skew >= 0) == (method == ROLLING)
        cases.append((method, left, "" if skew is None else f"{skew:+.2f}"))
    says = "Clients' accuracies have a tail to the left, but for FedRolex (skewness)"
    yield together(says, "Figures 2 and 5", cases)


def _explored(part: Part) -> Iterator[Claim]:
    below = part.sizes[:-1] if part.sizes[-1] == "1" else part.sizes
    slow: list[Case] = []
    ends: dict[str, float] = {}
    stable: list[Case] = []
    for size in below:
        gains, falls = [], []
        for curve in part.curves(OURS, f"explored@{size}"):
            values = [curve[t] for t in sorted(curve)]
            half = len(values) // 2
            gains += [(values[half] - values[0], values[-1] - values[half])] if half else []
        for curve in part.curves(OURS, f"replaced@{size}"):
            values = [curve[t] for t in sorted(curve)]
            fifth = len(values) // 5
            if fifth:
                falls.append((sum(values[:fifth]) / fifth, sum(values[-fifth:]) / fifth))
        name = f"size {size_name(size)}"
        one, two = mean([g[0] for g in gains]), mean([g[1] for g in gains])
        if one is None or two is None:
            slow.append((name, None, ""))
        else:
            slow.append((name, two < one, f"+{100 * one:.1f}, then +{100 * two:.1f} points"))
        early, late = mean([f[0] for f in falls]), mean([f[1] for f in falls])
        if early is None or late is None:
            stable.append((name, None, ""))
        else:
            ends[size] = late
            said = f"{per_cent(early)} % of the part a round, then {per_cent(late)}"
            stable.append((name, late < early, said))
    yield together("Exploration slows down (first and second half)", "Figures 7a, 8a", slow)
    yield together("A size's part settles (first and last fifth)", "Figures 7b, 8b", stable)
    order = [ends[s] for s in below if s in ends]
    seen = order == sorted(order, reverse=True) if len(order) == len(below) > 1 else None
    said = ", ".join(f"size {size_name(s)} {per_cent(v)} %" for s, v in ends.items())
    yield Claim("The larger the size, the more stable its part", "Figures 7b, 8b", seen, said)


def _ablation(part: Part) -> Iterator[Claim]:
    if "Pruning-Greedy" not in part.planned:
        return
    where = "Table 6 (there +3.35 local, +3.39 global)"
    cases: list[Case] = []
    for kind in ("local", "global"):
        gap = part.gap(OURS, "Pruning-Greedy", kind, "mean")
        cases.append((kind, None if gap is None else gap.mean > 0, points_of(gap) if gap else ""))
    yield together("FIARSE is better than Pruning-Greedy", where, cases)
    for method in ("re-masking alone", "factor alone"):
        cases = []
        for kind in ("local", "global"):
            gap = part.gap(OURS, method, kind, "mean")
            seen = None if gap is None else gap.mean > 0
            cases.append((kind, seen, points_of(gap) if gap else ""))
        yield together(f"FIARSE is better than {method} (not in the paper)", "-", cases)
