"""The columns of a paper's table (published, measured, what is tested), and of our own studies'."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from fedloom.cli.printing import table as aligned
from fedloom.report.curve_data import mean, sd
from fedloom.report.statistics import Paired, p_text
from fedloom.report.statistics import Verdict as Side
from fedloom.report.tables import MISSING, fixed

from .entry import Entry, Protocol, Row
from .measure import Number, title
from .table import Measure, Table, gaps_to_runs
from .tune import Choice


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


# ---------------------------------------------------------------------------------- of our studies
Column = tuple[str, list[str]]  # its heading, and a cell for each row


def study_tables(table: Table) -> Iterator[list[list[str]]]:
    """The tables of an entry, as cells, as far as it has lines: of few measures in many protocols
    one for each measure; else for each protocol one of the measures that have a place or two, and
    one for each of the others. Where there is a base, the best row comes first.
    """
    protocols = [p for p in table.entry.protocols if any(n.values for n in table.numbers_of(p))]
    measures = [m for p in protocols[:1] for m in table.measures_of(p)]
    if len(measures) < len(protocols):
        rows = table.rows_of(protocols[0])
        for measure in measures:
            columns = [(p.dataset, _measured(table, p, measure, rows)[1]) for p in protocols]
            yield _cells(title(*measure), rows, columns)
        return
    for protocol in protocols:
        rows = _ranked(table, protocol)
        groups: dict[str, list[Measure]] = {}
        for metric, at in measures:
            several = sum(m == metric for m, _ in measures) > 2
            groups.setdefault(metric if several else "", []).append((metric, at))
        for name, group_measures in sorted(groups.items(), key=lambda group: group[0] != ""):
            columns = [_measured(table, protocol, m, rows) for m in group_measures]
            corner = protocol.dataset
            if name:  # its words stand above the rows
                words, _, _ = columns[0][0].partition(",")
                corner = f"{words}, {corner}"
                columns = [(head.removeprefix(f"{words}, "), cells) for head, cells in columns]
            else:
                bases = table.entry.bases
                columns[1:1] = [c for b in bases for c in _gaps(table, protocol, b, rows)]
            yield _cells(corner, rows, columns)


def _cells(corner: str, rows: Sequence[Row], columns: Sequence[Column]) -> list[list[str]]:
    """The headings, and the rows with a number in one of these columns."""
    heads, columns_cells = zip(*columns, strict=True)
    lines = [[row.name, *cells] for row, *cells in zip(rows, *columns_cells, strict=True)]
    return [[corner, *heads], *(line for line in lines if {*line[1:]} != {MISSING})]


def _ranked(table: Table, protocol: Protocol) -> list[Row]:
    """The rows with a run; where there is a base, the best one first."""
    rows = [r for r in table.rows_of(protocol) if r.key in table.lines_by_protocol[protocol.name]]
    if not table.entry.bases:
        return rows
    measure = table.entry.headline(protocol)
    ends = {r.key: mean([*table.compared(protocol, r.key, measure).values()]) for r in rows}
    return sorted(rows, key=lambda row: -(ends[row.key] or -math.inf))


def _measured(table: Table, protocol: Protocol, measure: Measure, rows: Sequence[Row]) -> Column:
    """A heading, and what is compared of a measure; a moving average is shown, never compared."""
    numbers = {n.quantity.row.key: n for n in table.numbers_of(protocol, measure)}
    values = {k: n.values if measure[0] == "acc_ema_pct" else n.tested for k, n in numbers.items()}
    late = any(v != numbers[key].values for key, v in values.items())
    cells = [cell(numbers.get(row.key), values.get(row.key, {})) for row in rows]
    return title(*measure) + ", last tenth" * late, cells


def _gaps(table: Table, protocol: Protocol, base: str, rows: Sequence[Row]) -> Iterator[Column]:
    """What each row is above a base, and what it is in the papers' tables."""
    if all(row.key != base for row in rows):
        return
    gaps = table.less_base(protocol, base)
    name = next(row.name for row in rows if row.key == base)
    each = [gaps.get(row.key) for row in rows]
    yield f"less {name}", [gap_text(gap) for gap in each]
    yield "p by Holm", [p_text(None if gap is None else gap.p_holm) for gap in each]
    if base == table.entry.bases[0]:
        paper_gaps = {one.name: one.gaps() for one in table.entry.paper_columns}
        methods = [row.name.partition(", alpha")[0] for row in rows]
        texts = [
            ", ".join(f"{g[m]:+.2f} ({name})" for name, g in paper_gaps.items() if g.get(m))
            for m in methods
        ]
        yield f"less {name} in the papers", [text or MISSING for text in texts]


def tuning_table(entry: Entry, choices: Sequence[Choice], space: int) -> str:
    """Every value that was tried of the grids at seed 0, with what it was chosen by."""
    names = {row.key: row.name for row in entry.rows}
    by = "held-out data" if entry.tuning else "the accuracy on the test set, as papers do"
    head = ["method", "setting", "tried", "note"]
    rows = [[names[choice.row], *_choice_cells(choice)] for choice in choices]
    return f"Tuned at seed 0 by {by}; * is the best point:\n{aligned([head, *rows], space)}"


def _choice_cells(choice: Choice) -> list[str]:
    cells = []
    for score, point in choice.scores:
        value = ", ".join(f"{v:g}" for v in point.values())
        cells.append(f"{value}: {fixed(score, 2)}{'*' * (point == choice.point)}")
    keys = ", ".join(choice.scores[0][1])
    edge = "at the edge" if choice.edge else "" if choice.point else "not all are tried"
    return [keys, "; ".join(cells), edge]
