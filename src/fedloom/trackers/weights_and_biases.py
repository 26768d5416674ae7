"""Weights & Biases, online and offline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.hyper import hyper
from .base import About, Checked, Session, need


class WandB(Checked):
    """Log to Weights & Biases; offline into the run's folder, for a later `wandb sync`.

    A resumed run goes on in the same run there. The account is the one of `wandb login`.
    """

    project: str = hyper("fedloom", "of the runs")
    mode: str = hyper(
        "online",
        "offline writes files only, for `wandb sync RUN/wandb/offline-*`",
        choices=("online", "offline"),
    )

    def check(self) -> None:
        """Raise ConfigError if the library is missing."""
        need("wandb", "wandb")

    def open(self, about: About) -> Session:
        """Begin a run there, or go on with it."""
        import wandb

        run = wandb.init(
            project=self.project,
            name=about.name,
            group=about.label,
            config=dict(about.settings),
            dir=None if about.folder is None else str(about.folder),
            id=about.known,
            resume=None if about.known is None else "allow",
            mode=self.mode,
            reinit="create_new",
            settings=wandb.Settings(console="off"),
        )
        return _Session(str(run.id), run)


@dataclass(frozen=True)
class _Session:
    name: str
    run: Any

    def log(self, row: Mapping[str, float]) -> None:
        if row["round"] >= self.run.step:  # what it has already, it does not take again
            self.run.log(dict(row), step=int(row["round"]))

    def end(self, summary: Mapping[str, float] | None) -> None:
        if summary is not None:
            self.run.summary.update(dict(summary))
        self.run.finish(exit_code=int(summary is None))
