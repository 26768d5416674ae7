"""Whether a difference of two methods can be told from chance: the one rule of tables and pages.

Compared is one value for each run, as a rule the mean of the last tenth of its evaluations
(core.curves.last_tenth). All rows of a comparison count with the seeds that all of them have.
Differences are paired by seed, because runs of one seed have the same clients, data and start
(those to runs that another code published are not); they are tested by Student's t, and p is
corrected for the number of rivals by Holm. Studies add seeds until it is decided.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from .curve_data import mean as mean_of
from .curve_data import sd as sd_of
from .tables import MISSING, fixed

LEVEL = 0.95  # of intervals; a verdict needs p below 1 - LEVEL, two-sided
Side = Literal["above", "below", "undecided"]
Verdict = Literal["above", "below", "within", "undecided"]
K = TypeVar("K")


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


def student_t(level: float, freedom: int) -> float:
    """The t that |T| exceeds with probability 1 - level: how many standard errors wide an interval
    is, either way. Three seeds have two degrees of freedom, five have four.

    >>> round(student_t(0.95, 2), 3), round(student_t(0.95, 4), 3)
    (4.303, 2.776)
    """
    low, high = 0.0, 1.0
    while student_p(high, freedom) > 1 - level:
        high *= 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if student_p(middle, freedom) > 1 - level else (low, middle)
    return high


@dataclass(frozen=True)
class Paired:
    """The differences of n pairs: their mean and standard deviation (n - 1; None for one pair).

    p_holm: p, corrected for the number of comparisons; None where there is one alone. welch: the
    standard error and the degrees of freedom of means that are not paired; sd and n are then the
    first one's.
    """

    mean: float
    sd: float | None
    n: int
    level: float = LEVEL
    p_holm: float | None = field(default=None, repr=False)
    welch: tuple[float, int] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, differences: Sequence[float], level: float = LEVEL) -> Paired | None:
        """Of such differences; None without one."""
        middle = mean_of(differences)
        if middle is None:
            return None
        return cls(middle, sd_of(differences), len(differences), level)

    @property
    def error(self) -> float | None:
        """The mean's standard error; None for one pair."""
        if self.welch is not None:
            return self.welch[0]
        return None if self.sd is None else self.sd / math.sqrt(self.n)

    @property
    def freedom(self) -> int:
        """Degrees of freedom of Student's t."""
        return self.n - 1 if self.welch is None else self.welch[1]

    @property
    def half(self) -> float:
        """Half the width of the mean's interval; infinite for one pair, which has none."""
        return math.inf if self.error is None else student_t(self.level, self.freedom) * self.error

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.mean + self.half

    @property
    def p(self) -> float | None:
        """Student's two-sided p of a mean of zero; None for one pair, which has no test.

        >>> round(Paired(0.01, 0.01, 3).p, 4)  # t = sqrt(3), two degrees: 1 - sqrt(3 / 5)
        0.2254
        """
        if self.error is None:
            return None
        if self.error == 0:
            return 1.0 if self.mean == 0 else 0.0
        return student_p(self.mean / self.error, self.freedom)

    @property
    def verdict(self) -> Side:
        """On which side of zero the mean is; undecided where that may be chance, or with one pair.
        By the corrected p if there is one.

        >>> [Paired(*d).verdict for d in ((0.02, 0.001, 3), (-0.02, 0.05, 3), (9.0, None, 1))]
        ['above', 'undecided', 'undecided']
        """
        p = self.p if self.p_holm is None else self.p_holm
        if p is None or not p < 1 - self.level:
            return "undecided"
        return "above" if self.mean > 0 else "below"

    def less(self, bound: float) -> Paired:
        """The same pairs, each less a number: to test whether the mean is above that."""
        return replace(self, mean=self.mean - bound, p_holm=None)

    @property
    def turned(self) -> Paired:
        """The same pairs, the other one less this one."""
        return replace(self, mean=0.0 - self.mean)  # of zero zero, not -0.0

    @property
    def p_words(self) -> str:
        """The p of its test, and the corrected one; empty for one pair.

        >>> Paired(0.01, 0.01, 3).p_words
        'p 0.225'
        """
        if self.p is None:
            return ""
        by_holm = "" if self.p_holm is None else f" (by Holm {p_text(self.p_holm)})"
        return f"p {p_text(self.p)}{by_holm}"

    def words(self, unit: str = "share") -> str:
        """The mean, its interval, p and the verdict; of shares in points.

        >>> Paired(0.0084, 0.00483, 3).words()
        '+0.84 ± 1.20 (95 %, Student, 3 seeds), p 0.095: undecided'
        >>> Paired(-1.5, None, 1).words(unit="")
        '-1.5 (one seed, no test): undecided'
        """
        middle = difference_text(self.mean, unit)
        half = difference_text(self.half, unit).removeprefix("+")
        if self.sd is None:
            return f"{middle} (one seed, no test): {self.verdict}"
        level = f"{100 * self.level:g} %"
        basis = f"{level}, Student, {self.n} seeds"
        return f"{middle} ± {half} ({basis}), {self.p_words}: {self.verdict}"


def difference_text(value: float, unit: str) -> str:
    """A difference with its sign: of shares in points to two decimals, else four digits."""
    return fixed(100 * value, 2, "+") if unit == "share" else f"{value:+.4g}"


def amount_text(value: float, unit: str) -> str:
    """How large a difference is, without its sign.

    >>> amount_text(-0.0084, "share"), amount_text(1.5, "")
    ('0.84 points', '1.5')
    """
    text = difference_text(abs(value), unit).removeprefix("+")
    return f"{text} points" if unit == "share" else text


def paired(a: Mapping[int, float], b: Mapping[int, float]) -> Paired | None:
    """a less b, {seed: value}, over the seeds that both have; None without one. Paired, because
    runs with the same seed have the same clients, data and start.

    >>> paired({0: 3.0, 1: 5.0}, {0: 1.0, 1: 1.0, 2: 9.0})
    Paired(mean=3.0, sd=1.4142135623730951, n=2, level=0.95)
    """
    return Paired.of([a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())])


def unpaired(a: Sequence[float], b: Sequence[float]) -> Paired | None:
    """The mean of a less that of b, whose runs are independent, by Welch's test (Biometrika 1947).
    None if one has none; without a test where one has a single run.

    >>> gap = unpaired([1.0, 3.0, 5.0], [2.0, 2.0, 2.0])
    >>> gap.mean, gap.freedom, round(gap.p, 4)  # of b nothing varies: t = 1 / (2 / sqrt(3))
    (1.0, 2, 0.4778)
    """
    one, two, ours, theirs = mean_of(a), mean_of(b), sd_of(a), sd_of(b)
    if one is None or two is None:
        return None
    if ours is None or theirs is None:
        return Paired(one - two, None, len(a))
    squares = ours**2 / len(a), theirs**2 / len(b)  # of the standard errors of both means
    freedom = len(a) + len(b) - 2
    if any(squares):  # rounded down: the test errs towards no difference
        each = squares[0] ** 2 / (len(a) - 1) + squares[1] ** 2 / (len(b) - 1)
        freedom = math.floor(sum(squares) ** 2 / each + 1e-9)
    return Paired(one - two, ours, len(a), welch=(math.sqrt(sum(squares)), freedom))


def holm(p: Sequence[float]) -> list[float]:
    """The p-values of several comparisons, each corrected for their number (Holm 1979), in order.

    The smallest is multiplied by n, the next by n - 1, and so on; none falls below one before it.

    >>> holm([0.01, 0.04, 0.03, 0.005])
    [0.03, 0.06, 0.06, 0.02]
    """
    out, least = [0.0] * len(p), 0.0
    for rank, i in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        least = out[i] = max(least, min(1.0, (len(p) - rank) * p[i]))
    return out


def corrected(gaps: Mapping[K, Paired], family: int = 0) -> dict[K, Paired]:
    """The same differences, each with its p corrected for the number of comparisons: those with a
    test, or with `family` so many, where further ones are named and not measured yet.

    >>> one = {"a": Paired(0.01, 0.001, 3)}
    >>> round(corrected(one, 7)["a"].p_holm / one["a"].p, 6)
    7.0
    """
    tested = [key for key, one in gaps.items() if one.p is not None]
    unknown = [1.0] * max(0, family - len(tested))
    values = holm([*(gaps[key].p or 0.0 for key in tested), *unknown])
    p_by_key = dict(zip(tested, values, strict=False))
    return {key: replace(one, p_holm=p_by_key.get(key)) for key, one in gaps.items()}


def common_seeds(rows: Iterable[Mapping[int, float]]) -> list[int]:
    """The seeds that all rows of a comparison have; rows without any value do not count.

    >>> common_seeds([{0: 0.1, 1: 0.2, 2: 0.3}, {}, {2: 0.1, 0: 0.1}])
    [0, 2]
    """
    sets = [set(row) for row in rows if row]
    return sorted(set.intersection(*sets)) if sets else []


def cut(row: Mapping[int, float], seeds: Iterable[int]) -> dict[int, float]:
    """The values of these seeds."""
    return {seed: row[seed] for seed in seeds if seed in row}


def against(ours: Mapping[int, float], rivals: Mapping[K, Mapping[int, float]]) -> dict[K, Paired]:
    """One row less each of its rivals: over the seeds that all rows have, with p corrected for the
    number of rivals (Holm). Rivals without any value are left out; empty without a common seed.

    >>> gaps = against({0: 3.0, 1: 5.0, 2: 9.0}, {"a": {0: 1.0, 1: 1.0}, "b": {0: 3.0, 1: 5.0}})
    >>> gaps["a"].mean, gaps["a"].n, round(gaps["a"].p, 3), round(gaps["a"].p_holm, 3)
    (3.0, 2, 0.205, 0.41)
    """
    seeds = common_seeds([ours, *rivals.values()])
    pairs = {k: paired(cut(ours, seeds), cut(row, seeds)) for k, row in rivals.items() if row}
    return corrected({k: gap for k, gap in pairs.items() if gap is not None})


def p_text(p: float | None) -> str:
    """A p-value, three decimals; four where three would be those of the level.

    >>> p_text(0.0467), p_text(0.00004), p_text(0.0497), p_text(None)
    ('0.047', '< 0.001', '0.0497', '-')
    """
    if p is None:
        return MISSING
    if p < 0.001:
        return "< 0.001"
    return fixed(p, 4 if 0.0495 <= p < 0.0505 else 3)


# ---------------------------------------------------------------- comparisons that may stop early
# Seeds come in groups; after each group every open comparison is tested once more. Tested seven
# times at 5 %, a difference that is not there would be found far more often than in 5 % of studies.
# So the 5 % are spent (Lan and DeMets, Biometrika 1983): after n of at most N seeds a share
# (n / N)^RHO of them (Kim and DeMets, Biometrika 1987), and a look tests at what it adds to that.
# The levels sum to the whole, so the error is at most that by Bonferroni, for Student's p too;
# levels that use how the looks depend on each other are exact for normal tests only (5.8 %).
RHO = 1.5  # 1 spends early, as Pocock's bounds; 3 late, as O'Brien and Fleming's
FIRST, GROWTH = 4, 1.5  # seeds at the first look, at least; of each look to the one before


def looks(most: int) -> tuple[int, ...]:
    """The numbers of seeds after which comparisons are tested, of at most `most` seeds.

    >>> looks(30), looks(5)
    ((4, 6, 9, 13, 20, 30), (5,))
    """
    out = [most]
    while (before := round(out[0] / GROWTH)) >= FIRST:
        out.insert(0, before)
    return tuple(out)


def levels(at: Sequence[int], error: float) -> list[float]:
    """The two-sided level of a test at each look; they sum to `error`. at: seeds, ascending.

    >>> levels((10,), 0.05), [round(level, 4) for level in levels((4, 9, 16), 0.08)]
    ([0.05], [0.01, 0.0238, 0.0462])
    """
    spent = [0.0, *(error * (n / at[-1]) ** RHO for n in at)]
    return [now - before for before, now in itertools.pairwise(spent)]


@dataclass(frozen=True)
class Decision:
    """What is known of a difference. "above" and "below" zero, "within" +- delta, or "undecided".

    pairs: those at its last look, with an interval that holds at every look and together with
    those of all other comparisons; bound: the p at or below which the difference counts there;
    None before the first look.
    """

    verdict: Verdict = "undecided"
    pairs: Paired | None = None
    bound: float | None = None


def decide(
    differences: Mapping[K, Sequence[float]],
    at: Sequence[int],
    delta: float | None = None,
    error: float = 1 - LEVEL,
) -> dict[K, Decision]:
    """The decisions of all comparisons of a study. differences: of each, one number a seed, in the
    order of seeds; a comparison with too few, or with NaN among them, waits undecided, and so does
    one whose differences are all alike: Student's t has nothing to measure them by.

    Each difference is tested at error / (comparisons less those in which a difference was found),
    which is Holm's rule look by look (Ye, Li, Liu and Yao, Statistics in Medicine 2013). It is
    "within" if its interval, at error / comparisons, lies within +-delta. So the chance of one or
    more false differences in the study is at most `error`, and so is that of a false "within".
    """
    out = {key: Decision() for key in differences}
    whole, detected = len(out), 0
    for look, n in enumerate(at if out else ()):
        level = 1 - levels(at, error / whole)[look]
        waiting = []
        for key, row in differences.items():
            if out[key].verdict == "undecided" and len(row) >= n and all(map(math.isfinite, row)):
                pairs = Paired.of(row[:n], level)
                out[key] = Decision("undecided", pairs)
                waiting.append((key, pairs))
        again = True
        while again:  # a difference that is found leaves the others a larger share
            again = False
            bound = levels(at, error / max(1, whole - detected))[look]
            for key, pairs in waiting:
                if out[key].verdict == "undecided" and pairs is not None:
                    out[key] = replace(out[key], bound=bound)
                    if pairs.sd and pairs.p is not None and pairs.p <= bound:
                        side: Verdict = "above" if pairs.mean > 0 else "below"
                        out[key] = replace(out[key], verdict=side)
                        detected, again = detected + 1, True
        for key, pairs in waiting:
            if out[key].verdict == "undecided" and delta is not None and pairs is not None:
                inside = -delta < pairs.low <= pairs.high < delta
                out[key] = replace(out[key], verdict="within" if inside else "undecided")
    return out
