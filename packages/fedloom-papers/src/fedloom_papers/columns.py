"""The columns of a paper's table: published, measured, what is tested; and its LaTeX."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedloom.report.curve_data import mean, sd
from fedloom.report.sequential import Verdict as Side
from fedloom.report.statistics import Paired, against, p_text
from fedloom.report.table_files import tabular
from fedloom.report.table_text import Column, chosen
from fedloom.report.tables import MISSING, fixed

from .entry import Protocol
from .measure import LOWER, Number, title
from .table import Measure, Table, beside_runs


def _numbers(found: Table, protocol: Protocol, measure: Measure) -> list[Number | None]:
    """A number for each row of a protocol; None where it is not wanted."""
    own = {n.wanted.row.key: n for n in found.numbers_of(protocol, measure)}
    return [own.get(row.key) for row in found.rows_of(protocol)]


def measured(found: Table, protocol: Protocol, measure: Measure) -> list[Column]:
    """Published, measured and difference of a measure, as far as there are any; what claims test of
    it, if that is not the number itself; and where a difference to published runs is.
    """
    *shown, late = _columns_of(found, protocol, measure)
    kept = [column for column in shown if column.name == "here" or _filled(column)]
    if gaps := beside_of(found, protocol):
        sides = (gaps.get((row.key, measure[0])) for row in found.rows_of(protocol))
        return [*kept, Column("verdict", "", [MISSING if g is None else g[1] for g in sides])]
    return [*kept, late] if measure in found.judged(protocol) and _filled(late) else kept


def beside_of(found: Table, protocol: Protocol) -> Mapping[tuple[str, str], tuple[Paired, Side]]:
    """The differences to published runs, and where they are; none of runs that repeat them."""
    return {} if found.plan.as_published else beside_runs(found.numbers_of(protocol))


def _filled(column: Column) -> bool:
    return any(cell != MISSING for cell in column.cells)


def _columns_of(found: Table, protocol: Protocol, measure: Measure) -> list[Column]:
    """Published, measured, their difference, and what is tested: nothing in all its cells if that
    is what was measured.
    """
    numbers = _numbers(found, protocol, measure)
    low = measure[0] in LOWER
    other = any(n is not None and n.tested != n.values for n in numbers)
    late = [n and replace(n, values=n.tested) if other else None for n in numbers]
    published = [None if n is None else n.published for n in numbers]
    gaps = beside_of(found, protocol)
    return [
        Column("paper", "paper", [_published(n) for n in numbers], published, low),
        _here("here", numbers, low),
        Column("diff", "diff (95 %)" if gaps else "diff", [_difference(n, gaps) for n in numbers]),
        _here("last tenth", late, low),
    ]


def _here(name: str, numbers: Sequence[Number | None], low: bool) -> Column:
    cells = [MISSING if n is None else cell(n, n.values) for n in numbers]
    return Column(name, name, cells, [None if n is None else n.mean for n in numbers], low)


# ---------------------------------------------------------------------------------------- as LaTeX
def as_latex(found: Table, names: Sequence[str] | None = None) -> str:
    """A tabular per protocol, as report/table_files.py writes it.

    names: the columns that are wanted: paper, here, diff, last tenth, p of the measure that claims
    are about, or with another measure's name before it, as "rounds to 81 % here"; by default paper,
    what is tested, and p. One that a protocol has not is left out there, see `check_names`.
    """
    out = [f"% {found.entry.id}, scale {found.plan.scale}, {len(found.plan.seeds)} seeds"]
    for protocol in found.entry.protocols:
        made = _columns(found, protocol)
        if not made or (found.plan.scale == "cpu" and protocol.cpu is None):
            continue
        filled = [column.name for column in made if _filled(column)]
        tested = "last tenth" if "last tenth" in filled else "here"
        default = [n for n in ("paper", tested, "p") if n in filled or n == "here"]
        there = {name for column in made for name in (column.name, column.head)}
        kept = chosen(made, default if names is None else [n for n in names if n in there])
        metric, at = found.entry.headline(protocol)
        said = title(metric, at, found.round_of(at, protocol))
        out += [f"% {protocol.name}: {said}", tabular(kept, "the best").rstrip()]
    return "\n".join(out) + "\n"


def check_names(found: Table, names: Sequence[str]) -> None:
    """Raise ConfigError for a column that no protocol has."""
    chosen([column for p in found.entry.protocols for column in _columns(found, p)], names)


def _columns(found: Table, protocol: Protocol) -> list[Column]:
    """All columns of a protocol, each with its measure's name unless that is the headline."""
    rows = found.rows_of(protocol)
    if not rows:
        return []
    headline = found.entry.headline(protocol)
    made = [Column("algorithm", "method", [row.name for row in rows])]
    for measure in sorted(found.measures_of(protocol), key=lambda one: one != headline):
        columns = _tested(found, protocol, measure)
        if measure != headline:
            name = title(*measure)
            columns = [
                replace(c, name=f"{name.replace(',', '')} {c.name}", head=f"{name}, {c.head}")
                for c in columns
            ]
        made += columns
    return made


def _tested(found: Table, protocol: Protocol, measure: Measure) -> list[Column]:
    """A measure's columns, with p of the difference from the best row."""
    numbers = [n for n in _numbers(found, protocol, measure) if n is not None and n.tested]
    means = {n.wanted.row.name: replace(n, values=n.tested).mean or 0.0 for n in numbers}
    reached = [name for name, value in means.items() if math.isfinite(value)]
    own, gaps = {n.wanted.row.name: n.compared for n in numbers}, {}
    if reached:
        best = (min if measure[0] in LOWER else max)(reached, key=lambda name: means[name])
        gaps = against(own.pop(best), own)
    rows = [row.name for row in found.rows_of(protocol)]
    alike = [name in gaps and gaps[name].verdict == "undecided" for name in rows]
    p = [p_text(gaps[name].p_holm) if name in gaps else MISSING for name in rows]
    paper, here, less, late = _columns_of(found, protocol, measure)
    if _filled(late):
        late = replace(late, like_best=alike)
    else:
        here = replace(here, like_best=alike)
    return [paper, here, less, late, Column("p", "p (Holm)", p)]


# ------------------------------------------------------------------------------------- one number
def number_text(value: float, metric: str) -> str:
    if metric.startswith("rounds_to"):
        return f"{value:.0f}"
    if metric.endswith(("_pct", "_s")) or "speedup" in metric or "roughness" in metric:
        return fixed(value, 2)
    share = metric.endswith("_fraction") or metric.startswith(("centre_", "client_mean"))
    return fixed(value, 4) if share else f"{value:.4g}"


def _published(number: Number | None) -> str:
    if number is None or number.wanted.cell is None:
        return MISSING
    cell = number.wanted.cell
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
    known = [v for v in values.values() if math.isfinite(v)]
    if number is None or not values:
        return MISSING
    metric, spread = number.wanted.metric, sd(known)
    if not known:
        return f"{number.rounds}+" if metric.startswith("rounds") else "never"
    said = number_text(mean(known) or 0.0, metric)
    if len(known) < len(values):
        return f"{said} ({len(known)}/{len(values)})"
    return f"{said}±{number_text(spread, metric)}" if spread else said


def _difference(number: Number | None, gaps: Mapping[tuple[str, str], tuple[Paired, Side]]) -> str:
    """Measured less published, and half the interval where both have runs."""
    if number is None or (gap := number.difference) is None:
        return MISSING
    metric = number.wanted.metric
    said = number_text(gap, metric)
    said = said if said.startswith("-") else f"+{said}"
    found = gaps.get((number.wanted.row.key, metric))
    return said if found is None else f"{said}±{number_text(found[0].half, metric)}"


def gap_text(gap: Paired | None, scale: float = 1.0) -> str:
    """A difference in points, with its 95 % interval by Student's t over the seeds.

    >>> gap_text(Paired(0.012, 0.004, 3), 100), gap_text(Paired(-1.2, None, 1))
    ('+1.20 ± 0.99', '-1.20')
    """
    if gap is None:
        return MISSING
    beside = "" if gap.sd is None else f" ± {fixed(scale * gap.half, 2)}"
    return fixed(scale * gap.mean, 2, "+") + beside
