"""zoo.md: every method at the better of two rates, FedAvg at the best of its six."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fedloom.report.statistics import Paired, corrected, p_text, paired

from .page import Plot, judged, points_of, seeds_cell, table
from .published import ZOO
from .zoo_runs import BASE, OWN_RATE, SEEDS, Zoo

OTHER_DECAY = f"{BASE}, decay 0.0001"
_BASES = (BASE, OWN_RATE, OTHER_DECAY)


@dataclass(frozen=True)
class Entered:
    """A method as it enters the comparison: tuned in this study, with these finished seeds."""

    name: str
    study: Zoo

    @property
    def score(self) -> float:
        """Its held-out accuracy, by which it was chosen."""
        line = self.study.tuning(self.name)[self.study.chosen(self.name) or ""]
        return float(line["last_validation"])

    @property
    def values(self) -> dict[int, float]:
        """{seed: the mean of the last tenth of its evaluations}."""
        return self.study.values(self.name, self.study.tuned)

    @property
    def tuned(self) -> str:
        """What was chosen, as words."""
        key = self.study.tried(self.name)[0].rpartition(".")[2]
        rate = " at rate 0.4" if self.study.tuned == "higher" and key != "lr" else ""
        return f"{key} {self.study.chosen(self.name)}{rate}"


@dataclass(frozen=True)
class Fair:
    """The comparison. zoo: tuned at the common rate; high: tuned at 0.4."""

    zoo: Zoo
    high: Zoo

    def names(self) -> list[str]:
        """The methods that were tuned in both studies and have all seeds."""
        both = self.zoo.methods.keys() & self.high.methods.keys()
        sums = {n: sum(x.values.values()) for n in both if (x := self.entered(n))}
        return sorted(sums, key=lambda n: -sums[n])

    def entered(self, name: str) -> Entered | None:
        """The better of a method's two tunings; None before both are complete."""
        both = [Entered(name, s) for s in (self.zoo, self.high) if name in s.methods]
        return _best(both)

    def base(self, name: str) -> Entered | None:
        """FedAvg with this method's settings that are no method's; None if it never had them."""
        own = self.entered(name)
        if own is None:
            return None
        bases = [(n, s) for s in (self.zoo, self.high) for n in _BASES if n in s.methods]
        alike = own.study.nuisances(name)
        return _best([Entered(n, s) for n, s in bases if s.nuisances(n) == alike])

    def gap(self, name: str) -> Paired | None:
        """A method less FedAvg, seed by seed, with p corrected for the methods."""
        return self.gaps().get(name)

    def gaps(self) -> dict[str, Paired]:
        """{method: less FedAvg, with p corrected for how many there are}."""
        found = {}
        for name in self.names():
            own, base = self.entered(name), self.base(name)
            gap = paired(own.values, base.values) if own and base else None
            found |= {} if gap is None else {name: gap}
        return corrected(found)


def _best(found: list[Entered]) -> Entered | None:
    """The one with the best held-out accuracy, if all of them are complete."""
    whole = [x for x in found if x.study.chosen(x.name) and len(x.values) >= SEEDS]
    tuned = [x for x in whole if len(x.study.tried(x.name)[1]) > 1]
    return max(tuned, key=lambda x: x.score) if found and len(tuned) == len(found) else None


def section(zoo: Zoo, high: Zoo) -> list[str | Plot]:
    """The section of the page; nothing before a method has all its runs."""
    fair = Fair(zoo, high)
    names = list(fair.gaps())
    if not names:
        return []
    head = ["method", "tuned", "last tenth", f"{BASE}", f"less {BASE}", "p by Holm"]
    head += [c.own for c in ZOO]
    rows = [[*_cells(fair, n), *(_sign(fair, n, c.own) for c in ZOO)] for n in names]
    missing = [n for n in high.methods if n not in names and n not in _BASES]
    said = [NOTE, table(head, rows, texts=2)]
    if missing:
        said.append(f"Not all of its runs are there: {', '.join(missing)}.")
    return ["## At the better of two rates", *said]


def _cells(fair: Fair, name: str) -> Iterator[str]:
    own, base, gap = fair.entered(name), fair.base(name), fair.gap(name)
    assert own is not None
    assert base is not None
    yield from (name, own.tuned, seeds_cell([*own.values.values()]), base.tuned)
    yield from (points_of(gap), p_text(gap.p_holm if gap else None))


def _sign(fair: Fair, name: str, paper: str) -> str:
    """Whether the distance from FedAvg has the sign that it has in a paper's table."""
    (column,) = [c for c in ZOO if c.own == paper]
    plain = name.partition(", alpha")[0]
    gap = fair.gap(name)
    if gap is None or plain not in column.values:
        return ""
    sign = math.copysign(1, column.values[plain] - column.values[BASE])
    words = {"yes": "as there", "no": "the other way"}
    return words.get(judged(replace(gap, mean=sign * gap.mean)), "undecided")


NOTE = (
    "Every method has six trials: three values of its main setting at rate 0.2 and at 0.4, or six "
    f"rates, of {BASE} 0.05 to 0.5. The better of the two choices by held-out accuracy counts. "
    f"{BASE} stands with the weight decay of the row's method, and what it was tuned to is named. "
    "Columns of papers say whether the difference has the sign of that paper's table: *as there* "
    "and *the other way* if p is below 0.05, by Student's t on the paired differences of the "
    "seeds (the mean of the last tenth of evaluations), corrected by Holm for the rows; "
    "*undecided* otherwise."
)
