"""How unequal the clients' data are, in a line beside the results: from a run's partition.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedloom.core.skew import gini, label_distance

from .curve_data import mean
from .runs import Group

_APART = 0.03


@dataclass(frozen=True)
class Skew:
    """sizes: samples of the smallest and of the largest client; gini: of all sizes, 0 if they are
    equal; labels: total variation between the labels of two clients, mean over all pairs, in
    [0, 1]; None for data without classes.
    """

    clients: int
    sizes: tuple[int, int]
    gini: float
    labels: float | None


def skew_of(partition: Mapping[str, Any]) -> Skew | None:
    """The measures of a partition.json; None of an empty one. Of more than 10,000 clients they are
    those of about a thousand, which the file has.

    >>> skew_of({"sizes": [1, 3], "counts": [[1, 0], [0, 3]]})
    Skew(clients=2, sizes=(1, 3), gini=0.25, labels=1.0)
    """
    sizes, counts = partition.get("sizes"), partition.get("counts")
    if not sizes:
        return None
    return Skew(
        int(partition.get("clients", len(sizes))),
        (int(min(sizes)), int(max(sizes))),
        gini(sizes),
        label_distance(counts) if counts else None,
    )


def words(skew: Skew) -> str:
    """The measures in a line.

    >>> words(Skew(50, (12, 60), 0.2512, 0.6212))
    '50 with 12 to 60 samples (Gini 0.25), label distance 0.62 of 1'
    """
    low, high = skew.sizes
    samples = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    text = f"{skew.clients:,} with {samples} samples (Gini {skew.gini:.2f})"
    return text if skew.labels is None else f"{text}, label distance {skew.labels:.2f} of 1"


def average(groups: Sequence[Group]) -> Skew | None:
    """The means over the runs of groups that have a partition; None without one."""
    by_run = [skew_of(run.partition) for group in groups for run in group.runs]
    skews = [skew for skew in by_run if skew is not None]
    if not skews:
        return None
    sizes = min(s.sizes[0] for s in skews), max(s.sizes[1] for s in skews)
    labels = mean([skew.labels for skew in skews])
    return Skew(skews[0].clients, sizes, mean([skew.gini for skew in skews]) or 0.0, labels)


def common(groups: Sequence[Group]) -> str:
    """One line for all runs, means over them; empty if they have none, or the rows differ by more
    than the seeds do: then the table has it.
    """
    rows, whole = [average([group]) for group in groups], average(groups)
    skews = [row for row in rows if row is not None]
    apart = differ([s.gini for s in skews]) or differ([s.labels for s in skews])
    return "" if whole is None or len(skews) < len(rows) or apart else words(whole)


def differ(values: Sequence[float | None]) -> bool:
    """True if rows have different measures; two draws of one partition are about 0.02 apart.

    >>> differ([0.61, 0.63]), differ([0.2, 0.6]), differ([0.2, None])
    (False, True, True)
    """
    valid = [value for value in values if value is not None]
    return 0 < len(valid) < len(values) or (bool(valid) and max(valid) - min(valid) > _APART)
