"""`fedloom papers`: every table and figure in a line, its cost, and what there is of it."""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from fedloom.papers import SCALES, Entry
from fedloom.papers.board import HEADS, board
from fedloom.papers.cost import Cost, cost
from fedloom.papers.lines import NAME, Line, read
from fedloom.papers.plan import changes_of
from fedloom.storage.identity import FREE

from .paper_pages import columns, pairs
from .printing import table as aligned

_SEEDS = 3


def listing(entries: Sequence[Entry], scales: Sequence[str], out: Path, measure: bool) -> str:
    """A paper's tables and figures, a line each."""
    lines = read(out / NAME)
    unknown = False
    shown = [["", "", "runs", *scales, "done"]]
    for entry in entries:
        costs = [] if entry.fact else [cost(entry, s, _SEEDS, measure) for s in scales]
        unknown |= any(c.unknown for c in costs)
        runs = "-" if entry.fact else str(_SEEDS * len(pairs(entry)))
        times = [_cost(c) for c in costs] or ["-"] * len(scales)
        shown.append([entry.id, entry.title, runs, *times, _state(entry, lines)])
    said = [aligned(shown, columns())]
    speed = "this processor's speed" if measure else "a usual processor's speed"
    said.append(f"  costs are arithmetic: the operations of all steps over {speed}")
    if unknown:
        said.append("  + and what could not be estimated: see --dry-run")
    return "\n".join(said)


def standings(entries: Sequence[Entry], out: Path) -> str:
    """The board: of every table the scale, runs and claims of which there are lines in a folder."""
    return aligned(
        [HEADS, *(one.cells for one in board(read(out / NAME), out, entries))], columns()
    )


def _cost(found: Cost) -> str:
    if not found.seconds:
        return "-" if not found.unknown else "?"
    more = "+" if found.unknown else ""
    return f"{_rough(found.seconds)}{more}"


def _rough(seconds: float) -> str:
    """A duration with two digits, as one word.

    >>> _rough(50.2), _rough(5400), _rough(3e6)
    ('50s', '1.5h', '35d')
    """
    for unit, size in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            value = seconds / size
            return f"{value:.0f}{unit}" if value >= 10 else f"{value:.1f}{unit}"
    return f"{seconds:.0f}s"


def _state(entry: Entry, lines: Iterable[Line]) -> str:
    """Of how many runs there is a line, by scale, at any point of a row's grid and on any engine;
    matched by what was typed, without reading settings.
    """
    if entry.fact:
        return "check"
    found = collections.Counter[str]()
    for scale in SCALES:
        for protocol, row in pairs(entry):
            free = {*FREE, *row.grid, *protocol.grid}
            wanted = _kept(changes_of(protocol, row, scale), free)
            recipe = protocol.recipe_at(scale)
            of = [x for x in lines if (x.get("recipe"), x.get("scale")) == (recipe, scale)]
            found[scale] += len({x["seed"] for x in of if _kept(x["changes"], free) == wanted})
    return ", ".join(f"{scale}:{done}" for scale, done in found.items() if done) or "none"


def _kept(changes: Iterable[str], free: Collection[str]) -> set[str]:
    return {word for word in changes if word.partition("=")[0] not in free}
