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
from fedloom.report.table_files import as_csv as csv_of
from fedloom.study.tune import RUNGS

from .board import has_line
from .columns import as_latex, beside_of, measured
from .entry import SCALES, Claim, Entry, Protocol, Row, Wanted
from .figures import pictures
from .lines import NAME, Line, evidence, latest, others
from .measure import LOWER, Number, title
from .plan import Plan, pairs
from .run import missing
from .study_tables import study_tables
from .table import Table, equal_cells, table
from .tune import grid_plans

_PIPED = 100  # columns without a terminal and COLUMNS


def columns() -> int:
    """The width of the page."""
    return page_width(_PIPED)


def wrapped(text: str, indent: str = "  ") -> str:
    """A paragraph."""
    return textwrap.fill(text, columns(), initial_indent=indent, subsequent_indent=indent)


# --------------------------------------------------------------------------------------- the list
def listing(entries: Sequence[Entry], out: Path) -> str:
    """A paper's tables and figures, a line each. out: the folder of lines."""
    lines, shown = evidence(out), [["", "", "runs", "done"]]
    for entry in entries:
        runs = "-" if entry.fact else str(entry.seeds * len([*pairs(entry, entry.rows)]))
        shown.append([entry.id, entry.title, runs, _state(entry, lines)])
    return aligned(shown, columns())


def _state(entry: Entry, lines: Iterable[Line]) -> str:
    """Of how many runs there is a line, by scale, at any point of a row's grid and on any engine;
    matched by what was typed, without reading settings.
    """
    if entry.fact:
        return "check"
    found = collections.Counter[str]()
    for scale in SCALES:
        for protocol, row in pairs(entry, entry.rows):
            grid = {*row.grid, *protocol.grid}
            found[scale] += len(has_line(protocol, row, scale, lines, grid))
    return ", ".join(f"{scale}:{done}" for scale, done in found.items() if done) or "none"


# --------------------------------------------------------------------------------------- the plan
def planned(
    plan: Plan, out: Path, changes: Sequence[str], tune: bool = False, halving: bool = False
) -> str:
    """What would run: protocols, rows, runs, and how long it takes by the lines that there are;
    with tune or halving, the runs of the grids.
    """
    entry = plan.entry
    said = [_heading(plan, changes)]
    by_protocol = {run.protocol.name: run for run in reversed(plan.runs)}
    shown = [
        ["protocol", "recipe", "clients", "a round", "local work", "rounds", "partition", "model"]
    ]
    for name in (p.name for p in entry.protocols if p.name in by_protocol):
        values = by_protocol[name].config.values
        split = dict(values["data"]["partition"])
        clients = split.pop("clients", "its own")
        local, words = values["local"], " ".join(map(str, split.values()))
        work = f"{local['steps']} steps" if local.get("steps") else f"{local['epochs']:g} epochs"
        place = [clients, values["cohort"], work, values["rounds"], words, values["model"]["name"]]
        shown.append([name, by_protocol[name].recipe, *map(str, place)])
    rows = [[row.key, " ".join(row.changes.split()), _tried(row)] for row in plan.rows]
    said += [aligned(shown, columns())]
    said += [aligned([["row", "changes", "the paper tries"], *rows], columns())]
    said += [_left(plan, out)]
    if tune or halving:
        more = [*entry.tuning.split(), *changes]
        grids = grid_plans(entry, plan.scale, out, plan.rows, more)
        runs = f"{sum(len(g.runs) for g in grids)} runs of grids"
        runs += (
            f" for 1/{RUNGS[0]} of the rounds, the best 1/{RUNGS[0]} of each row's to the end"
            * halving
        )
        said.append(f"  before: {runs}, at one seed")
    said += [wrapped(f"not run: {p}, {row}: {why}") for (p, row), why in plan.refused.items()]
    return "\n".join(said)


def _left(plan: Plan, out: Path) -> str:
    """How many runs have a line, and how long the others take as these did; without any, what says
    it.
    """
    left, lines = missing(plan, out), latest(evidence(out), plan.runs)
    places = {(run.digest, run.seed) for run in plan.runs} & {*lines}
    said = f"  {len(plan.runs)} runs, {len(plan.runs) - len(left)} of them have a line"
    known = [seconds for p in places if (seconds := lines[p].get("seconds")) is not None]
    if known and left:
        time = human_seconds(len(left) * sum(known) / len(known))
        said += f"\n  the others take about {time}, if they take as long as those did"
    elif left:
        words = " ".join(map(quote, (left[0].recipe, *left[0].typed)))
        said += f"\n  how long one takes: fedloom run {words} --dry-run"
    return said


def _tried(row: Row) -> str:
    return "; ".join(f"{k} {', '.join(f'{v:g}' for v in vs)}" for k, vs in row.grid.items())


def _heading(plan: Plan, changes: Sequence[str], seeds: int | None = None) -> str:
    entry = plan.entry
    count = len(plan.seeds) if seeds is None else seeds
    said = [f"{entry.id}: {entry.title}", f"  scale {plan.scale}, {count} seed(s)"]
    if plan.scale == "cpu":
        said.append(wrapped(f"Reduced: {entry.cpu}."))
    if plan.scale == "smoke":
        said.append(wrapped("Smoke: two rounds on small digits. Its numbers mean nothing."))
    if changes:
        said.append(wrapped(f"Changed for every row: {' '.join(changes)}"))
    return "\n".join([*said, *(wrapped(note) for note in entry.notes)])


# -------------------------------------------------------------------------------------- the table
def page(found: Table, changes: Sequence[str]) -> str:
    """The table as text: a block per protocol, split where it is too wide; then the claims."""
    said = [_heading(found.plan, changes, max(map(len, found.seeds.values()), default=0))]
    if found.entry.own:
        parts = (part for cells in study_tables(found) for part in _parts(cells))
        said += [f"\n{aligned(part, columns())}" for part in parts]
    else:
        said += [line for protocol in found.entry.protocols for line in _block(found, protocol)]
    goals = any("acc=" in n.wanted.at for n in found.numbers)
    if goals and found.plan.scale != "paper":
        said += ["", wrapped(_GOALS)]
    if found.claims:
        said += ["", _claims(found)]
    return "\n".join(said)


_ACROSS = 6  # columns beside the names


def _parts(cells: Sequence[Sequence[str]]) -> Iterator[list[list[str]]]:
    """A wide table as several, each with the names of its rows."""
    for first in range(1, len(cells[0]), _ACROSS):
        yield [[line[0], *line[first : first + _ACROSS]] for line in cells]


def _block(found: Table, protocol: Protocol) -> list[str]:
    """What there is of one protocol of a paper's table."""
    own = found.numbers_of(protocol)
    if not own or (found.plan.scale == "cpu" and protocol.cpu is None):
        return []
    said = ["", ", ".join(filter(None, (protocol.dataset, protocol.words)))]
    empty = all(n.wanted.cell is None and not n.values for n in own)
    said += ["  no run has a line yet"] if empty else [*_tables(found, protocol)]
    said += _left_out(found, protocol)
    return said + (_equal(own) if found.plan.as_published else _beside(found, protocol))


def _equal(numbers: Sequence[Number]) -> list[str]:
    """How many published values of single seeds are equal here, and the first that are not."""
    rows = equal_cells(numbers)
    cells = sum(row.cells for row in rows.values())
    equal = sum(row.equal for row in rows.values())
    by_row = ", ".join(f"{name} {row.equal}/{row.cells}" for name, row in rows.items())
    said = [wrapped(f"Equal in {equal} of {cells} cells, seed by seed: {by_row or 'none yet'}.")]
    others = [(name, *other) for name, row in rows.items() for other in row.others]
    shown = [
        f"{name}, {title(metric, '')}, seed {seed}: {there:.6g}, here {here:.6g}"
        for name, metric, seed, there, here in others[:_DIFFERENCES]
    ]
    if shown:
        more = len(others) - len(shown)
        said.append(wrapped(f"Not: {'; '.join(shown)}{f'; and {more} more' if more else ''}."))
    return said


_DIFFERENCES = 10


def _beside(found: Table, protocol: Protocol) -> list[str]:
    """How many means differ from those of published runs."""
    gaps = [*beside_of(found, protocol).values()]
    if not gaps:
        return []
    sides = [side for _, side in gaps]
    same, unknown = sides.count("within"), sides.count("undecided")
    low = sum(gap.p is not None and gap.p < 1 - LEVEL for gap, _ in gaps)
    count = len(gaps)
    return [
        wrapped(
            f"Diff: the mean of {len(found.seeds[protocol.name])} seeds here less that of the "
            f"published ones, with Welch's interval. Of {count} differences "
            f"{count - same - unknown} are more than chance (above or below; p below 0.05 by Holm "
            f"for all {count}), {same} within a point with their intervals, {unknown} undecided. "
            f"Without correction p is below 0.05 in {low}: chance makes about "
            f"{(1 - LEVEL) * count:.0f} of {count}."
        )
    ]


def _left_out(found: Table, protocol: Protocol) -> list[str]:
    """Which rows have seeds that do not count, since not all rows have them."""
    more = found.more[protocol.name]
    if not more:
        return []
    said = "; ".join(f"{', '.join(map(str, seeds))} of {name}" for name, seeds in more.items())
    counted = ", ".join(map(str, found.seeds[protocol.name])) or "none"
    return [wrapped(f"Seeds that all rows have count: {counted}. Not: {said}.")]


_GOALS = (
    "Targets are the paper's, times the accuracy of FedAvg (without it, of the first row) here "
    "over its accuracy there: at another scale the printed ones say nothing."
)


def _tables(found: Table, protocol: Protocol) -> Iterator[str]:
    """Of each measure published, measured, difference, and what claims test of it."""
    names = [row.name for row in found.rows_of(protocol)]
    for measure in found.measures_of(protocol):
        made = measured(found, protocol, measure)
        name = title(*measure, found.round_of(measure[1], protocol))
        yield wrapped(name + " (lower is better)" * (measure[0] in LOWER))
        cells = zip(names, *(column.cells for column in made), strict=True)
        yield aligned([["", *(column.head for column in made)], *cells], columns())


def _claims(found: Table) -> str:
    lines = ["Claims"]
    for judged in found.claims:
        lines.append(wrapped(f"{judged.verdict.upper()}: {_claim(found, judged.claim)}"))
        lines += [wrapped(f"{r.place}: {r.words}", "    ") for r in judged.reasons]
    if found.comparisons:
        lines.append(
            wrapped(
                "A verdict on a curve is on the mean of its last tenth of evaluations. Student's t "
                "on differences of the same seed, the same seeds for all rows; p below 0.05 after "
                "Holm's correction for the comparisons of a claim in a protocol. "
                f"{found.comparisons} comparison(s) in all; several claims are not corrected for "
                "their number."
            )
        )
    return "\n".join(lines)


def _claim(found: Table, claim: Claim) -> str:
    if not claim.metric:
        return claim.text
    rounds = {found.round_of(claim.at, p) for p in found.entry.protocols}
    here = rounds.pop() if len(rounds) == 1 else None
    return f"{claim.text} ({title(claim.metric, claim.at, here)})"


# -------------------------------------------------------------------------------------- other forms
def as_csv(found: Table) -> str:
    """One row per number: the paper's, ours, the difference."""
    rows = []
    for n in found.numbers:
        w: Wanted = n.wanted
        printed = "" if w.cell is None else (w.cell.text if w.cell.value is None else w.cell.value)
        row: dict[str, Any] = {
            "paper": found.entry.paper,
            "table": found.entry.name,
            "method": w.row.name,
        }
        row |= {"dataset": w.protocol.dataset, "protocol": w.protocol.name, "metric": w.metric}
        row |= {"at": w.at, "published": printed, "measured": _plain(n.mean), "sd": _plain(n.sd)}
        row |= {"seeds": len(n.values), "difference": _plain(n.difference)}
        row |= {"scale": found.plan.scale, "round": found.round_of(w.at, w.protocol) or ""}
        rows.append(row | {"tested": _plain(replace(n, values=n.tested).mean)})
    return csv_of(rows)


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


# ------------------------------------------------------------------------------------ on the screen
def tell(
    made: Plan,
    left_out: Mapping[str, str],
    out: Path,
    style: str | None,
    changes: Sequence[str],
    names: Sequence[str] | None,
) -> None:
    """Print the table of a plan, and on stderr what must be known of it. names: of LaTeX's
    columns.
    """
    lines = evidence(out)
    found = table(made, lines)
    if style == "csv":
        click.echo(as_csv(found), nl=False)
    elif style == "latex":
        click.echo(as_latex(found, names), nl=False)
    else:
        click.echo(page(found, changes))
    refused = {f"not run: {p}, {row}": why for (p, row), why in made.refused.items()}
    for name, why in {**refused, **left_out}.items():
        click.echo(f"{name}: {why}", err=True)
    for said in others(lines, made.runs):
        click.echo(f"note: {said}", err=True)
    if not style:
        click.echo(f"lines of evidence: {quote(str(out / NAME))}", err=True)


def draw(made: Plan, out: Path, asked: Figures) -> None:
    """Draw what there are lines for, and say where."""
    drawn = pictures(table(made, evidence(out)))
    for file in save_pictures(drawn, *asked):
        click.echo(f"picture: {quote(str(file))}", err=True)
    if not drawn:
        click.echo("nothing is drawn: no run has a line yet", err=True)
