"""Metrics by name: in a file, on the line and in Python, for what the data and the model are."""

from __future__ import annotations

import sys
import tomllib
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from fedloom import Experiment, FedAvg, Local
from fedloom.config.resolve import resolve
from fedloom.data import from_clients
from fedloom.errors import ConfigError
from fedloom.evaluation.named_metrics import by_name
from fedloom.objectives import CrossEntropy

torchmetrics = pytest.importorskip("torchmetrics")


def ranked(scores, positive):
    """The area under the ROC curve: how often a positive example is above a negative one."""
    one, other = scores[positive][:, None], scores[~positive]
    return float(((one > other) + 0.5 * (one == other)).double().mean())


def f_one(said, true):
    return float(2 * (said & true).sum() / (said.sum() + true.sum()))


def federation(targets_of, outputs, seed=4):
    """A linear model on clients of three sizes, with common test examples."""
    draw = np.random.default_rng(seed)

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
    result = make(**more).run()
    data = make(**more).data
    with torch.no_grad():
        outputs = result.model(data.test_inputs)
    return result.history[-1], outputs, data.test_targets


def test_two_classes_are_measured_by_the_second():
    names = ["auc", "f1", "balanced_accuracy", "accuracy"]
    row, z, y = run(federation(two_classes, 2), metrics=names)
    assert [k for k in row if k in {f"test_{n}" for n in names}] == [f"test_{n}" for n in names]
    said, true = z.argmax(1) == 1, y == 1
    assert row["test_auc"] == pytest.approx(ranked(z[:, 1] - z[:, 0], true), abs=1e-6)
    assert row["test_f1"] == pytest.approx(f_one(said, true), abs=1e-6)
    recalls = [(said == true)[true].double().mean(), (said == true)[~true].double().mean()]
    assert row["test_balanced_accuracy"] == pytest.approx(float(sum(recalls)) / 2, abs=1e-6)
    assert row["test_accuracy"] == pytest.approx(float((said == true).double().mean()))


def test_several_classes_are_averaged_one_against_the_rest():
    row, z, y = run(federation(three_classes, 3), metrics="auc,f1")
    p, said = z.softmax(1), z.argmax(1)
    each = [ranked(p[:, c], y == c) for c in range(3)]
    assert row["test_auc"] == pytest.approx(sum(each) / 3, abs=1e-6)
    f = [f_one(said == c, y == c) for c in range(3)]
    assert row["test_f1"] == pytest.approx(sum(f) / 3, abs=1e-6)


def test_a_class_without_examples_is_left_out_of_an_auc():
    """torchmetrics counts it as 0."""
    row, z, y = run(federation(three_classes, 4), metrics=["auc"])  # one output more than classes
    each = [ranked(z.softmax(1)[:, c], y == c) for c in range(3)]
    assert row["test_auc"] == pytest.approx(sum(each) / 3, abs=1e-6)


SCIKIT = {
    "balanced_accuracy": lambda m, y, said: m.balanced_accuracy_score(y, said),
    "cohen_kappa": lambda m, y, said: m.cohen_kappa_score(y, said),
    "f1": lambda m, y, said: m.f1_score(y, said, zero_division=0, **averaged(said)),
    "hamming_distance": lambda m, y, said: m.hamming_loss(y, said),
    "jaccard_index": lambda m, y, said: m.jaccard_score(y, said, zero_division=0, **averaged(said)),
    "matthews_corr_coef": lambda m, y, said: m.matthews_corrcoef(y, said),
    "precision": lambda m, y, said: m.precision_score(y, said, zero_division=0, **averaged(said)),
    "recall": lambda m, y, said: m.recall_score(y, said, zero_division=0, **averaged(said)),
}


def averaged(said):
    return {"average": "binary" if set(said) <= {0, 1} else "macro"}


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
    made = by_name({"": name}, CrossEntropy(), data)[""]
    for part in (slice(0, 3), slice(3, None)):  # in batches
        made.update(
            8 * nn.functional.one_hot(torch.tensor(said[part]), classes).float(),
            torch.tensor(true[part]),
        )
    with warnings.catch_warnings(action="ignore"):  # of the classes that are missing
        expected = SCIKIT[name](metrics, true, said)
    assert float(made.compute()) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("outputs", [1, 2])
def test_marks_of_zero_and_one_are_two_classes(outputs):
    targets = marks if outputs == 1 else lambda x, d: np.stack([marks(x, d), marks(-x, d)], 1)
    loss = lambda o, t: nn.functional.binary_cross_entropy_with_logits(o.view_as(t), t)
    parts = {"objective": loss, "metrics": ["auc", "f1"]}
    row, z, y = run(federation(targets, outputs), **parts)
    z, y = z.reshape(len(y), -1), y.reshape(len(y), -1) == 1
    assert z.shape == y.shape == (90, outputs)
    wanted = [ranked(z[:, k], y[:, k]) for k in range(outputs)]
    assert row["test_auc"] == pytest.approx(sum(wanted) / outputs, abs=1e-6)
    wanted = [f_one(z[:, k] > 0, y[:, k]) for k in range(outputs)]
    assert row["test_f1"] == pytest.approx(sum(wanted) / outputs, abs=1e-6)


def test_numbers_have_metrics_of_numbers():
    make = federation(lambda x, draw: (x @ [1.0, -2.0, 0.5]).astype("float32"), 1)
    row, z, y = run(make, metrics=["rmse", "mae", "r2"])
    gap = z[:, 0] - y
    assert row["test_rmse"] == pytest.approx(float(gap.square().mean().sqrt()), rel=1e-5)
    assert row["test_mae"] == pytest.approx(float(gap.abs().mean()), rel=1e-5)
    r2 = 1 - gap.square().sum() / (y - y.mean()).square().sum()
    assert row["test_r2"] == pytest.approx(float(r2), rel=1e-4)
    assert make(metrics=["rmse", "r2"]).run().summary["metric"]["higher_is_better"] is False


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        (["aucc"], "metrics: neither fedloom nor torchmetrics has a metric 'aucc'; did you mean"),
        (["auc", "auc"], "metrics: two of auc, auc have one name"),
        (["mae"], "metrics: 'mae' is for numbers, and the targets are classes"),
        (["perplexity"], "metrics: 'perplexity' is for texts"),
        (
            ["recall_at_fixed_precision"],
            "'recall_at_fixed_precision' cannot be made by its name alone",
        ),
        ({"a": "nothing"}, "neither fedloom nor torchmetrics has a metric 'nothing'"),
        ([1], "metrics must be names such as ['auc', 'f1']"),
    ],
)
def test_a_name_that_cannot_be_is_said(metrics, words):
    with pytest.raises(ConfigError) as error:
        federation(two_classes, 2)(metrics=metrics).build()
    assert words in str(error.value) and "\n" not in str(error.value)


def test_classes_are_not_measured_on_numbers():
    make = federation(lambda x, draw: x[:, 0], 1)
    with pytest.raises(ConfigError, match="'auc' is for classes, and the targets are numbers"):
        make(metrics=["auc"]).build()


def test_a_name_may_have_another_name_beside_functions():
    mine = lambda outputs, targets: (outputs.argmax(1) == targets).float()
    metrics = {"sensitivity": "recall", "mine": mine}
    row, z, y = run(federation(two_classes, 2), metrics=metrics)
    right = (z.argmax(1) == y)[y == 1].double().mean()
    assert row["test_sensitivity"] == pytest.approx(float(right), abs=1e-6)


# --------------------------------------------------------------------------- by file and by line
QUICK = ["rounds=2", "partition.clients=5", "cohort=2", "device=cpu"]


def test_names_on_the_line_and_in_a_file_are_one_run(fedloom, tmp_path):
    fedloom("run", "digits", "metrics=auc,f1", *QUICK, "--out", "line")
    config = tomllib.loads((tmp_path / "line" / "config.toml").read_text())
    assert config["metrics"] == ["auc", "f1"]
    fedloom("run", "line/config.toml", "--out", "file")
    models = [(tmp_path / f / "model.safetensors").read_bytes() for f in ("line", "file")]
    assert models[0] == models[1]
    assert "auc" in fedloom("compare", "line").output
    fedloom("run", "--resume", "line", "rounds=3")
    said = fedloom("run", "--resume", "line", "metrics=f1", code=2).output
    assert "metrics cannot change when a run goes on" in said
    said = fedloom("run", "digits", "metrics=aucc", *QUICK, code=2).output
    assert "command line: metrics: neither fedloom nor torchmetrics has a metric 'aucc'" in said


def test_a_configuration_without_the_key_is_as_it_was():
    values = resolve("digits").values
    assert "metrics" not in values and resolve("digits", ["metrics=none"]).values == values


def test_without_torchmetrics_its_names_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    assert resolve("digits", ["metrics=accuracy"]).values["metrics"] == ["accuracy"]
    with pytest.raises(ConfigError, match=r"torchmetrics.*pip install .*\[metrics\]"):
        resolve("digits", ["metrics=auc"])


def several_marks(x, draw):
    return (x + 0.5 * draw.normal(size=x.shape) > 0).astype("float32")


def test_objects_of_torchmetrics_are_taken_as_they_are_in_a_list():
    """Of several labels, with a threshold; values are the object's own on the whole test set."""
    classification = torchmetrics.classification
    objects = [
        classification.MultilabelAUROC(num_labels=3),
        classification.MultilabelF1Score(num_labels=3, threshold=0.3),
    ]
    loss = nn.functional.binary_cross_entropy_with_logits
    of = federation(several_marks, 3)
    found = of(metrics=objects, objective=loss).run()
    names = ["multilabel_auroc", "multilabel_f1_score"]
    assert [k for k in found.history[-1] if k.startswith("test_multilabel") and "ema" not in k] == [
        f"test_{name}" for name in names
    ]
    data = of(metrics=objects, objective=loss).data
    with torch.no_grad():
        outputs = found.model(data.test_inputs)
    for name, metric in zip(names, objects, strict=True):
        value = float(metric(outputs.sigmoid(), data.test_targets.long()))
        assert found.history[-1][f"test_{name}"] == pytest.approx(value, abs=1e-6)


def test_a_calibration_error_is_an_object_too():
    metric = torchmetrics.classification.MulticlassCalibrationError(num_classes=3)
    found = federation(three_classes, 3)(metrics=[metric, "accuracy"]).run()
    assert 0 < found.history[-1]["test_multiclass_calibration_error"] < 1
    assert found.summary["metric"]["name"] == "multiclass_calibration_error"
    assert found.summary["metric"]["higher_is_better"] is False
    with pytest.raises(ConfigError, match="have one name"):
        federation(three_classes, 3)(metrics=[metric, metric]).build()
