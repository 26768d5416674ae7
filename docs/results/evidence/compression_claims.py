"""compression.md: what CFedAvg and FedACG say, beside what was seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .compression_runs import CLASSES, FEEDBACK, PLAIN, Runs, by_uplink, label
from .numbers import at_or_before
from .page import Claim, claims_table, per_cent, together

__all__ = ["BUDGETS", "claims"]

NEAR = 0.02  # within two points: "almost the same"
CODED = FEEDBACK[1:]
LOST = ("topk .99", "dropping .99")  # also run without feedback
BUDGETS = (0.5, 1.0, 2.0)  # model sizes that a client has sent
Case = tuple[str, bool | None, str]


def claims(runs: Runs) -> list[str]:
    """The claims with yes, no or open, and how they were judged."""
    found = [*_accuracy(runs), *_feedback(runs), *_shape(runs), *_errors(runs)]
    return [claims_table([*found, *_uplink(runs), _mnist(runs), *_fedpaq(runs)]), NOTE]


NOTE = (
    "Judged on the moving average (0.9) after the last round, unless said otherwise; one seed, so "
    'that a point is noise. *Within two points* stands for "almost the same". Roughness: mean of '
    "(a_t - m_t)^2 in squared points, m_t the centred mean of five evaluations, five rounds apart. "
    "Growing: the mean of ||e||^2 over the last fifth of the rounds is more than a twentieth above "
    "that over the fifth before. *Failed*: less than half of the uncompressed run's accuracy."
)


def _pairs(
    runs: Runs, value: Callable[[int, str], float | None], above: str, below: str, slack: float = 0
) -> Iterator[Case]:
    """For each p: is one way's value at least the other's, less the slack."""
    for p in CLASSES:
        a, b = value(p, above), value(p, below)
        name = f"p={p}"
        if a is None or b is None:
            yield name, None, ""
        else:
            yield name, a >= b - slack, f"{per_cent(a)} against {per_cent(b)}"


def _accuracy(runs: Runs) -> Iterator[Claim]:
    where = "CFedAvg, section 5, 2-a, Figure 1"
    for way in ("topk .9", "topk .99"):
        says = f"{label(way)} is almost as good as no compression: within two points, or better"
        yield together(says, where, list(_pairs(runs, runs.ema, way, PLAIN, NEAR)))
    says = "RD becomes worse from .9 to .99"
    yield together(says, where, list(_pairs(runs, runs.ema, "dropping .9", "dropping .99")))
    for comp in (".9", ".99"):
        says = f"Top-k is better than RD at the same compression, {comp}"
        pair = f"topk {comp}", f"dropping {comp}"
        yield together(says, "CFedAvg, B.1", list(_pairs(runs, runs.ema, *pair)))
    a, b = runs.ema(1, "dropping .99"), runs.ema(1, PLAIN)
    failed = None if a is None or b is None else a < b / 2
    numbers = "" if failed is None else f"{per_cent(a)} against {per_cent(b)}"
    yield Claim("RD .99 fails at p=1", "CFedAvg, B.1, Figure 4", failed, numbers)


def _feedback(runs: Runs) -> Iterator[Claim]:
    for way in LOST:
        pair = way, f"{way}, no feedback"
        says = f"{label(way)} is better with error feedback than without"
        cases = list(_pairs(runs, runs.ema, *pair))
        yield together(says, "CFedAvg, section 5, 2-b, Figures 1, 6, 7", cases)
        gaps = []
        for p in CLASSES:
            a, b = (runs.ema(p, w) for w in pair)
            gaps += [] if a is None or b is None else [a - b]
        seen = gaps == sorted(gaps, reverse=True) if len(gaps) == len(CLASSES) else None
        said = ", ".join(f"{100 * g:+.2f}" for g in gaps)
        numbers = f"p={', '.join(map(str, CLASSES))}: {said} points" if seen is not None else ""
        says = f"The gap of {label(way)} grows as p falls"
        yield Claim(says, "CFedAvg, section 5, 2-b", seen, numbers)


def _shape(runs: Runs) -> Iterator[Claim]:
    where = "CFedAvg, section 5, 2-a, and B.1"
    rough = [runs.shakes(p, PLAIN) for p in CLASSES]
    known = [r for r in rough if r is not None]
    seen = known == sorted(known, reverse=True) if len(known) == len(CLASSES) else None
    said = f"roughness at p={', '.join(map(str, CLASSES))}: {', '.join(f'{r:.2f}' for r in known)}"
    says = "Without compression the curve zigzags, the more the smaller p"
    yield Claim(says, where, seen, "" if seen is None else said)
    for way in ("dropping .9", "topk .99"):
        a, b = runs.shakes(1, way), runs.shakes(1, PLAIN)
        smooth = None if a is None or b is None else a < b
        numbers = "" if smooth is None else f"roughness {a:.2f} against {b:.2f}"
        says = f"At p=1 {label(way)} with feedback is smoother than no compression"
        yield Claim(says, where, smooth, numbers)
        a, b = runs.average(1, way), runs.average(1, PLAIN)
        better = None if a is None or b is None else a > b
        numbers = "" if better is None else f"{per_cent(a)} against {per_cent(b)}"
        says = f"and converges better (mean accuracy over the rounds): {label(way)}"
        yield Claim(says, "CFedAvg, B.1, Figure 4d", better, numbers)


def _errors(runs: Runs) -> Iterator[Claim]:
    where = "CFedAvg, Figures 3, 8, 9"
    cases: list[Case] = []
    for way in CODED:
        for p in CLASSES:
            ratio = runs.error(p, way)
            found = None if ratio is None else ratio > 1
            cases.append((f"{label(way)}, p={p}", found, f"{ratio:.1f}" if ratio else ""))
    says = "||e||^2 is a few times ||delta||^2 (here: the quotient, over the last fifth)"
    yield together(says, where, cases)
    for kind in ("topk", "dropping"):
        cases = []
        for p in CLASSES:
            a, b = runs.error(p, f"{kind} .99"), runs.error(p, f"{kind} .9")
            more = None if a is None or b is None else a > b
            cases.append((f"p={p}", more, "" if more is None else f"{a:.1f} against {b:.1f}"))
        yield together(f"The quotient is larger at .99 than at .9: {label(kind)}", where, cases)
    for way in CODED:
        cases = []
        bounded = way.endswith(".9")
        for p in CLASSES:
            end = runs.grows(p, way)
            seen = None if end is None else end[1] != bounded
            cases.append((f"p={p}", seen, f"x {end[0]:.2f}" if end else ""))
        says = "stays bounded" if bounded else "keeps growing"
        yield together(f"||e||^2 of {label(way)} {says}", where, cases)
    for way in CODED:
        ratios = [runs.error(p, way) for p in CLASSES]
        known = [r for r in ratios if r is not None]
        seen = known == sorted(known, reverse=True) if len(known) == len(CLASSES) else None
        said = f"p={', '.join(map(str, CLASSES))}: {', '.join(f'{r:.1f}' for r in known)}"
        says = f"The quotient of {label(way)} is larger the smaller p"
        yield Claim(says, "CFedAvg, B.2", seen, "" if seen is None else said)


def _uplink(runs: Runs) -> Iterator[Claim]:
    for true, unit in ((False, "nominal"), (True, "in true bytes")):
        cases: list[Case] = []
        for budget in BUDGETS:
            values = {}
            for way in FEEDBACK:
                line = runs.fashion(5, way)
                found = at_or_before(by_uplink(line, true), budget) if line else None
                values[way] = found
            kinds = [(values[w], values[w.replace(".9", ".99")]) for w in CODED if ".99" not in w]
            best = [max(v for v in pair if v) if any(pair) else None for pair in kinds]
            said = ", ".join(f"{label(w)} {per_cent(v)}" for w, v in values.items() if v)
            whole = all(runs.fashion(5, w) for w in FEEDBACK) and None not in best
            # without compression not one round fits into less than one model
            plain = values[PLAIN] or 0.0
            seen = all(v is not None and v > plain for v in best) if whole else None
            cases.append((f"{budget:g} model sizes", seen, said))
        says = f"At p=5 the better Top-k and the better RD are ahead at equal uplink, {unit}"
        yield together(says, "CFedAvg, Figure 2", cases)


def _mnist(runs: Runs) -> Claim:
    says = "MNIST, their network, p=1: Top-k .99 costs no accuracy (two points) and saves 99 %"
    plain, coded = (runs.by_name.get(f"mnist p=1, {w}") for w in (PLAIN, "topk .99"))
    if plain is None or coded is None:
        return Claim(says, "CFedAvg, section 5, 2-a", None, "")
    near = coded["last_ema"] >= plain["last_ema"] - NEAR
    saved = 1 - coded["bytes_up"] / plain["bytes_up"]
    numbers = (
        f"{per_cent(coded['last_ema'])} against {per_cent(plain['last_ema'])}; of the bytes up "
        f"{per_cent(saved)} % saved, positions included"
    )
    return Claim(says, "CFedAvg, section 5, 2-a", near, numbers)


def _fedpaq(runs: Runs) -> Iterator[Claim]:
    for levels in (7, 127):
        names = [f"fedacg, fedpaq {levels}", f"fedavg, fedpaq {levels}"]
        ours, theirs = (runs.by_name.get(n) for n in names)
        says = f"FedACG with FedPAQ ({levels} levels) is above FedPAQ alone (there +8.54 points)"
        if ours is None or theirs is None:
            yield Claim(says, "FedACG, Table 6", None, "")
            continue
        a, b = ours["last_ema"], theirs["last_ema"]
        yield Claim(says, "FedACG, Table 6", a > b, f"{per_cent(a)} against {per_cent(b)}")
