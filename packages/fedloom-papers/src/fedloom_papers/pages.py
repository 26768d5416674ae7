"""What `fedloom paper` prints: the list, the plan, the table, CSV."""

from __future__ import annotations

import collections
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

import click

from fedloom.cli.compare_and_report import Figures
from fedloom.cli.printing import page_width
from fedloom.cli.printing import table as aligned
from fedloom.report import human_seconds
from fedloom.report.statistics import LEVEL
from fedloom.report.style import save_pictures
from fedloom.report.table_text import as_csv as csv_of
from fedloom.study.tune import RUNGS

from .board import has_line
from .columns import gaps_to_published, measure_columns, study_tables
from .entry import SCALES, Claim, Entry, Protocol, Quantity, Row
from .figures import pictures
from .lines import NAME, Line, evidence, latest
from .measure import LOWER, Number, title
from .plan import Plan, pairs
from .run import missing
from .table import Table, equal_cells, table
from .tune import grid_plans

_PIPED = 100  # columns without a terminal and COLUMNS


def columns() -> int:
    """The width of the page."""
    return page_width(_PIPED)


def paragraph(text: str, indent: str = "  ") -> str:
    """A paragraph."""
    return textwrap.fill(text, columns(), initial_indent=indent, subsequent_indent=indent)


# --------------------------------------------------------------------------------------- the list
def listing(entries: Sequence[Entry], out: Path) -> str:
    """A paper's tables and figures, a line each. out: the folder of lines."""
    lines, rows = evidence(out), [["", "", "runs", "done"]]
    for entry in entries:
        runs = "-" if entry.fact else str(entry.seeds * len([*pairs(entry, entry.rows)]))
        rows.append([entry.id, entry.title, runs, _state(entry, lines)])
    return aligned(rows, columns())


def _state(entry: Entry, lines: Iterable[Line]) -> str:
    """Of how many runs there is a line, by scale, at any point of a row's grid and on any engine;
    matched by what was typed, without reading settings.
    """
    if entry.fact:
        return "check"
    counts = collections.Counter[str]()
    for scale in SCALES:
        for protocol, row in pairs(entry, entry.rows):
            grid = {*row.grid, *protocol.grid}
            counts[scale] += len(has_line(protocol, row, scale, lines, grid))
    return ", ".join(f"{scale}:{count}" for scale, count in counts.items() if count) or "none"


# --------------------------------------------------------------------------------------- the plan
def plan_text(
    plan: Plan, out: Path, changes: Sequence[str], tune: bool = False, halving: bool = False
) -> str:
    """What would run: protocols, rows, runs, and how long it takes by the lines that there are;
    with tune or halving, the runs of the grids.
    """
    entry = plan.entry
    parts = [_heading(plan, changes)]
    by_protocol = {run.protocol.name: run for run in reversed(plan.runs)}
    cells = [
        ["protocol", "recipe", "clients", "a round", "local work", "rounds", "partition", "model"]
    ]
    for name in (p.name for p in entry.protocols if p.name in by_protocol):
        values = by_protocol[name].config.values
        split = dict(values["data"]["partition"])
        clients = split.pop("clients", "its own")
        local, words = values["local"], " ".join(map(str, split.values()))
        work = f"{local['steps']} steps" if local.get("steps") else f"{local['epochs']:g} epochs"
        line = [clients, values["cohort"], work, values["rounds"], words, values["model"]["name"]]
        cells.append([name, by_protocol[name].recipe, *map(str, line)])
    rows = [[row.key, " ".join(row.changes.split()), _grid_text(row)] for row in plan.rows]
    parts += [aligned(cells, columns())]
    parts += [aligned([["row", "changes", "the paper tries"], *rows], columns())]
    parts += [_describe_remaining(plan, out)]
    if tune or halving:
        more = [*entry.tuning.split(), *changes]
        grids = grid_plans(entry, plan.scale, out, plan.rows, more)
        runs = f"{sum(len(g.runs) for g in grids)} runs of grids"
        runs += (
            f" for 1/{RUNGS[0]} of the rounds, the best 1/{RUNGS[0]} of each row's to the end"
            * halving
        )
        parts.append(f"  before: {runs}, at one seed")
    parts += [paragraph(f"not run: {p}, {row}: {why}") for (p, row), why in plan.refusals.items()]
    return "\n".join(parts)


def _describe_remaining(plan: Plan, out: Path) -> str:
    """How many runs have a line, and how long the others take as these did; without any, what says
    it.
    """
    remaining, lines = missing(plan, out), latest(evidence(out), plan.runs)
    keys = {(run.digest, run.seed) for run in plan.runs} & {*lines}
    text = f"  {len(plan.runs)} runs, {len(plan.runs) - len(remaining)} of them have a line"
    durations = [seconds for p in keys if (seconds := lines[p].get("seconds")) is not None]
    if durations and remaining:
        time = human_seconds(len(remaining) * sum(durations) / len(durations))
        text += f"\n  the others take about {time}, if they take as long as those did"
    elif remaining:
        words = " ".join(map(quote, (remaining[0].recipe, *remaining[0].changes)))
        text += f"\n  how long one takes: fedloom run {words} --dry-run"
    return text


def _grid_text(row: Row) -> str:
    return "; ".join(f"{k} {', '.join(f'{v:g}' for v in vs)}" for k, vs in row.grid.items())


def _heading(plan: Plan, changes: Sequence[str], seeds: int | None = None) -> str:
    entry = plan.entry
    count = len(plan.seeds) if seeds is None else seeds
    lines = [f"{entry.id}: {entry.title}", f"  scale {plan.scale}, {count} seed(s)"]
    if plan.scale == "cpu":
        lines.append(paragraph(f"Reduced: {entry.cpu}."))
    if plan.scale == "smoke":
        lines.append(paragraph("Smoke: two rounds on small digits. Its numbers mean nothing."))
    if changes:
        lines.append(paragraph(f"Changed for every row: {' '.join(changes)}"))
    return "\n".join([*lines, *(paragraph(note) for note in entry.notes)])


# -------------------------------------------------------------------------------------- the table
def page(table: Table, changes: Sequence[str]) -> str:
    """The table as text: a block per protocol, split where it is too wide; then the claims."""
    blocks = [_heading(table.plan, changes, max(map(len, table.seeds.values()), default=0))]
    if table.entry.study:
        parts = (part for cells in study_tables(table) for part in _parts(cells))
        blocks += [f"\n{aligned(part, columns())}" for part in parts]
    else:
        blocks += [line for protocol in table.entry.protocols for line in _block(table, protocol)]
    goals = any("acc=" in n.quantity.at for n in table.numbers)
    if goals and table.plan.scale != "paper":
        blocks += ["", paragraph(_GOALS)]
    if table.claims:
        blocks += ["", _claims(table)]
    return "\n".join(blocks)


_ACROSS = 6  # columns beside the names


def _parts(cells: Sequence[Sequence[str]]) -> Iterator[list[list[str]]]:
    """A wide table as several, each with the names of its rows."""
    for first in range(1, len(cells[0]), _ACROSS):
        yield [[line[0], *line[first : first + _ACROSS]] for line in cells]


def _block(table: Table, protocol: Protocol) -> list[str]:
    """What there is of one protocol of a paper's table."""
    numbers = table.numbers_of(protocol)
    if not numbers or (table.plan.scale == "cpu" and protocol.cpu is None):
        return []
    lines = ["", ", ".join(filter(None, (protocol.dataset, protocol.words)))]
    empty = all(n.quantity.cell is None and not n.values for n in numbers)
    lines += ["  no run has a line yet"] if empty else [*_tables(table, protocol)]
    lines += _describe_extra_seeds(table, protocol)
    if table.plan.as_published:
        return lines + _describe_equal_cells(numbers)
    return lines + _describe_gaps(table, protocol)


def _describe_equal_cells(numbers: Sequence[Number]) -> list[str]:
    """How many published values of single seeds are equal here, and the first that are not."""
    rows = equal_cells(numbers)
    cells = sum(row.cells for row in rows.values())
    equal = sum(row.equal for row in rows.values())
    by_row = ", ".join(f"{name} {row.equal}/{row.cells}" for name, row in rows.items())
    lines = [paragraph(f"Equal in {equal} of {cells} cells, seed by seed: {by_row or 'none yet'}.")]
    others = [(name, *other) for name, row in rows.items() for other in row.others]
    texts = [
        f"{name}, {title(metric, '')}, seed {seed}: {published:.6g}, here {measured:.6g}"
        for name, metric, seed, published, measured in others[:_DIFFERENCES]
    ]
    if texts:
        more = len(others) - len(texts)
        lines.append(paragraph(f"Not: {'; '.join(texts)}{f'; and {more} more' if more else ''}."))
    return lines


_DIFFERENCES = 10


def _describe_gaps(table: Table, protocol: Protocol) -> list[str]:
    """How many means differ from those of published runs."""
    gaps = [*gaps_to_published(table, protocol).values()]
    if not gaps:
        return []
    sides = [side for _, side in gaps]
    same, unknown = sides.count("within"), sides.count("undecided")
    low = sum(gap.p is not None and gap.p < 1 - LEVEL for gap, _ in gaps)
    count = len(gaps)
    return [
        paragraph(
            f"Diff: the mean of {len(table.seeds[protocol.name])} seeds here less that of the "
            f"published ones, with Welch's interval. Of {count} differences "
            f"{count - same - unknown} are more than chance (above or below; p below 0.05 by Holm "
            f"for all {count}), {same} within a point with their intervals, {unknown} undecided. "
            f"Without correction p is below 0.05 in {low}: chance makes about "
            f"{(1 - LEVEL) * count:.0f} of {count}."
        )
    ]


def _describe_extra_seeds(table: Table, protocol: Protocol) -> list[str]:
    """Which rows have seeds that do not count, since not all rows have them."""
    extra = table.extra_seeds[protocol.name]
    if not extra:
        return []
    words = "; ".join(f"{', '.join(map(str, seeds))} of {name}" for name, seeds in extra.items())
    common = ", ".join(map(str, table.seeds[protocol.name])) or "none"
    return [paragraph(f"Seeds that all rows have count: {common}. Not: {words}.")]


_GOALS = (
    "Targets are the paper's, times the accuracy of FedAvg (without it, of the first row) here "
    "over its accuracy there: at another scale the printed ones say nothing."
)


def _tables(table: Table, protocol: Protocol) -> Iterator[str]:
    """Of each measure published, measured, difference, and what claims test of it."""
    names = [row.name for row in table.rows_of(protocol)]
    for measure in table.measures_of(protocol):
        table_columns = measure_columns(table, protocol, measure)
        name = title(*measure, table.round_of(measure[1], protocol))
        yield paragraph(name + " (lower is better)" * (measure[0] in LOWER))
        cells = zip(names, *table_columns.values(), strict=True)
        yield aligned([["", *table_columns], *cells], columns())


def _claims(table: Table) -> str:
    lines = ["Claims"]
    for result in table.claims:
        lines.append(paragraph(f"{result.verdict.upper()}: {_claim(table, result.claim)}"))
        lines += [paragraph(f"{r.where}: {r.words}", "    ") for r in result.reasons]
    if table.comparisons:
        lines.append(
            paragraph(
                "A verdict on a curve is on the mean of its last tenth of evaluations. Student's t "
                "on differences of the same seed, the same seeds for all rows; p below 0.05 after "
                "Holm's correction for the comparisons of a claim in a protocol. "
                f"{table.comparisons} comparison(s) in all; several claims are not corrected for "
                "their number."
            )
        )
    return "\n".join(lines)


def _claim(table: Table, claim: Claim) -> str:
    if not claim.metric:
        return claim.text
    rounds = {table.round_of(claim.at, p) for p in table.entry.protocols}
    reduced_round = rounds.pop() if len(rounds) == 1 else None
    return f"{claim.text} ({title(claim.metric, claim.at, reduced_round)})"


# -------------------------------------------------------------------------------------- other forms
def as_csv(table: Table) -> str:
    """One row per number: the paper's, ours, the difference."""
    rows = []
    for n in table.numbers:
        w: Quantity = n.quantity
        printed = "" if w.cell is None else (w.cell.text if w.cell.value is None else w.cell.value)
        row: dict[str, Any] = {
            "paper": table.entry.paper,
            "table": table.entry.name,
            "method": w.row.name,
        }
        row |= {"dataset": w.protocol.dataset, "protocol": w.protocol.name, "metric": w.metric}
        row |= {"at": w.at, "published": printed, "measured": _plain(n.mean), "sd": _plain(n.sd)}
        row |= {"seeds": len(n.values), "difference": _plain(n.difference)}
        row |= {"scale": table.plan.scale, "round": table.round_of(w.at, w.protocol) or ""}
        rows.append(row | {"tested": _plain(replace(n, values=n.tested).mean)})
    return csv_of(rows)


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


# ------------------------------------------------------------------------------------ on the screen
def print_table(
    plan: Plan,
    left_out: Mapping[str, str],
    out: Path,
    csv: bool,
    changes: Sequence[str],
) -> None:
    """Print the table of a plan, and on stderr what must be known of it."""
    results = table(plan, evidence(out))
    if csv:
        click.echo(as_csv(results), nl=False)
    else:
        click.echo(page(results, changes))
    refusals = {f"not run: {p}, {row}": why for (p, row), why in plan.refusals.items()}
    for name, why in {**refusals, **left_out}.items():
        click.echo(f"{name}: {why}", err=True)
    if not csv:
        click.echo(f"lines of evidence: {quote(str(out / NAME))}", err=True)


def draw(plan: Plan, out: Path, figures: Figures) -> None:
    """Draw what there are lines for, and say where."""
    drawings = pictures(table(plan, evidence(out)))
    for file in save_pictures(drawings, *figures):
        click.echo(f"picture: {quote(str(file))}", err=True)
    if not drawings:
        click.echo("nothing is drawn: no run has a line yet", err=True)
