"""The tables of our own studies: a column for each measure, or for each protocol."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from fedloom.cli.printing import table as aligned
from fedloom.report.curve_data import mean
from fedloom.report.statistics import p_text
from fedloom.report.tables import MISSING, fixed

from .columns import cell, gap_text
from .entry import Entry, Protocol, Row
from .measure import title
from .table import Measure, Table
from .tune import Choice

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
