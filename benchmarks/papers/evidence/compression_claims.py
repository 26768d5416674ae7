"""compression.md: what CFedAvg and FedACG say, beside what was seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from fedloom.papers.lines import Line
from fedloom.report.statistics import Paired

from .compression_runs import CLASSES, FEEDBACK, PLAIN, Runs, after, by_uplink, late
from .page import Case, Claim, Verdict, claims_table, judged, per_cent, said

NEAR = 0.02  # within two points: "almost the same"
SAVED = 0.98  # "about 99 %", positions included
CODED, KINDS = FEEDBACK[1:], ("Top-k", "RD")
LOST = ("Top-k .99", "RD .99")  # also run without feedback
BUDGETS = (0.5, 1.0, 2.0)  # model sizes that a client has sent


def claims(runs: Runs) -> list[str]:
    """The claims with their verdicts, and how they were judged."""
    found = [*_accuracy(runs), *_feedback(runs), *_shape(runs), *_errors(runs)]
    found += [*_uplink(runs), _mnist(runs), _fedpaq(runs)]
    return [claims_table(found, one_seed=True), NOTE]


NOTE = (
    "One seed: nothing here is tested, and a verdict says what single runs did. Judged on the "
    "mean of the last tenth of the evaluations that the lines keep, unless said otherwise; what "
    "differs by less than a point is *undecided*. *Within two points* stands for *almost the "
    "same*, and is undecided where a run's last value is more than two points from its own moving "
    "average. Counted ratios and orders are compared as they are. Roughness: mean of "
    "(a_t - m_t)^2 in squared points, m_t the centred mean of five evaluations, five rounds apart. "
    "Growing: the mean of ‖e‖² over the last fifth of the rounds is more than a twentieth above "
    "that over the fifth before. *Failed*: less than half of the uncompressed run's accuracy."
)


def _near(ours: Line | None, plain: Line | None) -> tuple[Verdict, str]:
    """Whether a run is within two points of another, or above it; undecided where one of them
    swings by more than that.
    """
    if ours is None or plain is None:
        return "open", ""
    runs = ours, plain
    numbers = " against ".join(per_cent(late(x)) for x in runs)
    if any(abs(x["last"]["value"] - x["last_ema"]) > NEAR for x in runs):
        ends = " against ".join(per_cent(x["last_ema"]) for x in runs)
        return "undecided", f"{numbers}, moving averages {ends}"
    return said(late(ours) >= late(plain) - NEAR), numbers


def _case(name: str, a: float | None, b: float | None) -> Case:
    """Whether an accuracy is above another; a point between two runs is noise."""
    if a is None or b is None:
        return Case(name, "open")
    gap = Paired(a - b, None, 1)
    return Case(name, judged(gap), f"{per_cent(a)} against {per_cent(b)}")


def _pairs(value: Callable[[int, str], float | None], above: str, below: str) -> list[Case]:
    """For each p: is one way's value above the other's."""
    return [_case(f"p={p}", value(p, above), value(p, below)) for p in CLASSES]


def _ordered(values: Sequence[float | None], digits: int, unit: str = "") -> Case:
    """Whether a number falls from each p to the next larger one."""
    known = [v for v in values if v is not None]
    if len(known) < len(CLASSES):
        return Case("", "open")
    falls = all(a > b for a, b in pairwise(known))
    numbers = ", ".join(f"{v:.{digits}f}{unit}" for v in known)
    return Case(f"p={', '.join(map(str, CLASSES))}", said(falls), numbers)


def _accuracy(runs: Runs) -> Iterator[Claim]:
    where = "CFedAvg, section 5, 2-a, Figure 1"
    for way in ("Top-k .9", "Top-k .99"):
        cases = []
        for p in CLASSES:
            cases.append(Case(f"p={p}", *_near(runs.fashion(p, way), runs.fashion(p, PLAIN))))
        says = f"{way} is almost as good as no compression: within two points, or better"
        yield Claim(says, where, cases)
    cases = _pairs(runs.late, "RD .9", "RD .99")
    yield Claim("RD becomes worse from .9 to .99", where, cases)
    for comp in (".9", ".99"):
        says = f"Top-k is better than RD at the same compression, {comp}"
        yield Claim(says, "CFedAvg, B.1", _pairs(runs.late, f"Top-k {comp}", f"RD {comp}"))
    a, b = runs.late(1, "RD .99"), runs.late(1, PLAIN)
    failed = None if a is None or b is None else a < b / 2
    numbers = "" if failed is None else f"{per_cent(a)} against {per_cent(b)}"
    yield Claim("RD .99 fails at p=1", "CFedAvg, B.1, Figure 4", [Case("", said(failed), numbers)])


def _feedback(runs: Runs) -> Iterator[Claim]:
    for way in LOST:
        pair = way, f"{way}, no feedback"
        says = f"{way} is better with error feedback than without"
        where = "CFedAvg, section 5, 2-b, Figures 1, 6, 7"
        yield Claim(says, where, _pairs(runs.late, *pair))
        gaps: list[float | None] = []
        for p in CLASSES:
            a, b = (runs.late(p, w) for w in pair)
            gaps.append(None if a is None or b is None else 100 * (a - b))
        says = f"The gap of {way} grows as p falls"
        yield Claim(says, "CFedAvg, section 5, 2-b", [_ordered(gaps, 2, " points")])


def _shape(runs: Runs) -> Iterator[Claim]:
    where = "CFedAvg, section 5, 2-a, and B.1"
    says = "Without compression the curve zigzags, the more the smaller p (roughness)"
    yield Claim(says, where, [_ordered([runs.shakes(p, PLAIN) for p in CLASSES], 2)])
    smooth, better = [], []
    for way in ("RD .9", "Top-k .99"):
        a, b = runs.shakes(1, way), runs.shakes(1, PLAIN)
        less = None if a is None or b is None else a < b
        numbers = "" if less is None else f"{a:.2f} against {b:.2f}"
        smooth.append(Case(way, said(less), numbers))
        better.append(_case(way, runs.average(1, way), runs.average(1, PLAIN)))
    says = "At p=1 compression with feedback is smoother than none (roughness)"
    yield Claim(says, where, smooth)
    says = "At p=1 they converge better than without compression (mean accuracy over the rounds)"
    yield Claim(says, "CFedAvg, B.1, Figure 4d", better)


def _errors(runs: Runs) -> Iterator[Claim]:
    where = "CFedAvg, Figures 3, 8, 9"
    cases = []
    for way in CODED:
        for p in CLASSES:
            ratio = runs.error(p, way)
            found = None if ratio is None else ratio > 1
            numbers = "" if ratio is None else f"{ratio:.1f}"
            cases.append(Case(f"{way}, p={p}", said(found), numbers))
    yield Claim("The error is larger than the update: ‖e‖² / ‖Δ‖² above 1", where, cases)
    cases = []
    for kind in KINDS:
        for p in CLASSES:
            a, b = runs.error(p, f"{kind} .99"), runs.error(p, f"{kind} .9")
            more = None if a is None or b is None else a > b
            numbers = "" if more is None else f"{a:.1f} against {b:.1f}"
            cases.append(Case(f"{kind}, p={p}", said(more), numbers))
    yield Claim("‖e‖² / ‖Δ‖² is larger at .99 than at .9", where, cases)
    for comp, says in ((".9", "is bounded at .9"), (".99", "keeps growing at .99")):
        cases = []
        for kind in KINDS:
            for p in CLASSES:
                end = runs.grows(p, f"{kind} {comp}")
                seen = None if end is None else end[1] == (comp == ".99")
                numbers = f"x {end[0]:.2f}" if end else ""
                cases.append(Case(f"{kind}, p={p}", said(seen), numbers))
        yield Claim(f"‖e‖² {says}", where, cases)
    for way in CODED:
        says = f"‖e‖² / ‖Δ‖² of {way} is larger the smaller p"
        yield Claim(says, "CFedAvg, B.2", [_ordered([runs.error(p, way) for p in CLASSES], 1)])


def _uplink(runs: Runs) -> Iterator[Claim]:
    for true, unit in ((False, "nominal"), (True, "true bytes")):
        cases = []
        for budget in BUDGETS:
            values = {}
            for way in FEEDBACK:
                line = runs.fashion(5, way)
                values[way] = after(by_uplink(line, true), budget) if line else None
            numbers = ", ".join(f"{w} {per_cent(v)}" for w, v in values.items() if v)
            kinds = ([v or 0.0 for w, v in values.items() if w.startswith(k)] for k in KINDS)
            best = [max(found) for found in kinds]
            whole = all(runs.fashion(5, w) for w in FEEDBACK)
            # without compression not one round fits into less than one model
            plain = values[PLAIN] or 0.0
            ahead = all(v > plain for v in best) if whole else None
            cases.append(Case(f"{budget:g} models sent", said(ahead), numbers))
        says = f"At p=5 the better Top-k and the better RD are ahead at equal uplink, {unit}"
        yield Claim(says, "CFedAvg, Figure 2", cases)


def _mnist(runs: Runs) -> Claim:
    says, where = "MNIST, CFedAvg's network, p=1, Top-k .99", "CFedAvg, section 5, 2-a"
    plain, coded = (runs.by_name.get(f"mnist p=1, {w}") for w in (PLAIN, "Top-k .99"))
    if plain is None or coded is None:
        return Claim(says, where, [Case("", "open")])
    saved = 1 - coded["bytes_up"] / plain["bytes_up"]
    near = Case("within two points", *_near(coded, plain))
    less = Case("about 99 % of the bytes up saved", said(saved > SAVED), f"{per_cent(saved)} %")
    return Claim(says, where, [near, less])


def _fedpaq(runs: Runs) -> Claim:
    cases = []
    for levels in (7, 127):
        names = [f"{a}, fedpaq {levels}" for a in ("fedacg", "fedavg")]
        ours, theirs = (late(x) if (x := runs.by_name.get(n)) else None for n in names)
        cases.append(_case(f"{levels} levels", ours, theirs))
    says = "FedACG with FedPAQ is above FedPAQ alone (there 50.53 against 41.99)"
    return Claim(says, "FedACG, Table 6", cases)
