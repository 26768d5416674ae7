"""A run that stops early is finished, and the best model is kept beside the last."""

from pathlib import Path

import numpy as np
import pytest
from torch import nn

from fedloom import Checkpoint, Evaluation, Experiment, FedAvg, Local, StopRun
from fedloom.data import from_clients
from fedloom.errors import ConfigError
from fedloom.evaluation.stopping import EarlyStop
from support.folders import parameters, record
from tiny import timeless, weights


def clinic(seed, n):
    draw = np.random.default_rng(seed)
    inputs = draw.normal(size=(n, 5)).astype("float32")
    return inputs, (inputs.sum(1) + 2 * draw.normal(size=n) > 0).astype("int64")


def experiment(rounds=60, stop=None, tests=True, keep="", **more):
    """It stops as `stop` says, and keeps the best model by a column."""
    test = {"test": clinic(9, 50)} if tests else {}
    data = from_clients([clinic(i, 20 + i) for i in range(3)], **test)
    parts = {"algorithm": FedAvg(), "model": lambda: nn.Linear(5, 2), "local": Local(lr=0.5)}
    parts |= {"evaluate": Evaluation(stop=stop)} if stop else {}
    parts |= {"checkpoint": Checkpoint(keep_best=keep)} if keep else {}
    return Experiment(rounds=rounds, data=data, **(parts | more))


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
    result = experiment(stop=stop).run(tmp_path / "a")
    assert timeless(result.history) == timeless(whole.history[:expected])
    assert result.summary["finished"] is True and result.summary["stopped"] == expected
    assert len(experiment(80, stop).resume(tmp_path / "a").history) == expected
    experiment(expected - 2, stop).run(tmp_path / "b")
    resumed = experiment(stop=stop).resume(tmp_path / "b")
    assert timeless(resumed.history) == timeless(result.history)
    longer = EarlyStop(metric=metric, patience=5)
    assert len(experiment(expected + 1, longer).resume(tmp_path / "b").history) > expected


def test_a_callback_may_end_a_run(tmp_path):
    def enough(row):
        if row["round"] >= 3:
            raise StopRun

    every = Evaluation(every=2)
    result = experiment(9, evaluate=every, on_round=enough).run(tmp_path / "a")
    assert [row["round"] for row in result.history] == [1, 2, 3, 4], "the last round is evaluated"
    assert "test_accuracy" in result.history[-1]
    assert result.summary["finished"] is True and result.summary["stopped"] == 4
    assert len(experiment(12, evaluate=every).resume(tmp_path / "a").history) == 4


def test_the_best_model_is_that_of_its_round_also_over_a_resume(tmp_path):
    whole = experiment(20, keep="test_loss").run(tmp_path / "a")
    losses = [row["test_loss"] for row in whole.history]
    best = int(np.argmin(losses)) + 1
    assert best < 20
    about = {"metric": "test_loss", "round": best, "value": min(losses)}
    at_best = experiment(best).run().model
    in_memory = experiment(20, keep="test_loss").run()
    for result in (whole, in_memory):
        assert result.summary["best_model"] == about
        assert weights(result.best_model) == weights(at_best)
    kept = parameters(tmp_path / "a", "best.safetensors")
    assert kept == {k: v.tolist() for k, v in at_best.state_dict().items()}
    for first in (best - 1, best + 2):
        experiment(first, keep="test_loss").run(tmp_path / str(first))
        again = experiment(20, keep="test_loss").resume(tmp_path / str(first))
        assert again.summary["best_model"] == about
        assert parameters(tmp_path / str(first), "best.safetensors") == kept


NONE = "has neither test nor validation rows"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"stop": EarlyStop(metric="accuracy")},
            "metric = 'accuracy': .* test_accuracy, test_loss",
        ),
        ({"keep": "validation_loss"}, "keep_best = 'validation_loss'"),
        ({"evaluate": Evaluation(every=0, stop=EarlyStop())}, "evaluate.every = 0"),
        ({"stop": EarlyStop(), "tests": False}, NONE),
        ({"keep": "test_loss", "tests": False}, NONE),
    ],
)
def test_what_is_not_measured_cannot_be_watched(options, said):
    with pytest.raises(ConfigError, match=said):
        experiment(**options).run()


def test_validation_rows_decide_where_there_are_some():
    evaluate = Evaluation(validation=0.3, stop=EarlyStop(patience=3))
    result = experiment(40, evaluate=evaluate).run()
    values = [row["validation_accuracy"] for row in result.history]
    assert result.summary["stopped"] == len(values) == end(values, 3) < 40


def test_the_command_line_stops_exports_the_best_and_a_sweep_takes_it_as_finished(fedloom):
    words = ["digits", "rounds=30", "data.partition.clients=5", "local.lr=1.5"]
    words += ["evaluate.stop.metric=test_loss", "evaluate.stop.patience=3"]
    output = fedloom("run", *words, "checkpoint.keep_best=test_accuracy", "--out", "a").output
    assert "evaluate.stop: test_loss has not been lower than" in output
    summary = record("a")
    assert summary["finished"] and summary["stopped"] == summary["rounds"] < 30
    assert "unfinished" not in fedloom("compare", "a").output
    fedloom("export", "a", "--best", "--out", "best")
    fedloom("export", "a", "--out", "last")
    best, last = (record(name, "about")["round"] for name in ("best", "last"))
    assert best == summary["best_model"]["round"] < last
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
