"""MLflow: a tracking server, or files on disk."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.hyper import hyper
from .base import About, Checked, Session, need

_LONGEST = 500  # letters of a parameter's value that every server takes
_MANY = 100  # parameters in one message


class MLflow(Checked):
    """Log to MLflow: settings as parameters, the numbers of every round as metrics.

    A resumed run goes on in the same run there.
    """

    experiment: str = hyper("fedloom", "of the runs")
    uri: str = hyper("", "of the server, or a folder; otherwise MLFLOW_TRACKING_URI, or ./mlruns")

    def check(self) -> None:
        """Raise ConfigError if the library is missing."""
        need("mlflow", "mlflow")

    def open(self, about: About) -> Session:
        """Begin a run there, or go on with it."""
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=self.uri or None)
        if about.known is not None:
            client.update_run(about.known, status="RUNNING")
            seen = client.get_run(about.known).data.metrics.get("round", 0)
            return _Session(about.known, client, int(seen))
        found = client.get_experiment_by_name(self.experiment)
        place = found.experiment_id if found else client.create_experiment(self.experiment)
        run = client.create_run(place, run_name=about.name, tags={"label": about.label})
        named = [Param(key, str(value)[:_LONGEST]) for key, value in about.settings.items()]
        for at in range(0, len(named), _MANY):
            client.log_batch(run.info.run_id, params=named[at : at + _MANY])
        return _Session(run.info.run_id, client, 0)


@dataclass(frozen=True)
class _Session:
    name: str
    client: Any
    seen: int  # the last round that is there already

    def log(self, row: Mapping[str, float]) -> None:
        if row["round"] > self.seen:
            self._send(row, int(row["round"]))

    def _send(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        sent = [Metric(k.replace("@", "_at_"), float(v), now, step) for k, v in values.items()]
        self.client.log_batch(self.name, metrics=sent)

    def end(self, summary: Mapping[str, float] | None) -> None:
        self.client.set_terminated(self.name, "FINISHED" if summary is not None else "KILLED")
