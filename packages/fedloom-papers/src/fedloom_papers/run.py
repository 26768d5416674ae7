"""Run a table's runs one after the other: each is resumed, or skipped if its line is there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedloom.cli.many_runs import Progress
from fedloom.data import FederatedData
from fedloom.errors import DataError, FedloomError
from fedloom.measures import Cka, Divergence, Hessian, Measure, Plane, Surface
from fedloom.storage.identity import digest
from fedloom.study import Outcome, RunTrials, run_all, state_of

from . import flamby
from .entry import Entry
from .lines import NAME, Line, append, code_version, evidence, latest, line_of
from .measure import METRICS
from .plan import PaperRun, Plan

PAUSE = "pause"  # a file; while it is there, runs wait
_POLL = 1.0  # seconds
_SMALL: dict[type[Measure], dict[str, int]] = {  # at scale smoke
    Hessian: {"examples": 100, "steps": 5, "probes": 3},
    Surface: {"examples": 50, "points": 3},
    Plane: {"examples": 50, "points": 3},
    Cka: {"examples": 50},
}
# of each metric its measure, and the column that is it
_COLUMNS: dict[str, tuple[Callable[..., Measure], str]] = {
    "client_divergence": (Divergence, "divergence"),
    "local_cka": (Cka, "cka"),
    "local_loss": (Plane, "plane_loss"),
    "local_distance": (Plane, "plane_distance"),
    "hessian_top_eigenvalue": (Hessian, "hessian_top"),
    "hessian_trace": (Hessian, "hessian_trace"),
    "loss_sharpness": (Surface, "surface_rise"),
}


def missing(plan: Plan, out: Path, lines: Sequence[Line] | None = None) -> list[PaperRun]:
    """The runs whose line is not there, or lacks what this table measures on finished runs; those
    of the same data one after the other. lines: those of the folder, if they were read before.
    """
    metrics = set(afterwards_metrics(plan.entry))
    have = {
        key
        for key, line in latest(evidence(out) if lines is None else lines, plan.runs).items()
        if line["state"] == "failed" or metrics <= {*line.get("afterwards", ())}
    }
    left = [run for run in plan.runs if (run.digest, run.seed) not in have]
    first = {run.protocol.name: n for n, run in reversed([*enumerate(left)])}
    return sorted(left, key=lambda run: (run.seed, first[run.protocol.name]))


def run_plan(
    plan: Plan, out: Path, jobs: int = 1, quiet: bool = True, minutes: float | None = None
) -> dict[str, str]:
    """Run what has no line yet, showing how far it is, and append a line for each run -> what did
    not run, and why: {"not run: TITLE" or "no data: DATASET": reason}. minutes: until time is up.

    jobs: how many runs there are at once, each in a process that takes one after the other. Data
    are loaded once by each process for the runs that share them. A run whose client fails is a
    result too; one that cannot be built, or whose data are missing, is left out, and the others
    run. Raises KeyboardInterrupt, after the runs have been saved, and CheckpointError.
    """
    code_version()  # the code may change while the runs run
    left_out, left, metrics = dict[str, str](), missing(plan, out), afterwards_metrics(plan.entry)
    lines = latest(evidence(out), plan.runs) if left else {}
    measured = {r.folder: lines.get((r.digest, r.seed), {}).get("afterwards", {}) for r in left}
    to_measure = {path: [m for m in metrics if m not in have] for path, have in measured.items()}
    with Progress(quiet, minutes) as progress:
        for run, result in run_all(left, Work(out / PAUSE, to_measure), jobs, progress):
            if result.state == "refused":
                left_out[f"not run: {run.title}"] = result.why
            elif result.state == "no data":
                left_out[f"no data: {run.protocol.dataset}"] = result.why
            else:
                after = {**measured[run.folder], **result.afterwards}
                more = {} if result.why else {"afterwards": after}
                append(out / NAME, line_of(run, result.why) | more)
    return left_out


class Work(RunTrials):
    """Runs one after the other; the data of the last one are kept for the next, and data that
    cannot be had are asked for once. Between two rounds it waits while the file `pause` is there.
    metrics: {folder of a run: what is to be measured on it afterwards}.
    """

    def __init__(self, pause: Path, metrics: Mapping[Path, Sequence[str]]) -> None:
        super().__init__()
        self._pause, self._metrics = pause, metrics
        self._unavailable: dict[str, Outcome] = {}

    def __call__(self, run: Any, on_row: Callable[[Any], None]) -> Outcome:
        """Run one, or go on with it, and measure it."""
        same = digest({k: v for k, v in run.config.values["data"].items() if k != "seed"})
        if same in self._unavailable:
            return self._unavailable[same]
        try:
            data = self.cache.of(run.config)
        except DataError as error:
            self._unavailable[same] = Outcome("no data", " ".join(str(error).split()))
            return self._unavailable[same]

        def after_round(row: Any) -> None:
            on_row(row)
            while self._pause.exists():
                time.sleep(_POLL)

        try:
            run.folder.parent.mkdir(parents=True, exist_ok=True)
            result = super().__call__(run, after_round)
        except FedloomError as error:
            if state_of(run.folder) != "new":  # a run that broke off is no refusal
                raise
            return Outcome("refused", " ".join(str(error).split()))
        metrics = self._metrics[run.folder]
        if result.state == "failed" or not metrics:
            return result
        return result._replace(afterwards=afterwards(run, data, metrics))


# ------------------------------------------------------------------------------- on finished runs
def afterwards_metrics(entry: Entry) -> tuple[str, ...]:
    """The metrics of a table that are measured on finished runs."""
    return tuple(dict.fromkeys(w.metric for w in entry.quantities() if METRICS[w.metric].after))


def afterwards(run: PaperRun, data: FederatedData, metrics: Iterable[str]) -> dict[str, float]:
    """{metric: number} of a finished run, at its last checkpoint; the run stays as it is.

    Raises CheckpointError if its folder has none.
    """
    loop = run.config.experiment(data=data).open(run.folder)
    measured: dict[Any, dict[str, float]] = {}
    out: dict[str, float] = {}
    if any(metric.startswith(flamby.METRIC) for metric in metrics):
        out |= flamby.centres(run.config, run.recipe, loop)
    for metric in (m for m in metrics if m not in out):
        make, column = _COLUMNS[metric]
        if make not in measured:
            options = _SMALL.get(make, {}) if run.scale == "smoke" else {}  # type: ignore[call-overload]
            one = make(**options)
            measured[make] = one.columns(one.of(loop))
        if column in measured[make]:
            out[metric] = measured[make][column]
    return out
