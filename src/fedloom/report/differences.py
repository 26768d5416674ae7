"""The differences of a comparison: every group less one of them, paired by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedloom.errors import ConfigError, did_you_mean

from .curve_data import last
from .runs import Group, Metric
from .statistics import Paired, Side, holm, p_text, paired, side


@dataclass(frozen=True)
class Difference:
    """A group less another one, over the seeds of both. p_holm: its p, corrected for the number of
    differences of the table; None for one seed.
    """

    label: str
    against: str
    metric: Metric
    found: Paired
    p_holm: float | None = None

    @property
    def verdict(self) -> Side:
        """On which side the group is, by the corrected p."""
        return side(self.found.mean, self.p_holm, self.found.level)

    @property
    def words(self) -> str:
        """The difference, its interval, p, corrected p, and the verdict."""
        text = self.found.words(self.metric.unit).rpartition(":")[0]
        if self.found.p is not None:
            text += f", p {p_text(self.found.p)} (by Holm {p_text(self.p_holm)})"
        return f"{text}: {self.verdict}"


def differences(groups: Sequence[Group], against: str | None = None) -> list[Difference]:
    """What each group is less another one, in their order; groups of another metric, or without a
    seed in common, are left out.

    Compared is the last moving average, or the last value where there is none. against: the label
    of that other group; by default the first. Raises ConfigError for a label that no group has.
    """
    labels = [group.label for group in groups]
    if against is not None and against not in labels:
        raise ConfigError(
            f"--against '{against}' is no row of the table; {did_you_mean(against, labels)}"
        )
    if not groups:
        return []
    base = groups[0 if against is None else labels.index(against)]
    out = []
    for group in groups:
        if group is not base and group.metric == base.metric:
            found = paired(_ends(group), _ends(base))
            out += (
                [] if found is None else [Difference(group.label, base.label, base.metric, found)]
            )
    tested = [d.found.p for d in out if d.found.p is not None]
    corrected = iter(holm(tested))
    return [d if d.found.p is None else replace(d, p_holm=next(corrected)) for d in out]


def _ends(group: Group) -> dict[int, float]:
    """{seed: last moving average, or last value}, of the seeds that count."""
    metric, out = group.metric, {}
    for run in group.counted:
        value = last(run, metric.ema_column)
        value = last(run, metric.column) if value is None else value
        if value is not None:
            out[run.seed] = value
    return out


def as_lines(found: Sequence[Difference]) -> list[str]:
    """The differences as text, a line each below a heading; nothing without one.

    Where no two groups share two seeds, one line says that there is no test.
    """
    if not found:
        return []
    base, metric = found[0].against, found[0].metric
    tests = sum(d.found.p is not None for d in found)
    if not tests:
        return [
            f"Only one seed in common with {base}: no difference can be told from chance "
            "(`fedloom run ... --seeds 3` makes three)."
        ]
    points = " in points" if metric.unit == "share" else ""
    name, width = metric.name.replace("_", " "), max(len(d.label) for d in found)
    lines = [f"Less {base}{points} (last moving average of the {name}, paired by seed):"]
    lines += [f"  {d.label:<{width}}  {d.words}" for d in found]
    counted = f"{tests} comparisons" if tests > 1 else "one comparison"
    return [*lines, f"Verdicts are at 5 %, by Holm's p for {counted}."]


def columns(label: str, found: Sequence[Difference]) -> dict[str, Any]:
    """The numbers of a row of the table, for a file; None where there is no difference."""
    d = next((d for d in found if d.label == label), None)
    return {
        "against": d and d.against,
        "pairs": d and d.found.n,
        "difference": d and d.found.mean,
        "difference_low": d and d.found.low,
        "difference_high": d and d.found.high,
        "p": d and d.found.p,
        "p_holm": d and d.p_holm,
        "verdict": d and d.verdict,
    }
