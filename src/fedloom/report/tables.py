"""The comparison, one row per group of seeds, as data; how numbers are written; and how unequal the
clients' data are, from a run's partition.json.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from fedloom.core.curves import Value
from fedloom.core.skew import gini, label_distance

from .curve_data import best, first_hit, last, mean, sd, value_of
from .runs import Group, Run

Row = dict[str, Any]
MISSING = "-"  # a cell without a value
# how the metric differs between clients: the summary's name, the column's
CLIENTS = {"worst": "worst client", "tenth": "worst tenth", "spread": "sd between clients"}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def fixed(value: float, places: int, sign: str = "") -> str:
    """Write a number with so many decimals; halfway is rounded away from zero. sign: "+" shows
    both.

    Halfway is tested with a tolerance, because the last digits of a float depend on the order of
    additions.

    >>> fixed(0.125, 2), fixed(82.455, 2), fixed(1.1 * 1.1 - 1.205, 2, "+"), fixed(math.inf, 2)
    ('0.13', '82.46', '+0.01', 'inf')
    """
    if not abs(value) < 1e12:  # such floats have few decimals or none; nor has NaN
        return f"{value:{sign}.{places}f}"
    decimal = Decimal(f"{value:.{places + 8}f}")
    return f"{decimal.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP):{sign}f}"


def human_bytes(n: float | None) -> str:
    """Write a number of bytes in binary units (1 KiB = 1024 B) to three digits.

    >>> human_bytes(512), human_bytes(1536), human_bytes(5 * 2**30), human_bytes(None)
    ('512 B', '1.50 KiB', '5.00 GiB', '-')
    """
    if n is None or not math.isfinite(n):
        return MISSING
    if round(n) < 1024:
        return f"{n:.0f} B"
    power = 0
    # 999.5 shows as 1000: three digits have run out, the next unit has 0.976
    while n >= 999.5 and power < len(_UNITS) - 1:
        n, power = n / 1024, power + 1
    return f"{_three_digits(n)} {_UNITS[power]}"


def human_seconds(seconds: float | None) -> str:
    """Write a duration with the two largest fitting units.

    >>> human_seconds(0.0123), human_seconds(3.21), human_seconds(125), human_seconds(7380)
    ('12.3 ms', '3.21 s', '2 min 05 s', '2 h 03 min')
    """
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if seconds < 0.9995:
        return f"{_three_digits(seconds * 1000)} ms"
    if seconds < 59.95:
        return f"{_three_digits(seconds)} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24:02d} h"


def human_value(value: float | None, unit: str, spread: float | None = None) -> str:
    """Write a metric's value, per cent with two decimals for a share, else four digits.

    >>> human_value(0.85314, "share", 0.004), human_value(12.3456, "")
    ('85.31 ± 0.40 %', '12.35')
    """
    if value is None:
        return MISSING
    if unit == "share":
        middle, deviation, after = fixed(100 * value, 2), fixed(100 * (spread or 0), 2), " %"
    else:
        middle, deviation, after = f"{value:.4g}", f"{spread or 0:.2g}", f" {unit}" if unit else ""
    return f"{middle}{'' if spread is None else f' ± {deviation}'}{after}"


def human_size(fraction: float) -> str:
    """Write a share of the model as papers do: 1/64 if its inverse is a power of two.

    >>> human_size(0.015625), human_size(0.04), human_size(1.0)
    ('1/64', '0.04', '1')
    """
    parts = round(1 / fraction)
    is_power = parts > 1 and parts & (parts - 1) == 0 and abs(parts * fraction - 1) < 1e-5
    return f"1/{parts}" if is_power else f"{fraction:.6g}"


def human_target(target: float, unit: str) -> str:
    """Write a target with no more digits than it was given.

    >>> human_target(0.85, "share"), human_target(6.0, "")
    ('85 %', '6')
    """
    if unit == "share":
        return f"{100 * target:g} %"
    return f"{target:g} {unit}" if unit else f"{target:g}"


def comparison(
    groups: Sequence[Group], target: float | None = None, value: Value = "last-tenth"
) -> list[Row]:
    """Compare groups, one row each, in their order; means are over `Group.averaged_runs`.

    target: in the metric's unit; None: each run's own. It is found on the EMA curve, on straight
    lines between evaluations. value: which value of a run is tested (core.curves.VALUES). The keys
    are those of docs/schemas/compare.json.
    """
    others = dict.fromkeys(name for group in groups for name in further(group))
    return [_row(group, target, value, [*others]) for group in groups]


def further(group: Group) -> list[str]:
    """The metrics per client beside the headline."""
    names = (name for run in group.averaged_runs for name in run.clients.get("metrics") or ())
    return [name for name in dict.fromkeys(names) if name != group.metric.name]


def _row(group: Group, target: float | None, value: Value, others: Sequence[str]) -> Row:
    runs, metric, unequal = group.averaged_runs, group.metric, average_skew([group])

    def over(number: Callable[[Run], float | None]) -> float | None:
        return mean([number(run) for run in runs])

    final = [last(run, metric.column) for run in runs]
    tested = [value_of(run, value) for run in runs]
    goals = [(run, run.target if target is None else target) for run in runs]
    hits = [hit for run, g in goals if g is not None and (hit := first_hit(run, g)) is not None]
    targets = (run.target for run in group.runs if run.target is not None)
    goal = target if target is not None else next(targets, None)
    if all(v is None for v in final):  # nothing was measured, so nothing was missed either
        goal = None
    timed = [(s, len(run.rounds)) for run in runs if (s := run.total("seconds")) is not None]
    return {
        "label": group.label,
        "state": group.state,
        "metric": metric.title,
        "unit": metric.unit,
        "higher_is_better": metric.higher_is_better,
        "seeds": len(runs),
        "rounds": max((len(run.rounds) for run in runs), default=0),
        "value": value,
        "value_mean": mean(tested),
        "value_sd": sd(tested),
        "last_mean": mean(final),
        "last_sd": sd(final),
        "best_mean": over(best),
        "ema_mean": over(lambda run: last(run, metric.ema_column)),
        **{
            f"client_{prefix}{name}": mean([r.summary.get(f"client_{of}_{name}") for r in runs])
            for of, prefix in ((metric.name, ""), *((other, f"{other}_") for other in others))
            for name in CLIENTS
        },
        "unseen_mean": over(lambda run: last(run, f"unseen_{metric.name}")),
        "label_distance": unequal and unequal.labels,
        "size_gini": unequal and unequal.gini,
        "target": goal,
        "reached": None if goal is None else len(hits),
        "not_reached": None if goal is None else len(runs) - len(hits),
        "rounds_to_target": mean([float(hit.round) for hit in hits]),
        "bytes_to_target": mean([hit.bytes for hit in hits]),
        "gradients_to_target": mean([hit.gradients or None for hit in hits]),
        "seconds_to_target": mean([hit.seconds or None for hit in hits]),
        "bytes": over(lambda run: run.total("bytes")),
        "seconds_per_round": mean([seconds / rounds for seconds, rounds in timed]),
        "seconds": over(lambda run: run.total("seconds")),
        "simulated_to_target": mean([hit.simulated or None for hit in hits]),
        "simulated_seconds": over(lambda run: run.total("simulated")),
    }


def _three_digits(value: float) -> str:
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f}"


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


def skew_words(skew: Skew) -> str:
    """The measures in a line.

    >>> skew_words(Skew(50, (12, 60), 0.2512, 0.6212))
    '50 with 12 to 60 samples (Gini 0.25), label distance 0.62 of 1'
    """
    low, high = skew.sizes
    samples = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    text = f"{skew.clients:,} with {samples} samples (Gini {skew.gini:.2f})"
    return text if skew.labels is None else f"{text}, label distance {skew.labels:.2f} of 1"


def average_skew(groups: Sequence[Group]) -> Skew | None:
    """The means over the runs of groups that have a partition; None without one."""
    by_run = [skew_of(run.partition) for group in groups for run in group.runs]
    skews = [skew for skew in by_run if skew is not None]
    if not skews:
        return None
    sizes = min(s.sizes[0] for s in skews), max(s.sizes[1] for s in skews)
    labels = mean([skew.labels for skew in skews])
    return Skew(skews[0].clients, sizes, mean([skew.gini for skew in skews]) or 0.0, labels)


def common_skew(groups: Sequence[Group]) -> str:
    """One line for all runs; empty if rows differ by more than seeds do."""
    rows, whole = [average_skew([group]) for group in groups], average_skew(groups)
    skews = [row for row in rows if row is not None]
    apart = skews_differ([s.gini for s in skews]) or skews_differ([s.labels for s in skews])
    return "" if whole is None or len(skews) < len(rows) or apart else skew_words(whole)


def skews_differ(values: Sequence[float | None]) -> bool:
    """True if rows have different measures; two draws of one partition are about 0.02 apart.

    >>> skews_differ([0.61, 0.63]), skews_differ([0.2, 0.6]), skews_differ([0.2, None])
    (False, True, True)
    """
    valid = [value for value in values if value is not None]
    return 0 < len(valid) < len(values) or (bool(valid) and max(valid) - min(valid) > _APART)
