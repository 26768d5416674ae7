"""TensorBoard: event files on disk, without a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.hyper import hyper
from .base import About, Checked, Session, need


class TensorBoard(Checked):
    """Write event files for `tensorboard --logdir runs`: a scalar per column, and the settings.

    A resumed run goes on in the same folder, with a file that has all rounds and hides the old.
    """

    folder: str = hyper(
        "", "of all runs, each in a folder of its name; otherwise `tensorboard` in the run's own"
    )

    def check(self) -> None:
        """Raise ConfigError if the library is missing."""
        need("tensorboard", "tensorboard")

    def open(self, about: About) -> Session:
        """Begin an event file."""
        from torch.utils.tensorboard import SummaryWriter

        own = about.folder is not None and not self.folder
        place = Path(about.folder or "") / "tensorboard" if own else Path(self.folder) / about.name
        make: Any = SummaryWriter
        writer = make(str(place), purge_step=1 if about.round else None)
        if not about.round:
            writer.add_text("settings", "\n".join(f"    {x}" for x in about.text.splitlines()))
        return _Session(str(place), writer)


@dataclass(frozen=True)
class _Session:
    name: str
    writer: Any

    def log(self, row: Mapping[str, float]) -> None:
        for column, value in row.items():
            if column != "round":
                self.writer.add_scalar(column, value, int(row["round"]))

    def end(self, summary: Mapping[str, float] | None) -> None:
        self.writer.close()
