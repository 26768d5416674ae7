"""zoo.md: what the papers say of their methods, beside what was seen."""

from __future__ import annotations

from .numbers import mean, roughness
from .page import Case, Claim, Plot, claims_table, judged, points_of, said, table
from .published import ACG_GAINS, ZOO, Published
from .zoo_runs import BASE, Zoo, words_of

__all__ = ["claims", "papers"]


def papers(zoo: Zoo) -> list[str | Plot]:
    """For each paper's table: every method's distance from FedAvg, there and here."""
    out: list[str | Plot] = []
    for column in ZOO if zoo.tuned == "dirichlet" else ZOO[-1:]:
        rows = []
        for name, value in column.values.items():
            gap = zoo.gap(zoo.variant(name), BASE)
            if name == BASE or gap is None:
                continue
            there = value - column.values[BASE]
            same = "as there" if gap.mean * there > 0 else "the other way"
            rows.append(
                [
                    zoo.variant(name),
                    f"{there:+.2f}",
                    points_of(gap),
                    same if gap.clear else "undecided",
                ]
            )
        if rows:
            head = ["method", "in the paper", "here", "sign"]
            out += [f"### Less {BASE}, in points: {column.source}", table(head, rows)]
    if out:
        out.append(
            "*Undecided*: the mean over the seeds is within twice its standard error of zero (of "
            "one seed: within a point). Data, network and rounds differ: signs compare, sizes do "
            "not."
        )
    return out


def claims(zoo: Zoo, own: Zoo) -> list[str | Plot]:
    """The papers' claims with their verdicts; own: FAFED's experiment."""
    best = [_best_of(column, zoo, own) for column in ZOO]
    found = [*best, _gains(zoo), _smooth(zoo), _sam(zoo)]
    return [claims_table(found), NOTE]


NOTE = (
    "Yes or no by paired differences of the seeds, undecided within twice their standard error; "
    "open until the runs are there. Roughness: mean of (a_t - m_t)^2 in squared points, m_t the "
    "centred mean of five evaluations, five rounds apart."
)


def _best_of(column: Published, zoo: Zoo, own: Zoo) -> Claim:
    """Against the best of the others in the paper's table; FAFED also in its own experiment."""
    says = f"{column.own} is the best of its table's {len(column.values)} methods"
    cases = [_place(column, zoo)]
    if column.own == "FAFED":
        cases = [cases[0]._replace(of=words_of(zoo.tuned)), _place(column, own)]
        cases[1] = cases[1]._replace(of=words_of(own.tuned))
    return Claim(says, column.source, cases)


def _place(column: Published, zoo: Zoo) -> Case:
    used = {zoo.variant(n): n for n in column.values}
    ranked = [n for n in zoo.ranked(zoo.tuned) if n in used]
    if missing := sorted(set(used) - set(ranked)):
        return Case("", "open", f"without a run: {', '.join(missing)}")
    own = zoo.variant(column.own)
    place = ranked.index(own) + 1
    rival = ranked[1] if place == 1 else ranked[0]
    gap = zoo.gap(own, rival)
    numbers = f"place {place} of {len(ranked)}; less {rival} {points_of(gap)}"
    return Case("", judged(gap), numbers)


def _gains(zoo: Zoo) -> Claim:
    cases = []
    for name, (alone, together) in ACG_GAINS.items():
        gap = zoo.gap(f"{name} + ACG", name)
        numbers = f"{points_of(gap)} (there {together - alone:+.2f})" if gap else ""
        cases.append(Case(name, judged(gap), numbers))
    return Claim("The look-ahead of FedACG lifts other methods", "FedACG, Table Aa", cases)


def _smooth(zoo: Zoo) -> Claim:
    says, source = "FedACG's curve is smoother than FedAvgM's", "FedACG, Figure A"
    rough = {}
    for name in ("FedACG", "FedAvgM"):
        runs = zoo.finished(name, "dirichlet").values()
        rough[name] = mean([roughness({int(t): float(a) for t, a in x["curve"]}) for x in runs])
    ours, theirs = rough.values()
    if ours is None or theirs is None:
        return Claim(says, source, [Case("", "open")])
    numbers = f"{ours:.2f} against {theirs:.2f} (there 2.26 against 10.30)"
    return Claim(says, source, [Case("", said(ours < theirs), numbers)])


def _sam(zoo: Zoo) -> Claim:
    pairs = (("FedSAM", BASE), ("MoFedSAM", "FedSAM"), ("FedSMOO", "FedSAM"))
    cases = []
    for name, other in pairs:
        gap = zoo.gap(name, other)
        cases.append(Case(f"{name} less {other}", judged(gap), points_of(gap) if gap else ""))
    return Claim(f"{BASE} < FedSAM < MoFedSAM, FedSMOO", "FedSMOO, Table 1", cases)
