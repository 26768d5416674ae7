"""When a run writes checkpoints."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import ClassVar

from ..core.hyper import NonNegative, PositiveInt, check_settings, hyper, ranged, renamed
from ..core.ranks import Group


@renamed(rounds="every_rounds", seconds="every_seconds")
@ranged
@dataclass
class Checkpoint:
    """When the state of a run is written: by rounds, by seconds, or both."""

    title: ClassVar[str] = "checkpoint"
    every_rounds: PositiveInt | None = hyper(
        None, "rounds between two checkpoints, in addition to every_seconds"
    )
    every_seconds: NonNegative | None = hyper(
        60.0, "seconds between two checkpoints; none: only by rounds"
    )
    keep: PositiveInt = hyper(2, "how many checkpoints to keep")

    def due(self, round: int, last: float, group: Group) -> bool:
        """True if one is due after so many rounds; last: the time.monotonic() of the last one."""
        rounds, seconds = self.every_rounds, self.every_seconds
        if rounds is not None and round % rounds == 0:
            return True
        return seconds is not None and group.first(lambda: time.monotonic() - last > seconds)

    def __post_init__(self) -> None:
        check_settings(self)
