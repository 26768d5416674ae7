"""The lines of submodels.jsonl, by part, method and seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from study import Study, Table

from fedloom.core.curves import crossing, last_tenth, whole_round
from fedloom.papers.lines import Line
from fedloom.papers.series import points
from fedloom.recipes import RECIPES
from fedloom.report.curve_data import mean
from fedloom.report.statistics import Paired, paired

COLUMNS = {"local": "local_accuracy", "global": "test_accuracy"}
WINDOW = 10  # evaluations: FIARSE does not say which one it reports; ours are ten rounds apart
TENTH = 0  # in their place: the last tenth of the evaluations, which verdicts are on


def size_name(capacity: str | float) -> str:
    """A capacity as the papers write it: a fraction where it is one over a power of two.

    >>> size_name("0.015625"), size_name(0.04), size_name("1"), size_name("mean")
    ('1/64', '0.04', '1', 'mean')
    """
    if capacity == "mean":
        return "mean"
    value = float(capacity)
    whole = 1 / value
    fraction = whole > 1 and whole.is_integer() and int(whole).bit_count() == 1
    return f"1/{int(whole)}" if fraction else f"{value:g}"


@dataclass(frozen=True)
class Part:
    """One part of the evidence: its methods, and the lines that there are with what it plans."""

    name: str
    study: Study

    @property
    def table(self) -> Table:
        """Its rows and changes."""
        return self.study.tables[self.name]

    @property
    def planned(self) -> list[str]:
        """The methods that run in this part."""
        return list(self.table.rows)

    @property
    def rivals(self) -> list[str]:
        """The rules that are compared, without the ablation's variants."""
        return [m for m in self.planned if m not in self.study.words["rows"]["ablation"]]

    def runs(self, method: str) -> dict[int, Line]:
        """{seed: line}; nothing of a method that is not planned."""
        return self.study.finished(self.name, method) if method in self.planned else {}

    @property
    def there(self) -> list[str]:
        """The methods with a finished run."""
        return [m for m in self.planned if self.runs(m)]

    @property
    def sizes(self) -> list[str]:
        """The sizes among the clients, as columns name them, in rising order."""
        found = {s for m in self.there for x in self.runs(m).values() for s in x["sizes"]["global"]}
        return sorted(found - {"mean"}, key=float)

    def values(self, method: str, kind: str, size: str, last: int = TENTH) -> dict[int, float]:
        """{seed: the mean of the last tenth of evaluations, of so many, or with 1 the accuracy
        after the last round}; kind: "local" or "global"; size: or "mean".
        """
        if last != 1:
            return self._lately(method, f"{COLUMNS[kind]}@{size}", last)
        found = {s: x["sizes"][kind].get(size) for s, x in self.runs(method).items()}
        return {s: float(v) for s, v in found.items() if v is not None}

    def _lately(self, method: str, column: str, last: int) -> dict[int, float]:
        out = {}
        for seed, curve in zip(self.runs(method), self.curves(method, column), strict=True):
            values = [curve[t] for t in sorted(curve)]
            if last == TENTH and (late := last_tenth(values)) is not None:
                out[seed] = late
            elif last != TENTH and len(values) >= last:
                out[seed] = math.fsum(values[-last:]) / last
        return out

    def gap(
        self, method: str, other: str, kind: str, size: str, last: int = TENTH
    ) -> Paired | None:
        """One method less another, seed by seed."""
        ours, theirs = (self.values(m, kind, size, last) for m in (method, other))
        return paired(ours, theirs)

    def effect(
        self, with_it: Sequence[str], without: Sequence[str], kind: str, last: int = TENTH
    ) -> Paired | None:
        """What an idea adds: the mean of the methods with it less that of those without it, seed by
        seed, of the mean over the sizes; None while one of them has no run.
        """
        sides = []
        for methods in (with_it, without):
            found = [self.values(m, kind, "mean", last) for m in methods]
            shared = set.intersection(*map(set, found))
            sides.append({s: math.fsum(f[s] for f in found) / len(found) for s in shared})
        return paired(*sides)

    def average(self, method: str, kind: str, size: str, last: int = TENTH) -> float | None:
        """The mean over the seeds."""
        return mean(list(self.values(method, kind, size, last).values()))

    def curves(self, method: str, column: str) -> list[dict[int, float]]:
        """The seeds' {round: value} of a column such as test_accuracy@0.25."""
        return [points(x, column) for x in self.runs(method).values()]

    def clients(self, method: str) -> list[float]:
        """The local accuracy of every client of every seed, each with its own size."""
        return [v for values in self.clients_by_seed(method).values() for v in values]

    def clients_by_seed(self, method: str) -> dict[int, list[float]]:
        """{seed: the local accuracy of every client}."""
        found = {s: x["clients"] for s, x in self.runs(method).items()}
        return {s: [float(v) for v in values if v is not None] for s, values in found.items()}

    def unseen(self, method: str) -> list[dict[float, float]]:
        """The seeds' {size: accuracy on the common test set}: sizes trained or not."""
        out = []
        for line in self.runs(method).values():
            about = line["sizes"]
            found = {float(s): float(v) for s, v in about["global"].items() if s != "mean"}
            found |= {r["capacity"]: float(r["global"]) for r in about.get("unseen") or []}
            out.append(found)
        return out

    @property
    def target(self) -> float:
        """The accuracy that rounds are counted to: the recipe's, or what the part sets instead."""
        return self.table.target or float(RECIPES[self.table.recipe]()["evaluate"]["target"])

    def rounds_to(self, method: str, size: str) -> list[int | None]:
        """The round of each seed at whose end a size is as good as the target, on straight lines
        between its evaluations; the first evaluation if that one is.
        """
        curves = self.curves(method, f"test_accuracy@{size}")
        places = [crossing(curve, self.target) for curve in curves]
        return [None if place is None else whole_round(place) for place in places]
