"""compression.md: what CFedAvg and FedACG say, beside what was seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from study import Study

from fedloom.papers.lines import Line
from fedloom.report.statistics import Paired

from .compression_runs import CLASSES, FEEDBACK, GROWTH, PLAIN, Runs, after, by_uplink, late
from .page import Case, Claim, Verdict, claims_table, judged, per_cent, said

NEAR = 0.02  # within two points: "almost the same"
SAVED = 0.98  # "about 99 %", positions included
KINDS = ("Top-k", "RD")
BUDGETS = (0.5, 1.0, 2.0)  # model sizes that a client has sent


def claims(study: Study, runs: Runs) -> list[str]:
    """The claims with their verdicts, and how they were judged."""
    found = [_claim(runs, words) for words in study.words["claims"]]
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


def _above(runs: Sequence[Run], a: float, b: float, more: Words) -> tuple[Verdict, str]:
    """Whether an accuracy is above another; a point between two runs is noise."""
    return judged(Paired(a - b, None, 1)), f"{per_cent(a)} against {per_cent(b)}"


def _close(runs: Sequence[Run], a: float, b: float, more: Words) -> tuple[Verdict, str]:
    return _near(*runs)


def _fails(runs: Sequence[Run], a: float, b: float, more: Words) -> tuple[Verdict, str]:
    return said(a < b / 2), f"{per_cent(a)} against {per_cent(b)}"


def _less(runs: Sequence[Run], a: float, b: float, more: Words) -> tuple[Verdict, str]:
    return said(a < b), f"{a:.{more['digits']}f} against {b:.{more['digits']}f}"


def _more(runs: Sequence[Run], a: float, b: float, more: Words) -> tuple[Verdict, str]:
    return said(a > b), f"{a:.{more['digits']}f} against {b:.{more['digits']}f}"


def _over(runs: Sequence[Run], a: float, b: float, more: Words) -> tuple[Verdict, str]:
    return said(a > 1), f"{a:.{more['digits']}f}"


def _grows(runs: Sequence[Run], a: float, b: float, more: Words) -> tuple[Verdict, str]:
    return said((a > GROWTH) == (more["test"] == "grows")), f"x {a:.2f}"


Words = dict[str, Any]
Run = Line | None
TESTS: dict[str, Callable[[Sequence[Run], float, float, Words], tuple[Verdict, str]]] = {
    "near": _close,
    "above": _above,
    "fails": _fails,
    "less": _less,
    "more": _more,
    "over": _over,
    "grows": _grows,
    "bounded": _grows,
}


def _claim(runs: Runs, words: Words) -> Claim:
    """A claim of the study's file: its test for every pair of ways and every p."""
    measure = MEASURES[words.get("measure", "late")]
    cases = []
    for pair in words["pairs"]:
        found = {p: [measure(runs, p, way) for way in pair] for p in words.get("p", CLASSES)}
        if words["test"] == "falls":
            cases.append(_falls([_gap(values) for values in found.values()], words))
            continue
        for p, values in found.items():
            row = pair[0]
            name = words.get("name", "p={p}").format(p=p, row=row, kind=row.rpartition(" ")[0])
            first, *rest = values
            if first is None or None in rest:
                cases.append(Case(name, "open"))
                continue
            lines = [runs.fashion(p, way) for way in pair]
            second = rest[0] if rest else 0.0
            cases.append(Case(name, *TESTS[words["test"]](lines, first, second or 0.0, words)))
    return Claim(words["says"], words["where"], cases)


MEASURES: dict[str, Callable[[Runs, int, str], float | None]] = {
    "late": Runs.late,
    "average": Runs.average,
    "roughness": Runs.shakes,
    "error": Runs.error,
    "growth": Runs.growth,
}


def _gap(values: Sequence[float | None]) -> float | None:
    """One value, or in points how much the first of two is above the second."""
    if len(values) == 1:
        return values[0]
    a, b = values
    return None if a is None or b is None else 100 * (a - b)


def _falls(values: Sequence[float | None], words: Words) -> Case:
    """Whether a number falls from each p to the next larger one."""
    known = [v for v in values if v is not None]
    if len(known) < len(CLASSES):
        return Case("", "open")
    numbers = ", ".join(f"{v:.{words['digits']}f}{words.get('unit', '')}" for v in known)
    return Case(
        f"p={', '.join(map(str, CLASSES))}", said(all(a > b for a, b in pairwise(known))), numbers
    )


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
        found = [late(x) for n in names if (x := runs.by_name.get(n))]
        case = _above([], *found, {}) if len(found) == 2 else ("open", "")
        cases.append(Case(f"{levels} levels", *case))
    says = "FedACG with FedPAQ is above FedPAQ alone (there 50.53 against 41.99)"
    return Claim(says, "FedACG, Table 6", cases)
