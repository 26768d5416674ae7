"""Probabilities of a binary outcome: the Brier score, a threshold, the reliability curve."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import brier_score_loss, f1_score
from torch import nn

from fedloom import Evaluation, FedAvg
from fedloom.data import from_clients
from fedloom.errors import ConfigError, DataError
from fedloom.evaluation.metrics import brier, chances
from fedloom.evaluation.threshold import Threshold
from fedloom.report import group_runs, load_run
from fedloom.report.charts import reliability_chart
from fedloom.report.style import styles
from tiny import small

METRICS = ["accuracy", "f1", "balanced_accuracy", "auc", "brier"]


def two_classes(sizes=(60, 90, 40)):
    draw = np.random.default_rng(7)

    def sample(n):
        labels = (draw.random(n) < 0.3).astype(int)
        return (draw.normal(size=(n, 5)) + labels[:, None]).astype("float32"), labels

    tests = {f"site {i}": sample(n) for i, n in enumerate((70, 60, 12))}
    return from_clients({f"site {i}": sample(n) for i, n in enumerate(sizes)}, client_tests=tests)


def run(evaluate, out=None, **changes):
    net = lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    given = {
        "model": net,
        "data": two_classes(),
        "metrics": METRICS,
        "evaluate": evaluate,
        "cohort": 3,
    }
    return small(FedAvg(), **(given | changes)).run(out)


def probabilities(result, data):
    with torch.no_grad():
        return result.model(data.test_inputs).softmax(1)[:, 1].double(), data.test_targets


def test_the_brier_score_is_that_of_scikit_learn():
    draw = torch.Generator().manual_seed(0)
    out, targets = torch.randn(50, 2, generator=draw), torch.randint(0, 2, (50,), generator=draw)
    for outputs in (out, (out[:, 1] - out[:, 0])[:, None]):  # one output is a logit
        wanted = brier_score_loss(targets, out.softmax(1)[:, 1])
        assert float(brier(outputs, targets).mean()) == pytest.approx(wanted, rel=1e-6)
        assert torch.allclose(chances(outputs, targets), out.softmax(1))
    out, targets = torch.randn(50, 3, generator=draw), torch.randint(0, 3, (50,), generator=draw)
    each = (out.softmax(1) - torch.eye(3)[targets]).square().sum(1)
    assert torch.allclose(brier(out, targets), each)


@pytest.mark.parametrize("rule", ["youden", "sensitivity 0.8", "sensitivity 0.99"])
def test_a_chosen_threshold_is_the_best_of_all(rule):
    draw = np.random.default_rng(3)
    likely = draw.random(80).round(1)  # with ties
    second = draw.random(80) < likely
    threshold = Threshold(rule)
    threshold.choose(torch.tensor(likely), torch.tensor(second))

    def rates(t):
        above = likely > t
        return above[second].mean(), (~above[~second]).mean()

    tried = [rates(t) for t in np.linspace(0, 1, 1001)]
    sensitivity, specificity = rates(threshold.value)
    if rule == "youden":
        assert sensitivity + specificity == pytest.approx(max(map(sum, tried)))
    else:
        least = float(rule.split()[1])
        assert sensitivity >= least
        assert specificity == max(spec for sens, spec in tried if sens >= least)


def test_a_threshold_decides_for_all_metrics_of_classes(tmp_path):
    data = two_classes()
    usual, result = run(Evaluation()), run(Evaluation(threshold=0.3))
    likely, targets = probabilities(result, data)
    found = (likely > 0.3).long()
    row = result.history[-1]
    assert row["test_accuracy"] == pytest.approx(float((found == targets).double().mean()))
    assert row["test_f1"] == pytest.approx(f1_score(targets, found))
    recalls = [float((found == c)[targets == c].double().mean()) for c in (0, 1)]
    assert row["test_balanced_accuracy"] == pytest.approx(np.mean(recalls))
    for name in ("test_auc", "test_brier"):  # of probabilities
        assert row[name] == usual.history[-1][name]
    assert row["test_accuracy"] != usual.history[-1]["test_accuracy"]
    assert result.clients[0] == pytest.approx(float((found == targets)[:70].double().mean()))


@pytest.mark.parametrize("engine", ["serial", pytest.param("workers:2", marks=pytest.mark.slow)])
def test_a_threshold_is_chosen_on_the_validation_split(engine, engine_of, tmp_path):
    how = Evaluation(threshold="youden", validation=0.3)
    metrics = ["accuracy", "brier"]
    result = run(how, tmp_path / "run", engine=engine_of(engine), metrics=metrics)
    data = two_classes().with_validation(0.3, 11)
    with torch.no_grad():
        likely = result.model(data.inputs[data.validation]).softmax(1)[:, 1]
    wanted = Threshold("youden")
    wanted.choose(likely, data.targets[data.validation] == 1)
    row = result.history[-1]
    assert row["threshold"] == pytest.approx(wanted.value) != 0.5
    likely, targets = probabilities(result, data)
    right = (likely > row["threshold"]).long() == targets
    assert row["test_accuracy"] == pytest.approx(float(right.double().mean()))
    assert result.clients[1] == pytest.approx(float(right[70:130].double().mean()))


@pytest.mark.parametrize(
    ("rule", "changes", "said"),
    [
        (1.0, {}, "must be a probability above 0 and below 1, youden, or 'sensitivity 0.9'"),
        ("best", {}, "must be a probability above 0 and below 1, youden, or"),
        (
            "youden",
            {},
            "is chosen on the validation split, and there is none; give evaluate.valida",
        ),
        (0.4, {"data": None}, "is for two classes, and the targets are 3 classes"),
    ],
)
def test_a_threshold_that_nothing_is_decided_by_is_refused(rule, changes, said):
    if changes:
        x, y = np.zeros((6, 5), "float32"), np.arange(6) % 3
        model = lambda: nn.Linear(5, 3)
        changes = {"data": from_clients([(x, y)] * 3), "metrics": None, "model": model}
    with pytest.raises(ConfigError) as found:
        run(Evaluation(threshold=rule), **changes)
    assert said in str(found.value)
    with pytest.raises(DataError, match="the validation split has one class"):
        Threshold("youden").choose(torch.rand(4), torch.ones(4))


def test_the_reliability_curve_is_of_all_and_of_each_site(tmp_path):
    result, data = run(Evaluation(), tmp_path / "run"), two_classes()
    likely, targets = (v.numpy() for v in probabilities(result, data))
    told = json.loads((tmp_path / "run" / "clients.json").read_text())["reliability"]
    for bins, rows in (
        (told["bins"], slice(None)),
        *((told["clients"][i], data.test_clients.of(i)) for i in range(3)),
    ):
        p, y = likely[rows], targets[rows]
        place = np.minimum((p * 10).astype(int), 9)
        wanted = [np.bincount(place, v, 10) for v in (np.ones_like(p), p, y)]
        np.testing.assert_allclose(bins, wanted, atol=1e-5)
    groups = group_runs([load_run(tmp_path / "run")])
    picture = reliability_chart(groups, styles(groups))
    assert picture.title.endswith("too few rows to be drawn (below 50): site 2 (12)")
    counts = ", ".join(f"{n:.0f}" for n in told["bins"][0])
    assert f"Rows per bin: FedAvg: {counts};" in picture.alt
    assert len(picture.figure.axes[0].lines) == 1 + 2 + 1  # the diagonal, sites, all of them
    assert Path(tmp_path / "run").is_dir()
