"""When a run writes its state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.hyper import check_settings, hyper, renamed


@renamed(rounds="every_rounds", seconds="every_seconds")
@dataclass
class Checkpoint:
    """When the state of a run is written: by rounds, by seconds, or whichever comes first."""

    title: ClassVar[str] = "checkpoint"
    every_rounds: int | None = hyper(
        None, "rounds between two checkpoints, beside every_seconds", low=1
    )
    every_seconds: float | None = hyper(
        60.0, "seconds between two checkpoints; none: by rounds alone", low=0
    )
    keep: int = hyper(2, "how many stay", low=1)

    def __post_init__(self) -> None:
        check_settings(self)
