"""Whether a difference of two methods can be told from chance: Student's t over the seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fedloom.report.curve_data import sd

LEVEL = 0.05  # two-sided
NOISE = 0.01  # of shares: below that two runs of one seed each are not told apart


def student_p(t: float, freedom: int) -> float:
    """The probability that |T| is at least |t|, T Student's t with so many degrees of freedom.

    Closed form for whole degrees (Abramowitz and Stegun, 26.7.3 and 26.7.4), so that a page has
    the same digits wherever it is made; with two it is 1 - |t| / sqrt(2 + t^2).

    >>> round(student_p(1.0, 1), 9), round(student_p(4.303, 2), 4), student_p(0.0, 2)
    (0.5, 0.05, 1.0)
    """
    angle = math.atan2(abs(t), math.sqrt(freedom))
    odd, squared = freedom % 2, math.cos(angle) ** 2
    term, terms = (math.cos(angle), freedom // 2) if odd else (1.0, freedom // 2)
    total = []
    for k in range(1, terms + 1):
        total.append(term)
        term *= squared * (2 * k / (2 * k + 1) if odd else (2 * k - 1) / (2 * k))
    within = math.sin(angle) * math.fsum(total)
    return 1 - (2 / math.pi * (angle + within) if odd else within)


@dataclass(frozen=True)
class Difference:
    """One method less another, seed by seed: its mean, its standard deviation (n - 1; None for one
    seed) and the number of seeds that both have.
    """

    mean: float
    sd: float | None
    seeds: int

    def p(self, beside: float = 0.0) -> float | None:
        """Student's two-sided p of the mean against a value; None for one seed.

        >>> round(Difference(0.01, 0.01, 3).p(), 4)  # t = sqrt(3), two degrees: 1 - sqrt(3 / 5)
        0.2254
        """
        if self.sd is None:
            return None
        far = self.mean - beside
        if self.sd == 0:
            return 1.0 if far == 0 else 0.0
        return student_p(far / (self.sd / math.sqrt(self.seeds)), self.seeds - 1)

    def clear(self, beside: float = 0.0, noise: float = NOISE) -> bool:
        """Say whether the mean is told from a value: p below 0.05. One seed has no test: then
        whether it is further away than `noise`.
        """
        p = self.p(beside)
        return abs(self.mean - beside) > noise if p is None else p < LEVEL


def difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference | None:
    """{seed: value} of two methods -> the difference over the seeds that both have; None of none.

    Paired: runs with the same seed have the same clients, data and start.

    >>> difference({0: 3.0, 1: 5.0}, {0: 1.0, 1: 1.0, 2: 9.0})
    Difference(mean=3.0, sd=1.4142135623730951, seeds=2)
    """
    shared = sorted(set(ours) & set(theirs))
    if not shared:
        return None
    found = [ours[s] - theirs[s] for s in shared]
    return Difference(math.fsum(found) / len(found), sd(found), len(found))


def holm(found: Mapping[str, float], level: float = LEVEL) -> list[str]:
    """{name: p} -> the names that stay clear when all comparisons are counted (Holm, 1979): the
    smallest p against level / n, the next against level / (n - 1), until one fails.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    ['d', 'a']
    """
    out: list[str] = []
    for name in sorted(found, key=lambda n: (found[n], n)):
        if found[name] > level / (len(found) - len(out)):
            break
        out.append(name)
    return out
