"""When a run writes its state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.hyper import NonNegative, PositiveInt, check_settings, hyper, ranged, renamed


@renamed(rounds="every_rounds", seconds="every_seconds")
@ranged
@dataclass
class Checkpoint:
    """When the state of a run is written: by rounds, by seconds, or whichever comes first."""

    title: ClassVar[str] = "checkpoint"
    every_rounds: PositiveInt | None = hyper(
        None, "rounds between two checkpoints, beside every_seconds"
    )
    every_seconds: NonNegative | None = hyper(
        60.0, "seconds between two checkpoints; none: by rounds alone"
    )
    keep: PositiveInt = hyper(2, "how many stay")

    def __post_init__(self) -> None:
        check_settings(self)
