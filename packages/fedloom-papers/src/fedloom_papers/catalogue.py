"""The experiments of the five papers: every table and figure as data, and what runs them.

`fedloom paper list` lists them, `fedloom paper fedacg:1a` runs one (docs/papers.md).
"""

from __future__ import annotations

from fedloom.errors import ConfigError, did_you_mean

from .entry import SCALES, Claim, Entry, Protocol, Row, Wanted
from .published_tables import PAPERS, STUDIES, Cell, published
from .reading import Reading

__all__ = [
    "ENTRIES",
    "PAPERS",
    "SCALES",
    "STUDIES",
    "TITLES",
    "Cell",
    "Claim",
    "Entry",
    "Protocol",
    "Row",
    "Wanted",
    "entries_of",
    "entry",
    "published",
]

_READ = {name: Reading(name) for name in (*PAPERS, *STUDIES)}
TITLES = {name: read.title for name, read in _READ.items()}
ENTRIES: dict[str, Entry] = {entry.id: entry for read in _READ.values() for entry in read.entries()}


def entries_of(paper: str) -> list[Entry]:
    """The tables and figures of a paper. Raises ConfigError for an unknown one."""
    if paper not in TITLES:
        raise ConfigError(f"unknown paper '{paper}'; {did_you_mean(paper, TITLES)}")
    return [e for e in ENTRIES.values() if e.paper == paper]


def entry(name: str) -> Entry:
    """The table or figure of a name such as fedacg:1a, however its letters are written. Raises
    ConfigError for an unknown one, with the nearest.
    """
    known = {key.lower(): e for key, e in ENTRIES.items()}
    found = ENTRIES.get(name) or known.get(name.lower())
    if found is not None:
        return found
    paper, colon, _ = name.partition(":")
    if not colon and paper in TITLES:
        raise ConfigError(
            f"'{name}' is a paper; give one of its tables (`fedloom paper list {name}`)"
        )
    near = [e.id for e in ENTRIES.values() if e.paper == paper] or [*ENTRIES]
    said = did_you_mean(name, near)
    said = said if said.startswith("did") else "`fedloom paper list` lists all"
    raise ConfigError(f"unknown table or figure '{name}'; {said}")
