"""zoo.md: every method at the better of two rates, FedAvg at the best of its six."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fedloom.report.statistics import LEVEL, Paired, holm, p_text, paired

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
    def emas(self) -> dict[int, float]:
        """{seed: the last moving average}."""
        return self.study.emas(self.name, self.study.tuned)

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
        sums = {n: sum(x.emas.values()) for n in both if (x := self.entered(n))}
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
        """A method's last moving average less FedAvg's, seed by seed."""
        own, base = self.entered(name), self.base(name)
        return paired(own.emas, base.emas) if own and base else None


def _best(found: list[Entered]) -> Entered | None:
    """The one with the best held-out accuracy, if all of them are complete."""
    whole = [x for x in found if x.study.chosen(x.name) and len(x.emas) >= SEEDS]
    tuned = [x for x in whole if len(x.study.tried(x.name)[1]) > 1]
    return max(tuned, key=lambda x: x.score) if found and len(tuned) == len(found) else None


def section(zoo: Zoo, high: Zoo) -> list[str | Plot]:
    """The section of the page; nothing before a method has all its runs."""
    fair = Fair(zoo, high)
    names = [n for n in fair.names() if fair.gap(n)]
    if not names:
        return []
    head = ["method", "tuned", "EMA, last", f"{BASE}", f"less {BASE}", "p"]
    head += [c.own for c in ZOO]
    rows = [[*_cells(fair, n), *(_sign(fair, n, c.own) for c in ZOO)] for n in names]
    missing = [n for n in high.methods if n not in names and n not in _BASES]
    said = [NOTE, table(head, rows, texts=2), _together(fair, names)]
    if missing:
        said.append(f"Not all of its runs are there: {', '.join(missing)}.")
    return ["## At the better of two rates", *said]


def _cells(fair: Fair, name: str) -> Iterator[str]:
    own, base, gap = fair.entered(name), fair.base(name), fair.gap(name)
    assert own is not None
    assert base is not None
    yield from (name, own.tuned, seeds_cell([*own.emas.values()]), base.tuned)
    yield from (points_of(gap), p_text(gap.p if gap else None))


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


def _together(fair: Fair, names: list[str]) -> str:
    """Which rows stay clear when all are counted."""
    found = {n: g.p for n in names if (g := fair.gap(n)) and g.p is not None}
    counted = dict(zip(found, holm([*found.values()]), strict=True))
    clear = sorted((n for n, p in counted.items() if p < 1 - LEVEL), key=lambda n: found[n])
    said = ", ".join(clear) or "none"
    return f"Corrected by Holm for the {len(found)} rows, clear of {BASE}: {said}."


NOTE = (
    "Every method has six trials: three values of its main setting at rate 0.2 and at 0.4, or six "
    f"rates, of {BASE} 0.05 to 0.5. The better of the two choices by held-out accuracy counts. "
    f"{BASE} stands with the weight decay of the row's method, and what it was tuned to is named. "
    "Columns of papers say whether the difference has the sign of that paper's table: *as there* "
    "and *the other way* if p is below 0.05, by Student's t on the paired differences of the "
    "seeds, *undecided* otherwise."
)
