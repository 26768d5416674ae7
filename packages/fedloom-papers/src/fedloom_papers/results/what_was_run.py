"""What a page says of its runs: what was reduced, how many there are, of which seeds and commits,
and the commands that print every table from the committed lines and that run one again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..board import MeasuredTable
from ..lines import Line

OUT = "docs/results/papers"
MANY = 10  # rows without a run are counted


def what_was_run(tables: Sequence[MeasuredTable]) -> Iterator[str]:
    """The lines below a page's heading."""
    if tables[0].table.entry.study:
        yield from map(_study, tables)
    else:
        yield from _reduced(tables)
    lines = [line for one in tables for line in _lines(one)]
    if unnamed := sum(not line.get("commit") for line in lines):
        yield (
            f"- {unnamed} of the {len(lines)} runs are from before lines named a commit and a "
            "version; to be re-run."
        )
    yield "\n".join(["", "```sh", *_commands(tables), "```"])


def _reduced(tables: Sequence[MeasuredTable]) -> Iterator[str]:
    """What was reduced in which tables of a paper, and their runs."""
    reduced: dict[str, list[MeasuredTable]] = {}
    for one in tables:
        why = one.table.entry.cpu if one.plan.scale == "cpu" else "at the paper's scale"
        reduced.setdefault(why, []).append(one)
    for why, members in reduced.items():
        names = ", ".join(f"{one.table.entry.name} ({_counts(one)})" for one in members)
        yield f"- {names}{_by(members)}: {why}."


def _study(one: MeasuredTable) -> str:
    """How many runs there are of an entry, which rows have none, and which runs failed."""
    entry, table = one.table.entry, one.table
    row_names = [row.name for p in entry.protocols for row in table.rows_of(p)]
    rows_with_runs = {
        row.name
        for p in entry.protocols
        for row in table.rows_of(p)
        if table.lines_by_protocol[p.name].get(row.key)
    }
    none = [*dict.fromkeys(name for name in row_names if name not in rows_with_runs)]
    failed = [f"{row} in {p}, seed {s} ({why.splitlines()[0]})" for p, row, s, why in table.failed]
    parts = [_counts(one) + _by([one])]
    parts += [f"without a run: {', '.join(none)}"] if 0 < len(none) < MANY else []
    parts += [f"{len(none)} rows without a run"] if len(none) >= MANY else []
    parts += [f"failed: {', '.join(failed)}"] if failed else []
    return f"- {entry.name}, {entry.title}: {'; '.join(parts)}."


def _counts(one: MeasuredTable) -> str:
    """How many of the runs of a table's own seeds have a line."""
    table, seeds = one.table, range(one.table.entry.seeds)
    runs = [
        len({*table.lines_by_protocol[protocol].get(row, {})} & {*seeds})
        for protocol, row in {(protocol, row) for protocol, row, _ in one.plan.digests}
    ]
    return f"{sum(runs)} of {len(seeds) * len(runs)} runs"


def _by(tables: Sequence[MeasuredTable]) -> str:
    """How many seeds each row has, and which commits made the lines."""
    seeds = max(one.table.entry.seeds for one in tables)
    lines = [line for one in tables for line in _lines(one)]
    commits = dict.fromkeys(str(line["commit"])[:9] for line in lines if line.get("commit"))
    by = f", of {', '.join(commits)}" if commits else ""
    return f", {seeds} seed{'s' * (seeds > 1)}{by}"


def _lines(one: MeasuredTable) -> list[Line]:
    rows = [row for rows in one.table.lines_by_protocol.values() for row in rows.values()]
    return [line for seeds in rows for line in seeds.values()]


def _commands(tables: Sequence[MeasuredTable]) -> Iterator[str]:
    """What prints each table from the committed lines, and what runs one of them again."""
    for one in tables:
        yield f"fedloom paper {_table_and_scale(one)} --show --out {OUT}"
    one = next((one for one in tables if one.choices), tables[0])
    grid = " --halving" if one.halved_rows else " --tune" if one.choices else ""
    yield f"fedloom paper {_table_and_scale(one)}{grid}  # runs it again"


def _table_and_scale(one: MeasuredTable) -> str:
    entry = one.table.entry
    return entry.id if entry.study else f"{entry.id} --scale {one.plan.scale}"
