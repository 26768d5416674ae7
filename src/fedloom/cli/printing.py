"""Output that several commands share: a run's result, its pictures and its report."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedloom.errors import FedloomError
from fedloom.report import human_bytes, human_seconds
from fedloom.report.skew import skew_of, words
from fedloom.report.table_text import Column, aligned, chosen, columns, one_line, width_of
from fedloom.report.tables import human_size, human_target, human_value
from fedloom.storage.seal import Seal

if TYPE_CHECKING:
    from fedloom.config import Config
    from fedloom.experiment.result import Result


# columns of the comparison, the first to be left out first
_DROPPABLE = (
    "worst client, .*",
    "EMA last",
    "last",
    "time per round",
    "Gini of sizes",
    "sd between clients",
    "device time",
    "worst tenth",
    "best",
    "rounds",
    "time",
    "label distance",
    "device time to target",
    "time to target",
    "worst client",
    "bytes",
    "seeds",
    "bytes to target",
    "rounds to target",
)


_NAME = 24  # columns for a method's name, for which no other column is left out


def run_folders(config: Config) -> Iterator[Path]:
    """The default folder of a run, and the same with -2, -3, ... if it is taken."""
    from fedloom.config.labels import folder_name

    wanted = Path("runs") / f"{folder_name(config.values)}-seed{config.values['seed']}"
    yield wanted
    for number in itertools.count(2):
        yield wanted.with_name(f"{wanted.name}-{number}")


def told(text: str) -> None:
    """Print a line of a command whose work goes on: if nobody reads it any more, as behind
    `| head -1`, nothing more is printed, and the work is no worse.
    """
    try:
        click.echo(text)
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # what Python still holds goes there at its end
        os.close(nowhere)


def summarise(result: Result) -> str:
    """A finished run in a few aligned lines."""
    s = result.summary
    metric, unit = s["metric"]["name"], s["metric"]["unit"]
    each, timed = s["seconds_per_round"], s["seconds"] is not None  # not if it is a secret
    lines = [
        ("rounds", f"{s['rounds']}, {human_seconds(each)} each" if timed else str(s["rounds"]))
    ]
    if s["last"]:
        last = f"{human_value(s['last']['value'], unit)} last"
        best = ""
        if s["best"]:
            best = f"{human_value(s['best']['value'], unit)} best (round {s['best']['round']})"
        average = f"{human_value(s['last_ema'], unit)} moving average"
        lines.append(
            (metric, ", ".join(filter(None, [last, best, average if s["last_ema"] else ""])))
        )
    if most := s.get("majority"):
        always = f"a model that always says '{most['name']}'"
        lines.append(("majority", f"{human_value(most['share'], unit)}: {always}"))
    if s["target"] is not None and s["rounds_to_target_text"]:
        cost = human_bytes(s["bytes_to_target"])
        spent = [cost, *([human_seconds(s["seconds_to_target"])] if timed else [])]
        if "simulated_to_target" in s:
            spent.append(f"device time {human_seconds(s['simulated_to_target'])}")
        reached = f" ({', '.join(spent)})"
        goal = f"to {human_target(s['target'], unit)}"
        text = s["rounds_to_target_text"]
        lines.append((goal, f"{text} rounds{reached if s['rounds_to_target'] else ''}"))
    lines += _by_size(s, unit) + _by_client(s, unit) + _clients(result.path)
    traffic = f"{human_bytes(s['bytes_down'])} down, {human_bytes(s['bytes_up'])} up"
    lines.append(("traffic", traffic))
    if timed:
        lines.append(("time", f"{human_seconds(s['seconds'])} of training"))
    if "simulated_seconds" in s:
        lines.append(("device time", f"{human_seconds(s['simulated_seconds'])}, simulated"))
    if ranks := s.get("ranks"):
        slowest, mean = (
            human_seconds(ranks["slowest_seconds"]),
            human_seconds(ranks["mean_seconds"]),
        )
        said = f"{ranks['number']}; training: slowest {slowest}, mean {mean}; exchange "
        lines.append(("ranks", said + human_seconds(ranks["exchange_seconds"])))
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"  {name:<{width}}  {value}" for name, value in lines)


def _clients(run: Path | None) -> list[tuple[str, str]]:
    """A line that says how unequal the clients' data are, of a run with a folder."""
    found = None if run is None else skew_of(Seal(run).read_object("partition.json"))
    return [] if found is None else [("clients", words(found))]


def _by_size(s: Mapping[str, Any], unit: str) -> list[tuple[str, str]]:
    """A line for every size of a run with sub-models: its values, and what it holds."""
    about, lines = s.get("sizes") or {}, []
    for size, held in (about.get("held") or {}).items():
        said = [
            f"{human_value(about[kind][size], unit)} {kind}"
            for kind in ("local", "global")
            if size in about.get(kind, {})
        ]
        said.append(f"holds {held['all']:,} of {s['parameters']:,} parameters")
        lines.append((f"size {human_size(float(size))}", ", ".join(said)))
    return lines


def _by_client(s: Mapping[str, Any], unit: str) -> list[tuple[str, str]]:
    """A line about the clients of a run whose clients have names."""
    start = f"client_{s['metric']['name']}_"
    if f"{start}worst_name" not in s:
        return []
    worst, tenth, spread = (human_value(s[start + k], unit) for k in ("worst", "tenth", "spread"))
    said = f"{s[start + 'worst_name']}, {worst}; worst tenth {tenth}"
    return [("worst client", f"{said}, standard deviation {spread}")]


def illustrate(run: Path) -> Path | None:
    """Save a run's pictures and its report in its folder -> the report; None if they cannot be
    drawn, which a line reports.
    """
    try:
        from fedloom.report import write_report

        return write_report(run, run / "report.html", pictures=run / "pictures")
    except Exception as error:  # drawing may raise anything; the run is finished and saved
        say_undrawn(error, f"fedloom report {shlex.quote(str(run))}")
        return None


def say_undrawn(error: Exception, later: str) -> None:
    """Report why there are no pictures, and which command draws them later.

    The run is complete, whatever a drawing library raises: it does not fail.
    """
    known = isinstance(error, FedloomError)
    why = " ".join(str(error if known else f"{type(error).__name__}: {error}").split())
    click.echo(
        f"pictures or the report are missing: {why} (the results are whole; later: {later})",
        err=True,
    )


def table(lines: Sequence[Sequence[str]], space: int | None = None) -> str:
    """Aligned columns, indented, wrapped at words; empty without lines.

    space: columns of the page; None: the terminal's, and without a terminal as many as needed.
    """
    if not lines:
        return ""
    if space is None and sys.stdout.isatty():
        space = shutil.get_terminal_size().columns
    cells = [[one_line(cell) for cell in line] for line in lines]
    text = aligned(cells, widths=_widths([*zip(*cells, strict=True)], space))
    return "\n".join(f"  {line}".rstrip() for line in text.splitlines())


def cuts(lines: Sequence[Sequence[str]], space: int | None) -> bool:
    """True if a table of these lines has to break words to fit a page of `space` columns."""
    words = _longest([*zip(*lines, strict=True)])
    return space is not None and sum(words) + 2 * len(words) > space


def _longest(columns: Sequence[Sequence[str]]) -> list[int]:
    """The width of the longest word of every column."""
    return [max(map(width_of, " ".join(column).split()), default=1) for column in columns]


def _widths(columns: Sequence[Sequence[str]], space: int | None) -> list[int]:
    """The width of every column: as wide as its text if that fits; else as wide as its longest word
    and a share of the rest; if not even the words fit, the widest are cut.
    """
    natural = [max(map(width_of, column)) for column in columns]
    words = _longest(columns)
    if space is None or (room := space - 2 * len(columns)) >= sum(natural):
        return natural
    while sum(words) > max(room, len(words)):
        words[words.index(max(words))] -= 1
    wanted, spare = max(sum(natural) - sum(words), 1), max(room - sum(words), 0)
    return [w + spare * (n - w) // wanted for w, n in zip(words, natural, strict=True)]


def page_width(piped: int = 80) -> int:
    """The columns of a page: COLUMNS if it is set, else the terminal's, else `piped`."""
    return shutil.get_terminal_size((piped, 24)).columns


def folded(text: str, space: int | None) -> str:
    """A line, broken at words if it is longer than `space`; what follows is indented."""
    if space is None or len(text) <= space:
        return text
    indent = text[: len(text) - len(text.lstrip())]
    return textwrap.fill(text, space, subsequent_indent=f"{indent}  ", break_on_hyphens=False)


_DOCSTRING = 98  # columns of a docstring's longest line, as `show` prints it


def reflowed(text: str, space: int) -> str:
    """A text with docstrings, its long lines broken at words anew for a page of `space` columns."""
    paragraphs: list[str] = []
    before = ""
    for line in text.splitlines():
        word = line.split(maxsplit=1)[:1]
        if word and before.strip() and len(before.rstrip()) + 1 + len(word[0]) > _DOCSTRING:
            paragraphs[-1] = f"{paragraphs[-1].rstrip()} {line.strip()}"
        else:
            paragraphs.append(line)
        before = line
    out = []
    for line in paragraphs:
        indent = line[: len(line) - len(line.lstrip())]
        whole = len(line) <= space
        out += (
            [line]
            if whole
            else textwrap.wrap(line, space, subsequent_indent=indent, break_on_hyphens=False)
        )
    return "\n".join(out)


def fitted(
    rows: Sequence[Mapping[str, Any]],
    names: Sequence[str] | None = None,
    space: int | None = None,
) -> str:
    """The comparison, without its less important columns if the page is too narrow for it; a name
    that is too long goes on in the next line.

    names: the columns that are wanted, none of which is left out; space: columns of the page; None:
    `page_width`.
    """
    space = page_width() if space is None else space
    whole = kept = chosen(columns([dict(row) for row in rows]), names)
    for name in _DROPPABLE if names is None else ():
        if min(_width(kept[:1]), _NAME) + 2 + _width(kept[1:]) > space:
            kept = [column for column in kept if not re.fullmatch(name, column.name)]
    if not kept:
        return ""
    first, *others = kept
    room = max(space - _width(others) - 2, 10)
    named = [textwrap.fill(one_line(c), room, subsequent_indent="  ") for c in first.cells]
    lines = [*zip(named, *(column.cells for column in others), strict=True)]
    text = aligned(lines, [column.head for column in kept])
    if not (left := len(whole) - len(kept)):
        return text
    said = f"({left} more columns: `fedloom compare RUN... --wide`)"
    return f"{text}\n{folded(said, space)}"


def _width(columns: Sequence[Column]) -> int:
    return sum(max(map(width_of, (column.head, *column.cells))) + 2 for column in columns) - 2
