"""What a run says about its inputs and its score, and whether an exported model reproduces it."""

from __future__ import annotations

import math
import runpy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from fedloom.errors import CheckpointError, ConfigError, FedloomError

from .export_script import Use

if TYPE_CHECKING:
    from torch import Tensor

    from fedloom.data import FederatedData
    from fedloom.report import Run


@dataclass(frozen=True)
class Told:
    """use: for the script. data: the run's, None if they are not available, and why. by_batch: the
    run was evaluated with statistics of test batches, which no export has.
    """

    use: Use
    data: FederatedData | None
    why: str
    by_batch: bool

    def lacking(self, built: str | None) -> list[str]:
        """What the script cannot include, one line each."""
        kind, lines = self.use.inputs["kind"], []
        if built is not None and built.startswith("MODELS"):
            lines.append("not plain torch: the script imports fedloom.models for this model")
        if kind == "own":
            name = self.use.inputs["transform"]
            lines.append(f"not exported: the transform {name}, your own code; call it in prepare()")
        if _lacks_rules(self.use.inputs):
            lines.append(
                "not exported: how cells of the table become inputs, of which older runs say only "
                "what partition.json has under prepared; the script takes their numbers"
            )
        if kind == "unknown":
            lines.append("not exported: how inputs are made, which the run does not say")
        if kind == "subwords":
            lines.append("the script reads the tokeniser with the package transformers")
        if self.use.metric is None:
            name = self.use.name
            lines.append(
                f"not exported: the metric '{name}', code that is not fedloom's: no --check"
            )
        return lines


def ask(run: Path, round: int, share: float | None, weights: Mapping[str, Tensor]) -> Told:
    """What a run says about the model of a round; share: of a sub-model of this size."""
    from fedloom.report import load_run

    found = load_run(run)
    inputs, metric = (found.partition.get(key) for key in ("inputs", "metric"))
    data, why = None, "the run was started from Python, which alone knows its data"
    elsewhere = found.partition.get("tests_elsewhere")
    elsewhere = elsewhere if isinstance(elsewhere, int) else 0
    if elsewhere:
        why = (
            "the nodes measured it, on test rows that are not here; score() in the script does too"
        )
    elif found.config.get("source") != "python":
        try:
            data, recipe, told = _from_config(run)
            if inputs is None or _lacks_rules(inputs):  # of an older run
                inputs = recipe
            metric = told if "metric" not in found.partition else metric
        except FedloomError as error:
            why = f"the data are not at hand: {error}"
    inputs = inputs if isinstance(inputs, Mapping) and "kind" in inputs else {"kind": "unknown"}
    metric = metric if isinstance(metric, Mapping) and "kind" in metric else None
    by_token = metric is not None and metric["kind"] in ("perplexity", "token accuracy")
    first = next((v for v in weights.values() if v.is_floating_point()), None)
    tests = None if data is None else data.test_targets
    use = Use(
        inputs=inputs,
        metric=metric,
        name=found.metric.name,
        classes=tuple(str(c) for c in found.partition.get("class_names") or ()),
        said=_said(found, round, share),
        samples=elsewhere if tests is None else len(tests),
        tokens=int((inputs.get("shape") or [1])[0]) if by_token else 1,
        dtype="float32" if first is None else str(first.dtype).removeprefix("torch."),
    )
    by_batch = found.config.get("evaluate", {}).get("statistics") == "batch"
    return Told(use, data, why, by_batch)


def _lacks_rules(inputs: Mapping[str, Any]) -> bool:
    """Whether inputs were made of a table's cells by rules that are told in words alone."""
    return inputs.get("kind") == "numbers" and "prepared" in inputs


def _from_config(run: Path) -> tuple[FederatedData, dict[str, Any], dict[str, Any] | None]:
    """-> the data of a run, how its inputs are made of samples, its metric."""
    from fedloom.config import from_run
    from fedloom.data.raw_inputs import recipe
    from fedloom.engines.metrics import default_metrics, told

    experiment = from_run(run, ["device=cpu"], own=True).experiment()
    data, objective = experiment.data, experiment.loss_at_clients
    metrics = default_metrics(objective, data)
    return data, recipe(data.raw, data.transform, data.inputs), told(metrics, objective)


def _said(run: Run, round: int, share: float | None) -> float | None:
    """The run's score of this model on the test set; None if there is none."""
    from fedloom.server.submodel_evaluation import text

    sizes = (run.summary.get("sizes") or {}).get("unseen") or []
    for row in sizes if share is not None and run.summary.get("rounds") == round else []:
        if row["capacity"] == share:
            return float(row["global"])
    name = run.metric.column if share is None else f"{run.metric.column}@{text(share)}"
    row = np.flatnonzero(run.rounds == round)
    if name not in run.columns or not len(row):
        return None
    value = float(run.columns[name][row[-1]])
    return value if math.isfinite(value) else None


def verify(code: Path, told: Told, whole: bool, npz: Path | None) -> None:
    """Run an exported script on the run's test set, as raw samples, and compare its score with the
    run's. npz: where to write the test set. Raises CheckpointError if it differs, ConfigError if
    there is nothing to write.
    """
    samples = None if told.data is None else _samples(told.data)
    if npz is not None:
        if samples is None:
            raise ConfigError(f"--test-set: {told.why if told.data is None else 'there is none'}")
        _save(npz, *samples)
    if samples is None or not whole or told.use.metric is None:
        why = "the run has no test set" if told.data is not None else told.why
        click.echo(f"not checked: {why if samples is None else 'see above'}")
        return
    if told.use.inputs["kind"] in ("own", "unknown"):
        click.echo("not checked: the inputs' transform is not in the script")
        return
    found, said, name = _score(code, samples), told.use.said, told.use.name
    line = f"{name} {found:.6g} on {len(samples[1])} raw test samples"
    if said is None or told.by_batch:
        why = (
            "measured by the statistics of test batches" if told.by_batch else "did not measure it"
        )
        click.echo(f"checked: {line}; the run {why}")
        return
    tie = 1 / len(samples[1]) if told.use.metric["kind"] == "accuracy" else 0.0
    if abs(found - said) > 0.001 * max(1.0, abs(said)) + tie:
        raise CheckpointError(
            f"'{code}' has {line}, but the run said {said:.6g}: the data or this fedloom are not "
            "those of the run; do not use it before you know why"
        )
    click.echo(f"checked: {line}, and the run said {said:.6g}")


def _samples(data: FederatedData) -> tuple[Any, Any] | None:
    """The published form of the test set, inputs (an array, or texts) and targets; or None."""
    if data.test_inputs is None or data.test_targets is None:
        return None
    back = (lambda stored: stored.numpy()) if data.raw is None else data.raw.back
    return back(data.test_inputs), data.test_targets.numpy()


def _score(code: Path, samples: tuple[Any, Any]) -> float:
    """The score that the script itself measures, on one thread as in a run."""
    from fedloom.engines.base import one_thread

    with one_thread():
        return float(runpy.run_path(str(code))["score"](*samples))


def _save(npz: Path, inputs: Any, targets: Any) -> None:
    from fedloom.storage.atomic import write_out

    def save(path: Path) -> None:
        with open(path, "wb") as file:
            np.savez_compressed(file, inputs=np.asarray(inputs), targets=targets)

    click.echo(f"{write_out(npz, save)}: the test set, {len(targets)} raw samples")
