"""What the checks of codecs, objectives and rules have in common."""

from __future__ import annotations

import functools
from typing import Any

from .outcome import BrokenError
from .runs import Runs
from .state import kept, look
from .watch import Notes

__all__ = ["PartChecks"]


class PartChecks:
    """The checks of one part that a subclass has written `notes` for. runs: of the part."""

    def __init__(self, part: Any, runs: Runs) -> None:
        self.part, self.runs, self.before = part, runs, look(part)

    @functools.cached_property
    def notes(self) -> Notes:
        """Every method called twice; see watch.twice."""
        return Notes()

    def noted(self, name: str) -> None:
        """What the two calls showed."""
        if name in self.notes.wrong:
            raise BrokenError(self.notes.wrong[name])

    def nothing_kept(self) -> None:
        """The part and its file are what they were before the runs."""
        self.runs.starts()
        if found := kept(self.before, look(self.part)):
            raise BrokenError(found)
