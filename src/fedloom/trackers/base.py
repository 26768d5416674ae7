"""What a tracker is, and what it is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from ..core.extras import need
from ..core.hyper import Part


@dataclass(frozen=True)
class About:
    """A run as its tracker sees it. name: of its folder, or made of label and seed; settings: with
    dotted keys; text: the same as TOML; folder: the run directory, if there is one; round: rounds
    that were done before, 0 for a new run; known: what the session of the earlier rounds was called
    (Session.name).
    """

    name: str
    label: str
    settings: Mapping[str, Any]
    text: str
    folder: Path | None
    round: int
    known: str | None


class Session(Protocol):
    """One run at a tracker. Errors of it are warnings of the run."""

    @property
    def name(self) -> str:
        """What a resumed run finds it by."""

    def log(self, row: Mapping[str, float]) -> None:
        """The numbers of a round; row["round"] counts from 1. A resumed run tells all its earlier
        rounds again, of which the session leaves out those that it has.
        """

    def end(self, summary: Mapping[str, float] | None) -> None:
        """Close. summary: the last numbers; None of a run that was stopped and may go on."""


@runtime_checkable
class Tracker(Protocol):
    """Settings of a tracker; your own is an object with these two methods."""

    def check(self) -> None:
        """Raise ConfigError if a library is missing; called before the run."""

    def open(self, about: About) -> Session:
        """Begin a session, or go on with the known one."""


Trackers = Sequence[Tracker | str] | Tracker | str | None  # as a setting: names too


class Checked(Part):
    """Settings of a tracker, whose types and ranges are checked. name: of the tracker, its library
    and its extra.
    """

    title: ClassVar[str] = "tracker"
    name: ClassVar[str]

    def check(self) -> None:
        """Raise ConfigError if the library is missing."""
        need(self.name, f"tracker '{self.name}'", self.name)


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The entries that are numbers.

    >>> numbers({"round": 1, "clients": [3, 4], "ok": True, "note": None})
    {'round': 1, 'ok': 1}
    """
    values = {k: int(v) if isinstance(v, bool) else v for k, v in row.items()}
    return {k: v for k, v in values.items() if isinstance(v, int | float)}
