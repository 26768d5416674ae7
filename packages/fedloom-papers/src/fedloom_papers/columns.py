"""The columns of a paper's table: published, measured, what is tested."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fedloom.report.curve_data import mean, sd
from fedloom.report.statistics import Paired
from fedloom.report.statistics import Verdict as Side
from fedloom.report.tables import MISSING, fixed

from .entry import Protocol
from .measure import Number
from .table import Measure, Table, gaps_to_runs


def measure_columns(table: Table, protocol: Protocol, measure: Measure) -> dict[str, list[str]]:
    """{heading: a cell for each row}: published, measured and difference of a measure, as far as
    there are any; what claims test of it, if that is not the number itself; and where a difference
    to published runs is.
    """
    by_row = {n.quantity.row.key: n for n in table.numbers_of(protocol, measure)}
    keys = [row.key for row in table.rows_of(protocol)]
    numbers, gaps = [by_row.get(key) for key in keys], gaps_to_published(table, protocol)
    columns = {
        "paper": [_published(n) for n in numbers],
        "here": [MISSING if n is None else cell(n, n.values) for n in numbers],
        "diff (95 %)" if gaps else "diff": [_difference(n, gaps) for n in numbers],
    }
    columns = {k: cells for k, cells in columns.items() if k == "here" or {*cells} != {MISSING}}
    if gaps:
        sides = (gaps.get((key, measure[0])) for key in keys)
        return {**columns, "": [MISSING if side is None else side[1] for side in sides]}
    other = any(n is not None and n.tested != n.values for n in numbers)
    if other and measure in table.claimed_measures(protocol):
        columns["last tenth"] = [MISSING if n is None else cell(n, n.tested) for n in numbers]
    return columns


def gaps_to_published(
    table: Table, protocol: Protocol
) -> Mapping[tuple[str, str], tuple[Paired, Side]]:
    """The differences to published runs, and where they are; none of runs that repeat them."""
    return {} if table.plan.as_published else gaps_to_runs(table.numbers_of(protocol))


# ------------------------------------------------------------------------------------- one number
def number_text(value: float, metric: str) -> str:
    if metric.startswith("rounds_to"):
        return f"{value:.0f}"
    if metric.endswith(("_pct", "_s")) or "speedup" in metric or "roughness" in metric:
        return fixed(value, 2)
    is_fraction = metric.endswith("_fraction") or metric.startswith(("centre_", "client_mean"))
    return fixed(value, 4) if is_fraction else f"{value:.4g}"


def _published(number: Number | None) -> str:
    if number is None or number.quantity.cell is None:
        return MISSING
    cell = number.quantity.cell
    if cell.value is None:
        return cell.text or MISSING
    spread = "" if cell.std is None else f"±{cell.std:g}"
    if cell.std is not None and cell.seeds:  # a deviation that was made, and not printed
        spread = f"±{number_text(cell.std, cell.metric)}"
    return number_text(cell.value, cell.metric) + spread


def cell(number: Number | None, values: Mapping[int, float]) -> str:
    """The mean and standard deviation of some values of a number; of targets that some seeds
    reached, theirs and how many do.
    """
    finite = [v for v in values.values() if math.isfinite(v)]
    if number is None or not values:
        return MISSING
    metric, spread = number.quantity.metric, sd(finite)
    if not finite:
        return f"{number.rounds}+" if metric.startswith("rounds") else "never"
    text = number_text(mean(finite) or 0.0, metric)
    if len(finite) < len(values):
        return f"{text} ({len(finite)}/{len(values)})"
    return f"{text}±{number_text(spread, metric)}" if spread else text


def _difference(number: Number | None, gaps: Mapping[tuple[str, str], tuple[Paired, Side]]) -> str:
    """Measured less published, and half the interval where both have runs."""
    if number is None or (gap := number.difference) is None:
        return MISSING
    metric = number.quantity.metric
    text = number_text(gap, metric)
    text = text if text.startswith("-") else f"+{text}"
    gap_and_side = gaps.get((number.quantity.row.key, metric))
    return text if gap_and_side is None else f"{text}±{number_text(gap_and_side[0].half, metric)}"


def gap_text(gap: Paired | None, scale: float = 1.0) -> str:
    """A difference in points, with its 95 % interval by Student's t over the seeds.

    >>> gap_text(Paired(0.012, 0.004, 3), 100), gap_text(Paired(-1.2, None, 1))
    ('+1.20 ± 0.99', '-1.20')
    """
    if gap is None:
        return MISSING
    interval = "" if gap.sd is None else f" ± {fixed(scale * gap.half, 2)}"
    return fixed(scale * gap.mean, 2, "+") + interval
