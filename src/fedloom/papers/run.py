"""Run a table's runs one after the other: each is resumed, or skipped if its line is there."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from typing import Protocol as Interface

from ..data import FederatedData
from ..errors import DataError, FedloomError
from ..storage.identity import digest
from ..sweep import FAILURE, Trial, run_trial, state_of
from .afterwards import afterwards, needed
from .lines import NAME, append, latest, line_of, read
from .plan import PaperRun, Plan


class Watch(Interface):
    """What wants to know how far a table is."""

    def begin(self, run: PaperRun, number: int) -> None:
        """A run begins, or goes on."""

    def row(self, run: PaperRun, row: Mapping[str, Any]) -> None:
        """A round is done."""

    def end(self, run: PaperRun, state: str) -> None:
        """A run is over: "finished", "failed", "there" (its line was), or "refused"."""


@dataclass
class Outcome:
    """What did not run: {title of a run: reason}, and of which data sets there are no data."""

    refused: dict[str, str] = field(default_factory=dict)
    no_data: dict[str, str] = field(default_factory=dict)


def missing(plan: Plan, out: Path) -> list[PaperRun]:
    """The runs whose line is not there, or lacks what this table measures on finished runs; those
    of the same data one after the other.
    """
    wanted = set(needed(plan.entry))
    have = {
        place
        for place, line in latest(read(out / NAME)).items()
        if line["state"] == "failed" or wanted <= {*line.get("afterwards", ())}
    }
    left = [run for run in plan.runs if (run.digest, run.seed) not in have]
    first = {run.protocol.name: n for n, run in reversed([*enumerate(left)])}
    return sorted(left, key=lambda run: (run.seed, first[run.protocol.name]))


def run_all(plan: Plan, out: Path, watch: Watch) -> Outcome:
    """Run what has no line yet, and append a line for each run.

    Data are loaded once for the runs that share them. A run whose client fails is a result too; one
    that cannot be built, or whose data are missing, is left out, and the others run. Raises
    KeyboardInterrupt, after the run has been saved, and CheckpointError.
    """
    outcome, left = Outcome(), missing(plan, out)
    numbers = {id(run): n for n, run in enumerate(left, 1)}
    for _, group in itertools.groupby(left, key=_data_key):
        runs = list(group)
        try:
            data = runs[0].config.data()
        except DataError as error:
            outcome.no_data.setdefault(runs[0].protocol.dataset, " ".join(str(error).split()))
            for run in runs:
                watch.end(run, "refused")
            continue
        for run in runs:
            watch.begin(run, numbers[id(run)])
            watch.end(run, _one(run, data, out, watch, outcome, needed(plan.entry)))
    return outcome


def _data_key(run: PaperRun) -> str:
    """The same text for runs of the same data, split in the same way."""
    values = run.config.values
    return digest([values["data"], values["dtype"]])


def _one(
    run: PaperRun,
    data: FederatedData,
    out: Path,
    watch: Watch,
    outcome: Outcome,
    metrics: tuple[str, ...],
) -> str:
    """Run one, or go on with it, measure it, and append its line -> its state."""
    trial = Trial({}, run.seed, run.config, run.folder)
    try:
        run.folder.parent.mkdir(parents=True, exist_ok=True)
        state = run_trial(trial, data=data, on_round=lambda row: watch.row(run, row))
    except FedloomError as error:
        if state_of(run.folder) != "new":  # a run that broke off is no refusal
            raise
        outcome.refused[run.title] = " ".join(str(error).split())
        return "refused"
    failure = (run.folder / FAILURE).read_text("utf-8").strip() if state == "failed" else ""
    line = line_of(run, failure)
    if not failure:
        before = latest(read(out / NAME)).get((run.digest, run.seed), {}).get("afterwards", {})
        left = [metric for metric in metrics if metric not in before]
        line["afterwards"] = before | (afterwards(run, data, left) if left else {})
    append(out / NAME, line)
    return state
