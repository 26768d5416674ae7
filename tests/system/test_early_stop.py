"""A run that stops early is finished, and the best model is kept beside the last."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from fedloom import Checkpoint, Evaluation, Experiment, FedAvg, Local, StopRun
from fedloom.data import from_clients
from fedloom.errors import ConfigError
from fedloom.evaluation.stopping import EarlyStop


def clinic(seed, n):
    draw = np.random.default_rng(seed)
    inputs = draw.normal(size=(n, 5)).astype("float32")
    noise = draw.normal(size=n)
    return inputs, (inputs.sum(1) + 2 * noise > 0).astype("int64")


def experiment(rounds=60, **more):
    data = from_clients([clinic(i, 20 + i) for i in range(3)], test=clinic(9, 50))
    parts = {"algorithm": FedAvg(), "model": lambda: nn.Linear(5, 2), "local": Local(lr=0.5)}
    return Experiment(rounds=rounds, **{"data": data, **parts, **more})


def plain(rows):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def end(values, patience, higher=True):
    """The round after which a run ends: so many evaluations after the best one so far."""
    signed = [v if higher else -v for v in values]
    for t in range(len(signed)):
        if t - int(np.argmax(signed[: t + 1])) >= patience:
            return t + 1
    return len(signed)


@pytest.mark.parametrize(("metric", "higher"), [("test_accuracy", True), ("test_loss", False)])
def test_it_stops_after_so_many_evaluations_without_a_better_value(tmp_path, metric, higher):
    whole = experiment().run()
    stop = EarlyStop(metric=metric, patience=4)
    expected = end([row[metric] for row in whole.history], 4, higher)
    assert 4 < expected < 60, "the data are to make a run that stops in the middle"
    found = experiment(evaluate=Evaluation(stop=stop)).run(tmp_path / "a")
    assert plain(found.history) == plain(whole.history[:expected])
    assert found.summary["finished"] is True and found.summary["stopped"] == expected
    again = experiment(rounds=80, evaluate=Evaluation(stop=stop)).resume(tmp_path / "a")
    assert len(again.history) == expected
    experiment(expected - 2, evaluate=Evaluation(stop=stop)).run(tmp_path / "b")
    resumed = experiment(evaluate=Evaluation(stop=stop)).resume(tmp_path / "b")
    assert plain(resumed.history) == plain(found.history)
    longer = Evaluation(stop=EarlyStop(metric=metric, patience=5))
    assert len(experiment(expected + 1, evaluate=longer).resume(tmp_path / "b").history) > expected


def test_a_callback_may_end_a_run(tmp_path):
    def enough(row):
        if row["round"] >= 3:
            raise StopRun

    options = {"evaluate": Evaluation(every=2), "on_round": enough}
    found = experiment(9, **options).run(tmp_path / "a")
    assert [row["round"] for row in found.history] == [1, 2, 3, 4], "the last round is evaluated"
    assert "test_accuracy" in found.history[-1]
    assert found.summary["finished"] is True and found.summary["stopped"] == 4
    again = experiment(12, evaluate=Evaluation(every=2)).resume(tmp_path / "a")
    assert len(again.history) == 4


@pytest.mark.parametrize("folder", [True, False])
def test_the_best_model_is_that_of_its_round(tmp_path, folder):
    out = tmp_path / "a" if folder else None
    found = experiment(20, checkpoint=Checkpoint(keep_best="test_loss")).run(out)
    losses = [row["test_loss"] for row in found.history]
    best = int(np.argmin(losses)) + 1
    assert best < 20
    about = {"metric": "test_loss", "round": best, "value": min(losses)}
    assert found.summary["best_model"] == about
    at_best = experiment(best).run().model
    kept = found.best_model
    for one, other in zip(kept.parameters(), at_best.parameters(), strict=True):
        assert torch.equal(one, other)
    if folder:
        tensors = load_file(out / "best.safetensors")
        assert all(torch.equal(v, tensors[k]) for k, v in at_best.state_dict().items())


def test_the_best_model_is_kept_over_a_resume(tmp_path):
    kept = Checkpoint(keep_best="test_loss")
    whole = experiment(20, checkpoint=kept).run(tmp_path / "a")
    best = whole.summary["best_model"]["round"]
    for first in (best - 1, best + 2):
        out = tmp_path / str(first)
        experiment(first, checkpoint=kept).run(out)
        again = experiment(20, checkpoint=kept).resume(out)
        assert again.summary["best_model"] == whole.summary["best_model"]
        files = [(run / "best.safetensors").read_bytes() for run in (tmp_path / "a", out)]
        assert files[0] == files[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"evaluate": Evaluation(stop=EarlyStop(metric="accuracy"))},
            "evaluate.stop.metric = 'accuracy': .* test_accuracy, test_loss",
        ),
        ({"checkpoint": Checkpoint(keep_best="validation_loss")}, "keep_best = 'validation_loss'"),
        ({"evaluate": Evaluation(every=0, stop=EarlyStop())}, "evaluate.every = 0"),
    ],
)
def test_what_is_not_measured_cannot_be_watched(options, said):
    with pytest.raises(ConfigError, match=said):
        experiment(**options).run()


@pytest.mark.parametrize(
    "options",
    [{"evaluate": Evaluation(stop=EarlyStop())}, {"checkpoint": Checkpoint(keep_best="test_loss")}],
)
def test_data_without_rows_to_measure_are_refused(options):
    data = from_clients([clinic(i, 20) for i in range(3)])
    with pytest.raises(ConfigError, match="has neither test nor validation rows"):
        experiment(data=data, **options).run()


def test_validation_rows_decide_where_there_are_some():
    evaluate = Evaluation(validation=0.3, stop=EarlyStop(patience=3))
    found = experiment(40, evaluate=evaluate).run()
    values = [row["validation_accuracy"] for row in found.history]
    assert found.summary["stopped"] == len(values) == end(values, 3) < 40


def test_the_command_line_stops_exports_the_best_and_a_sweep_takes_it_as_finished(fedloom):
    words = ["digits", "rounds=30", "data.partition.clients=5", "local.lr=1.5"]
    words += ["evaluate.stop.metric=test_loss", "evaluate.stop.patience=3"]
    output = fedloom("run", *words, "checkpoint.keep_best=test_accuracy", "--out", "a").output
    assert "evaluate.stop: test_loss has not been lower than" in output
    summary = json.loads(Path("a/summary.json").read_text())
    assert summary["finished"] and summary["stopped"] == summary["rounds"] < 30
    assert "unfinished" not in fedloom("compare", "a").output
    fedloom("export", "a", "--best", "--out", "best")
    fedloom("export", "a", "--out", "last")
    about = [json.loads(Path(name, "about.json").read_text()) for name in ("best", "last")]
    assert about[0]["round"] == summary["best_model"]["round"] < about[1]["round"]
    sweep = ["sweep", *words, "local.batch=10,20", "--out", "s"]
    assert "unfinished" not in fedloom(*sweep).output
    ended = {path: path.stat().st_mtime_ns for path in Path("s").glob("*/rounds.jsonl")}
    assert len(ended) == 2
    fedloom(*sweep)  # finished runs are skipped
    assert ended == {path: path.stat().st_mtime_ns for path in ended}
    said = fedloom("run", "digits", "evaluate.stop.metric=loss", "--out", "b", code=2).output
    assert "evaluate.stop.metric = 'loss': rows have no such column" in said
    said = fedloom("export", "a", "--best", "--client", "1", code=2).output
    assert "--best is of the server's model" in said
