"""A number of a table from its lines: what the paper prints, and what each seed has here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fedloom.report.curve_data import mean, sd

from .entry import Wanted
from .measure import Context, evaluations, measure, tested

Values = Mapping[int, float]  # {seed: value}


@dataclass(frozen=True)
class Number:
    """A cell: what the paper prints, and each seed's value here (infinite: target not reached).

    tested: of each seed what a verdict on it is on; rounds: of the runs here; evaluations: how many
    at least what is tested is the mean of, None where it is none.
    """

    wanted: Wanted
    values: Values
    rounds: int
    tested: Values = field(default_factory=dict)
    evaluations: int | None = None

    @property
    def mean(self) -> float | None:
        """The mean over the seeds; infinite if one did not reach its target."""
        return mean(list(self.values.values()))

    @property
    def sd(self) -> float | None:
        """The standard deviation over the seeds (n - 1); None for one, or with an infinite one."""
        values = list(self.values.values())
        return sd(values) if values and all(map(math.isfinite, values)) else None

    @property
    def published(self) -> float | None:
        """What the paper prints, if that is a number."""
        return None if self.wanted.cell is None else self.wanted.cell.value

    @property
    def difference(self) -> float | None:
        """Measured less published."""
        here, there = self.mean, self.published
        return None if here is None or there is None or math.isinf(here) else here - there

    @property
    def compared(self) -> dict[int, float]:
        """What is compared. A target that was not reached counts as one round more than the run
        had, the least that it can be; seconds and traffic until then are not compared.
        """
        if self.wanted.metric == "rounds_to_acc":
            least = float(self.rounds + 1)
            return {s: v if math.isfinite(v) else least for s, v in self.tested.items()}
        return {s: v for s, v in self.tested.items() if math.isfinite(v)}


def number(wanted: Wanted, contexts: Mapping[int, Context]) -> Number:
    """A number from {seed: what its metric needs}."""
    found = {seed: measure(wanted, context) for seed, context in contexts.items()}
    lines = [c.seen[wanted.row.key] for c in contexts.values() if wanted.row.key in c.seen]
    rounds = max((int(line.get("rounds", 0)) for line in lines), default=0)
    judged = {seed: tested(wanted, context) for seed, context in contexts.items()}
    known, late = ({s: v for s, v in of.items() if v is not None} for of in (found, judged))
    counts = [n for c in contexts.values() if (n := evaluations(wanted, c)) is not None]
    return Number(wanted, known, rounds, late, min(counts, default=None))
