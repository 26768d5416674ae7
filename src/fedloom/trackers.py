"""Trackers: TensorBoard, Weights & Biases and MLflow see a run's settings and the row of every
round. Each is an extra: ``tensorboard``, ``wandb``, ``mlflow``.

>>> TRACKERS.make("tensorboard", folder="logs")
TensorBoard(folder='logs')
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from .core.extras import need
from .core.hyper import Part, hyper
from .core.parsing import user_path
from .core.registry import Registry


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


_LONGEST = 500  # letters of a parameter's value that every server of MLflow takes
_MANY = 100  # parameters in one message to it


class TensorBoard(Checked):
    """Write event files for `tensorboard --logdir runs`: a scalar per column, and the settings.

    A resumed run goes on in the same folder, with a file that has all rounds and hides the old.
    """

    name: ClassVar[str] = "tensorboard"
    folder: str = hyper(
        "", "of all runs, each in a folder of its name; otherwise `tensorboard` in the run's own"
    )

    def open(self, about: About) -> Session:
        """Begin an event file."""
        from torch.utils.tensorboard import SummaryWriter

        folder = user_path(self.folder) / about.name
        if about.folder is not None and not self.folder:
            folder = about.folder / "tensorboard"
        make: Any = SummaryWriter
        writer = make(str(folder), purge_step=1 if about.round else None)
        if not about.round:
            writer.add_text("settings", "\n".join(f"    {x}" for x in about.text.splitlines()))
        return _EventFiles(str(folder), writer)


@dataclass(frozen=True)
class _EventFiles:
    name: str
    writer: Any

    def log(self, row: Mapping[str, float]) -> None:
        for column, value in row.items():
            if column != "round":
                self.writer.add_scalar(column, value, int(row["round"]))

    def end(self, summary: Mapping[str, float] | None) -> None:
        self.writer.close()


class WandB(Checked):
    """Log to Weights & Biases; offline into the run's folder, for a later `wandb sync`.

    A resumed run goes on in the same run there. The account is the one of `wandb login`.
    """

    name: ClassVar[str] = "wandb"
    project: str = hyper("fedloom", "of the runs")
    mode: Literal["online", "offline"] = hyper(
        "online",
        "offline writes files only, for `wandb sync RUN/wandb/offline-*`",
    )

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
        return _WandBRun(str(run.id), run)


@dataclass(frozen=True)
class _WandBRun:
    name: str
    run: Any

    def log(self, row: Mapping[str, float]) -> None:
        if row["round"] >= self.run.step:  # what it has already, it does not take again
            self.run.log(dict(row), step=int(row["round"]))

    def end(self, summary: Mapping[str, float] | None) -> None:
        if summary is not None:
            self.run.summary.update(dict(summary))
        self.run.finish(exit_code=int(summary is None))


class MLflow(Checked):
    """Log to MLflow: settings as parameters, the numbers of every round as metrics.

    A resumed run goes on in the same run there.
    """

    name: ClassVar[str] = "mlflow"
    experiment: str = hyper("fedloom", "of the runs")
    uri: str = hyper("", "of the server, or a folder; otherwise MLFLOW_TRACKING_URI, or ./mlruns")

    def open(self, about: About) -> Session:
        """Begin a run there, or go on with it."""
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=self.uri or None)
        if about.known is not None:
            client.update_run(about.known, status="RUNNING")
            last_round = client.get_run(about.known).data.metrics.get("round", 0)
            return _MLflowRun(about.known, client, int(last_round))
        entry = client.get_experiment_by_name(self.experiment)
        experiment_id = entry.experiment_id if entry else client.create_experiment(self.experiment)
        run = client.create_run(experiment_id, run_name=about.name, tags={"label": about.label})
        params = [Param(key, str(value)[:_LONGEST]) for key, value in about.settings.items()]
        for start in range(0, len(params), _MANY):
            client.log_batch(run.info.run_id, params=params[start : start + _MANY])
        return _MLflowRun(run.info.run_id, client, 0)


@dataclass(frozen=True)
class _MLflowRun:
    name: str
    client: Any
    seen: int  # the last round that is there already

    def log(self, row: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        if row["round"] > self.seen:
            now, step = int(1000 * time.time()), int(row["round"])
            sent = [Metric(k.replace("@", "_at_"), float(v), now, step) for k, v in row.items()]
            self.client.log_batch(self.name, metrics=sent)

    def end(self, summary: Mapping[str, float] | None) -> None:
        self.client.set_terminated(self.name, "FINISHED" if summary is not None else "KILLED")


TRACKERS: Registry[Callable[..., Tracker]] = Registry(
    "tracker", {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}
)
