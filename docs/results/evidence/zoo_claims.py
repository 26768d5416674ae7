"""zoo.md: what the papers say of their methods, beside what was seen."""

from __future__ import annotations

from collections.abc import Iterator

from .numbers import mean, roughness
from .page import MISSING, Claim, Plot, claims_table, points_of, table
from .published import ACG_GAINS, ZOO, Published
from .zoo_runs import BASE, Zoo

__all__ = ["claims", "papers"]


def papers(zoo: Zoo) -> list[str | Plot]:
    """For each paper's table: every method's distance from FedAvg, there and here."""
    out: list[str | Plot] = []
    for column in ZOO:
        rows = []
        for name, value in column.values.items():
            gap = zoo.gap(name, BASE)
            if name == BASE or gap is None:
                continue
            there = value - column.values[BASE]
            same = "as there" if gap.mean * there > 0 else "the other way"
            rows.append([name, f"{there:+.2f}", points_of(gap), same if gap.clear else "undecided"])
        if rows:
            head = ["method", "in the paper", "here", "sign"]
            out += [f"### Less {BASE}, in points: {column.source}", table(head, rows)]
    if out:
        out.append(
            "*Undecided*: the mean over the seeds is within twice its standard error of zero, or "
            "there is one seed only. Data, network and rounds differ: signs compare, sizes do not."
        )
    return out


def claims(zoo: Zoo) -> list[str | Plot]:
    """The papers' claims with yes, no or open."""
    found = [*_first(zoo), *_gains(zoo), _smooth(zoo), _sam(zoo)]
    return [claims_table(found), NOTE]


NOTE = (
    "Best of its table: of the methods of that table which are here; open until all of them have "
    "runs. Roughness: mean of (a_t - m_t)^2 in squared points, m_t the centred mean of five "
    "evaluations, five rounds apart."
)


def _first(zoo: Zoo) -> Iterator[Claim]:
    for column in ZOO:
        yield _best_of(zoo, column)


def _best_of(zoo: Zoo, column: Published) -> Claim:
    ranked = [n for n in zoo.ranked("dirichlet") if n in column.values]
    says = f"{column.own} is the best of its table's {len(column.values)} methods"
    open_ = set(column.values) - set(ranked)
    if open_ or column.own not in ranked:
        return Claim(says, column.source, None, f"without a run: {', '.join(sorted(open_))}")
    place = ranked.index(column.own) + 1
    rival = ranked[1] if place == 1 else ranked[0]
    gap = zoo.gap(column.own, rival)
    numbers = f"place {place} of {len(ranked)}; less {rival} {points_of(gap)}"
    return Claim(says, column.source, place == 1, numbers)


def _gains(zoo: Zoo) -> Iterator[Claim]:
    for name, (alone, together) in ACG_GAINS.items():
        gap = zoo.gap(f"{name} + ACG", name)
        says = f"{name} gains by the look-ahead of FedACG (there {together - alone:+.2f} points)"
        seen = None if gap is None else gap.mean > 0
        yield Claim(says, "FedACG, Table Aa", seen, MISSING if gap is None else points_of(gap))


def _smooth(zoo: Zoo) -> Claim:
    rough = {}
    for name in ("FedACG", "FedAvgM"):
        runs = zoo.finished(name, "dirichlet").values()
        rough[name] = mean([roughness({int(t): float(a) for t, a in x["curve"]}) for x in runs])
    ours, theirs = rough.values()
    says = "FedACG's curve is smoother than FedAvgM's (there 2.26 against 10.30)"
    if ours is None or theirs is None:
        return Claim(says, "FedACG, Figure A", None, "")
    return Claim(says, "FedACG, Figure A", ours < theirs, f"{ours:.2f} against {theirs:.2f}")


def _sam(zoo: Zoo) -> Claim:
    gaps = [zoo.gap("FedSAM", BASE), zoo.gap("MoFedSAM", "FedSAM"), zoo.gap("FedSMOO", "FedSAM")]
    says = f"{BASE} < FedSAM < MoFedSAM and FedSMOO"
    known = [g for g in gaps if g is not None]
    seen = None if len(known) < len(gaps) else all(g.mean > 0 for g in known)
    names = (f"FedSAM less {BASE}", "MoFedSAM less FedSAM", "FedSMOO less FedSAM")
    said = [f"{n} {points_of(g)}" for n, g in zip(names, gaps, strict=True) if g is not None]
    return Claim(says, "FedSMOO, Table 1 and section 5", seen, "; ".join(said))
