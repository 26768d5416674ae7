"""Metrics by name: in a file, on the line and in Python, for what the data and the model are."""

import sys
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from fedloom import Experiment, FedAvg, Local
from fedloom.config.resolve import resolve
from fedloom.data import from_clients
from fedloom.errors import ConfigError
from fedloom.evaluation.declared import DECLARED
from fedloom.evaluation.metrics import Concordance, Overlap
from fedloom.evaluation.named_metrics import by_name
from fedloom.objectives import CrossEntropy
from support.folders import parameters, settings
from support.refusals import refused
from support.scores import accuracy, ranked, right

torchmetrics = pytest.importorskip("torchmetrics")
CALIBRATION = torchmetrics.classification.MulticlassCalibrationError(num_classes=3)


def f_one(said, true):
    return float(2 * (said & true).sum() / (said.sum() + true.sum()))


def federation(targets_of, outputs):
    """A linear model on clients of three sizes, with common test examples."""
    draw = np.random.default_rng(4)

    def sample(n):
        x = draw.normal(size=(n, 3)).astype("float32")
        return x, targets_of(x, draw)

    data = from_clients([sample(n) for n in (8, 12, 20)], test=sample(90))
    model = lambda: nn.Linear(3, outputs)
    local = Local(epochs=1, batch=4, lr=0.05)
    parts = {"algorithm": FedAvg(), "model": model, "rounds": 1, "local": local, "device": "cpu"}
    return lambda **more: Experiment(data=data, **parts, **more)


def two_classes(x, draw):
    return (x[:, 0] + draw.normal(size=len(x)) > 0).astype("int64")


def three_classes(x, draw):
    return np.digitize(x[:, 0] + 0.5 * draw.normal(size=len(x)), [-0.7, 0.7])


def marks(x, draw):
    return two_classes(x, draw).astype("float32")


def run(make, **more):
    """The last row of a run, the model's outputs on the test examples, and their targets."""
    result, data = make(**more).run(), make().data
    with torch.no_grad():
        return result.history[-1], result.model(data.test_inputs), data.test_targets


def test_two_classes_are_measured_by_the_second():
    named = {"auc": "auc", "sensitivity": "recall", "f1": "f1", "accuracy": "accuracy"}
    row, z, y = run(federation(two_classes, 2), metrics=named | {"mine": right})
    columns = [f"test_{name}" for name in (*named, "mine")]
    assert [name for name in row if name in columns] == columns
    assert row["test_auc"] == pytest.approx(ranked(z[:, 1] - z[:, 0], y == 1), abs=1e-6)
    assert row["test_f1"] == pytest.approx(f_one(z.argmax(1) == 1, y == 1), abs=1e-6)
    assert row["test_sensitivity"] == pytest.approx(accuracy(z[y == 1], y[y == 1]), abs=1e-6)
    assert row["test_accuracy"] == row["test_mine"] == pytest.approx(accuracy(z, y))


@pytest.mark.parametrize("outputs", [3, 4], ids=["each class", "an output more than classes"])
def test_several_classes_are_averaged_one_against_the_rest(outputs):
    """torchmetrics counts a class without examples as 0 in an AUC; here it is left out."""
    row, z, y = run(federation(three_classes, outputs), metrics="auc,f1")
    each = [ranked(z.softmax(1)[:, c], y == c) for c in range(3)]
    assert row["test_auc"] == pytest.approx(sum(each) / 3, abs=1e-6)
    said = z.argmax(1)
    f = [f_one(said == c, y == c) for c in {*y.tolist(), *said.tolist()}]
    assert row["test_f1"] == pytest.approx(sum(f) / len(f), abs=1e-6)


SCIKIT = {
    "balanced_accuracy": "balanced_accuracy_score",
    "cohen_kappa": "cohen_kappa_score",
    "f1": "f1_score",
    "hamming_distance": "hamming_loss",
    "jaccard_index": "jaccard_score",
    "matthews_corr_coef": "matthews_corrcoef",
    "precision": "precision_score",
    "recall": "recall_score",
}


@pytest.mark.parametrize("name", SCIKIT)
@pytest.mark.parametrize(
    ("said", "true"),
    [
        ([0, 0, 0, 2, 1, 1, 1, 3], [0, 0, 0, 0, 1, 1, 1, 1]),  # two classes, four predicted
        ([0, 1, 2, 0, 1, 1, 2, 3], [2] * 8),
        ([0, 1, 0, 3, 3, 3, 3, 1], [0, 2, 0, 2, 3, 3, 3, 3]),  # one that is never predicted
        ([0, 1, 1, 0, 0], [0] * 5),
        ([0, 1, 1, 0, 0], [1] * 5),
        ([0, 1, 1, 0, 1], [0, 1, 1, 1, 0]),
    ],
)
def test_a_client_that_lacks_classes_is_measured_as_by_scikit_learn(name, said, true):
    metrics = pytest.importorskip("sklearn.metrics", reason="the extra tables is not installed")
    classes = 2 if set(said) <= {0, 1} else 4
    data = from_clients([(torch.zeros(classes, 1), torch.arange(classes))])
    metric = by_name({"": name}, CrossEntropy(), data)[""]
    for part in (slice(0, 3), slice(3, None)):  # in batches
        outputs = 8 * nn.functional.one_hot(torch.tensor(said[part]), classes).float()
        metric.update(outputs, torch.tensor(true[part]))
    how = {"zero_division": 0, "average": "binary" if classes == 2 else "macro"}
    how = how if name in ("f1", "jaccard_index", "precision", "recall") else {}
    with warnings.catch_warnings(action="ignore"):  # of the classes that are missing
        expected = getattr(metrics, SCIKIT[name])(true, said, **how)
    assert float(metric.compute()) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("outputs", [1, 2])
def test_marks_of_zero_and_one_are_two_classes(outputs):
    targets = marks if outputs == 1 else lambda x, d: np.stack([marks(x, d), marks(-x, d)], 1)
    loss = lambda o, t: nn.functional.binary_cross_entropy_with_logits(o.view_as(t), t)
    row, z, y = run(federation(targets, outputs), objective=loss, metrics=["auc", "f1"])
    z, y = z.reshape(len(y), -1), y.reshape(len(y), -1) == 1
    assert z.shape == y.shape == (90, outputs)
    aucs = [ranked(z[:, k], y[:, k]) for k in range(outputs)]
    assert row["test_auc"] == pytest.approx(sum(aucs) / outputs, abs=1e-6)
    scores = [f_one(z[:, k] > 0, y[:, k]) for k in range(outputs)]
    assert row["test_f1"] == pytest.approx(sum(scores) / outputs, abs=1e-6)


def numbers(x, draw):
    return (x @ [1.0, -2.0, 0.5]).astype("float32")


def test_numbers_have_metrics_of_numbers():
    row, z, y = run(federation(numbers, 1), metrics=["rmse", "mae", "r2"])
    gap = z[:, 0] - y
    assert row["test_rmse"] == pytest.approx(float(gap.square().mean().sqrt()), rel=1e-5)
    assert row["test_mae"] == pytest.approx(float(gap.abs().mean()), rel=1e-5)
    r2 = 1 - gap.square().sum() / (y - y.mean()).square().sum()
    assert row["test_r2"] == pytest.approx(float(r2), rel=1e-4)
    result = federation(numbers, 1)(metrics=["rmse", "r2"]).run()
    assert result.summary["metric"]["higher_is_better"] is False


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        (["aucc"], "neither fedloom nor torchmetrics has a metric 'aucc'; did you mean"),
        (["auc", "auc"], "metrics: two of auc, auc have one name"),
        ([CALIBRATION, CALIBRATION], "have one name"),
        (["mae"], "metrics: 'mae' is for numbers, and the targets are classes"),
        (["perplexity"], "metrics: 'perplexity' is for texts"),
        (["recall_at_fixed_precision"], "cannot be made by its name alone"),
        ({"a": "nothing"}, "neither fedloom nor torchmetrics has a metric 'nothing'"),
        ([1], "metrics must be names such as ['auc', 'f1']"),
        (["rmse", "auc"], "'auc' is for classes, and the targets are numbers"),
    ],
)
def test_a_name_that_cannot_be_is_said(metrics, words):
    make = federation(numbers, 1) if "rmse" in metrics else federation(two_classes, 2)
    refused(lambda: make(metrics=metrics).build(), words, kind=ConfigError)


def test_objects_of_torchmetrics_are_taken_as_they_are_in_a_list():
    """Of several labels, with a threshold; values are the object's own on the whole test set."""
    several = lambda x, draw: (x + 0.5 * draw.normal(size=x.shape) > 0).astype("float32")
    objects = {
        "multilabel_auroc": torchmetrics.classification.MultilabelAUROC(num_labels=3),
        "multilabel_f1_score": torchmetrics.classification.MultilabelF1Score(3, threshold=0.3),
    }
    loss = nn.functional.binary_cross_entropy_with_logits
    row, z, y = run(federation(several, 3), metrics=[*objects.values()], objective=loss)
    for name, metric in objects.items():
        assert row[f"test_{name}"] == pytest.approx(float(metric(z.sigmoid(), y.long())), abs=1e-6)
    result = federation(three_classes, 3)(metrics=[CALIBRATION, "accuracy"]).run()
    assert 0 < result.history[-1]["test_multiclass_calibration_error"] < 1
    about = {"name": "multiclass_calibration_error", "higher_is_better": False}
    assert about.items() <= result.summary["metric"].items()


# --------------------------------------------------------------------------- by file and by line
def test_names_on_the_line_and_in_a_file_are_one_run(fedloom):
    quick = ["rounds=2", "partition.clients=5", "cohort=2", "device=cpu"]
    fedloom("run", "digits", "metrics=auc,f1", *quick, "--out", "line")
    assert settings("line")["metrics"] == ["auc", "f1"]
    fedloom("run", "line/config.toml", "--out", "file")
    assert parameters("line") == parameters("file")
    assert "auc" in fedloom("compare", "line").output
    fedloom("run", "--resume", "line", "rounds=3")
    said = fedloom("run", "--resume", "line", "metrics=f1", code=2).output
    assert "metrics cannot change when a run goes on" in said
    said = fedloom("run", "digits", "metrics=aucc", *quick, code=2).output
    assert "command line: metrics: neither" in said
    values = resolve("digits").values
    assert "metrics" not in values and resolve("digits", ["metrics=none"]).values == values


def test_without_torchmetrics_its_names_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    assert resolve("digits", ["metrics=accuracy"]).values["metrics"] == ["accuracy"]
    with pytest.raises(ConfigError, match=r"torchmetrics.*pip install .*\[metrics\]"):
        resolve("digits", ["metrics=auc"])


def test_fedlooms_own_metrics_have_the_direction_of_their_definition():
    own = {name: m.higher_is_better for name, m in DECLARED.items() if not m.class_name}
    better_low = {"perplexity", "brier"}
    assert {name for name, higher in own.items() if higher is False} == better_low
    assert {name for name, higher in own.items() if higher} == {*own} - better_low


def test_which_metrics_are_better_high_is_what_their_own_classes_say():
    own = {"concordance": Concordance, "dice": Overlap, "iou": Overlap}
    for name, metric in DECLARED.items():
        binary = metric.class_name in ("AUROC", "F1Score", "Recall")
        if metric.class_name and metric.higher_is_better is not None:
            kind = getattr(torchmetrics, metric.class_name)
            theirs = kind(**({"task": "binary"} if binary else {}))
            assert theirs.higher_is_better is metric.higher_is_better, name
        elif name in own:
            assert own[name].higher_is_better is metric.higher_is_better, name
