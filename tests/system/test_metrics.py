"""Metrics that could be silently wrong: shapes that broadcast, values of a set, directions, and
the probabilities of a binary outcome.
"""

import json
import logging
import math
import re
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import brier_score_loss, f1_score
from torch import nn

from fedloom import Evaluation, Experiment, FedAvg, Local
from fedloom.data import from_clients
from fedloom.errors import ConfigError, DataError
from fedloom.evaluation.metrics import brier, chances
from fedloom.evaluation.threshold import Threshold
from fedloom.objectives import SquaredError
from fedloom.report import comparison, group_runs, load_run
from fedloom.report.charts import reliability_chart
from fedloom.report.curve_data import best
from support.folders import record
from support.scores import Auc, accuracy, ranked, right
from tiny import small, timeless


def error_rate(outputs, targets):
    return 1 - right(outputs, targets)


def outputs_of(result, data):
    with torch.no_grad():
        return result.model(data.test_inputs), data.test_targets


# ---------------------------------------------------------------------------------------- shapes
def line(n, seed):
    """Inputs (n, 3) and one number each, (n,): a model with one output gives (n, 1)."""
    x = np.random.default_rng(seed).normal(size=(n, 3)).astype("float32")
    return x, (x @ np.array([1.0, -2.0, 0.5])).astype("float32")


def regression(**changes):
    settings = {
        "model": lambda: nn.Linear(3, 1),
        "data": from_clients([line(n, n) for n in (4, 6, 9)], test=line(30, 99)),
        "rounds": 2,
        "local": Local(epochs=1, batch=3, lr=0.05),
    }
    return Experiment(algorithm=FedAvg(), device="cpu", **(settings | changes))


BROADCAST = {
    "a mean": lambda o, t: (o - t).abs().mean(),
    "squares": lambda o, t: (torch.sigmoid(o) - t.clamp(0, 1)).square(),
    "signs": lambda o, t: ((o > 0) == (t > 0)).float().mean(),
    "torch's function": lambda o, t: F.l1_loss(o, t),
    "torch's module": nn.MSELoss(),
}
FITTING = {
    "squeezed": lambda o, t: (o.squeeze(1) - t).abs().mean(),
    "a column": lambda o, t: (o - t[:, None]).abs(),
    "viewed": lambda o, t: (o.view_as(t) - t).abs(),
    "pairs on purpose": lambda o, t: ((t[:, None] > t) & (o > o.T)).float().mean(),
    "distances": lambda o, t: torch.cdist(o, t[:, None]).mean(),
    "the first": lambda o, t: (o[:, 0] - t).abs(),
}


@pytest.mark.parametrize("name", BROADCAST)
def test_outputs_that_meet_every_target_are_refused(name):
    says = r".*outputs of shape \[n, 1\].*targets of shape \[n\].*\[n, n\]"
    with pytest.raises(DataError, match="metric 'f'" + says):
        regression(metrics={"f": BROADCAST[name]}, higher_is_better=False).build()
    with pytest.raises(DataError, match="the loss" + says):
        regression(objective=BROADCAST[name]).build()


@pytest.mark.parametrize("name", FITTING)
def test_those_who_look_after_the_shapes_are_let_through(name):
    run = regression(metrics={"f": FITTING[name]}, higher_is_better=False)
    assert run.run().history[-1]["test_f"] >= 0
    regression(objective=lambda o, t: (o.squeeze(1) - t).square()).build()


def test_one_hot_targets_are_not_taken_for_numbers():
    hot = lambda x, y: (x, np.eye(3, dtype="float32")[np.digitize(y, [-1, 1])])
    data = from_clients([hot(*line(n, n)) for n in (4, 6, 9)])
    with pytest.raises(DataError, match=r"every row has one 1.*argmax.*objective=SquaredError"):
        regression(data=data, model=lambda: nn.Linear(3, 3)).build()
    regression(data=data, model=lambda: nn.Linear(3, 3), objective=SquaredError()).build()


# ------------------------------------------------------------------------------ of the whole set
def sorted_test():
    """1,100 test examples sorted by class: the first and the last batch of 500 have one class."""
    draw = np.random.default_rng(2)

    def sample(labels):
        return (labels[:, None] + draw.normal(size=(len(labels), 3))).astype("float32"), labels

    pairs = [sample(draw.integers(0, 2, n)) for n in (10, 14, 20)]
    return from_clients(pairs, test=sample(np.arange(1100) // 550))


def classified(**changes):
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.copy_(torch.arange(6.0).view(2, 3) / 6)
        model.bias.zero_()
    parts = {"data": sorted_test(), "model": model, "metrics": {"auc": Auc()}, "rounds": 3}
    return small(FedAvg(), **(parts | {"cohort": 2} | changes))


@pytest.mark.parametrize("engine", ["serial", "vectorised:2"])
def test_an_object_is_measured_on_the_whole_set(engine, engine_of):
    own = Auc()
    result = classified(engine=engine_of(engine), metrics={"auc": own, "accuracy": right}).run()
    z, y = outputs_of(result, sorted_test())
    row = result.history[-1]
    assert row["test_auc"] == pytest.approx(ranked(z[:, 1] - z[:, 0], y == 1), abs=1e-12)
    assert row["test_accuracy"] == pytest.approx(accuracy(z, y))
    assert list(row).index("test_auc") < list(row).index("test_accuracy")
    assert result.summary["metric"] == {"name": "auc", "higher_is_better": True, "unit": ""}
    assert result.clients == [None] * 3
    assert own.seen[0][0].tolist() == [9], "the user's own object is left alone"


class LateAuc(Auc):
    """Nothing is known in the first two evaluations: NaN, and infinity."""

    def __init__(self):
        super().__init__()
        self.values = iter([math.nan, math.inf, 0.5, 0.75, 0.625, 0.5])

    def __deepcopy__(self, memo):
        return self

    def compute(self):
        return next(self.values) if sum(len(y) for _, y in self.seen) == 1100 else 0.5


def test_what_is_not_finite_is_neither_the_best_nor_in_the_average(tmp_path):
    given = {"evaluate": Evaluation(target=0.6)}
    whole = classified(rounds=6, metrics={"auc": LateAuc()}, **given).run(tmp_path / "whole")
    averages = [row["test_auc_ema"] for row in whole.history]
    assert np.isnan(averages[:2]).all() and averages[2] == pytest.approx(0.5)
    assert averages[3] == pytest.approx((0.9 * 0.5 + 0.75) / 1.9)
    assert whole.summary["best"] == {"round": 4, "value": 0.75}
    assert whole.summary["last_ema"] == averages[-1] and whole.summary["rounds_to_target"] == 4
    assert best(load_run(tmp_path / "whole")) == whole.best
    given |= {"metrics": {"auc": LateAuc()}}
    classified(rounds=1, **given).run(tmp_path / "run")
    again = classified(rounds=6, **given).resume(tmp_path / "run")
    assert repr(timeless(again.history)) == repr(timeless(whole.history))  # NaN is not NaN
    for key in ("best", "last_ema", "rounds_to_target"):
        assert again.summary[key] == whole.summary[key]


# ------------------------------------------------------------------------------- what they give
def test_booleans_and_integers_are_numbers():
    metrics = {
        "bools": lambda o, t: o.argmax(1) == t,
        "integers": lambda o, t: (o.argmax(1) == t).int()[:, None],
        "floats": right,
        "whole": lambda o, t: (o.argmax(1) == t).all(),
    }
    run = small(FedAvg(), metrics=metrics, evaluate=Evaluation(every=0), higher_is_better=True)
    row = run.run().history[-1]
    assert 0 < row["test_bools"] == row["test_integers"] == row["test_floats"] < 1
    assert row["test_whole"] == 0


def of_a_set(value):
    return SimpleNamespace(update=lambda outputs, targets: None, compute=lambda: value)


def weighed(weight):
    metric = lambda outputs, targets: torch.ones(len(targets))
    metric.weight = weight
    return metric


@pytest.mark.parametrize(
    ("metric", "says"),
    [
        (lambda o, t: [1.0] * len(t), "gave a list; it must give a tensor"),
        (lambda o, t: np.ones(len(t)), "gave a ndarray; it must give a tensor"),
        (lambda o, t: torch.ones(3), r"gave shape \[3\] for a batch of 4; it must give one value"),
        (of_a_set(torch.ones(2)), r"compute\(\) gave shape \[2\]; it must give one number"),
        (weighed(lambda t: [1.0] * len(t)), r"weight\(\) gave a list for a batch of 4"),
        (weighed(lambda t: torch.ones(len(t), 2)), r"weight\(\) gave shape \[4, 2\].*one number"),
    ],
)
def test_what_a_metric_may_not_give_is_refused_before_the_run(metric, says):
    with pytest.raises(DataError, match="metric 'odd'.*" + says):
        small(FedAvg(), metrics={"good": error_rate, "odd": metric}, higher_is_better=False).build()


def test_a_metric_that_needs_more_examples_is_not_refused_before_the_run(recwarn):
    def of_many(outputs, targets):
        if len(targets) < 10:
            warnings.warn("too few", stacklevel=1)
            raise ValueError("too few")
        return torch.ones(len(targets))

    result = small(FedAvg(), metrics={"many": of_many}, rounds=1, higher_is_better=True).run()
    assert result.last == 1.0 and not [w for w in recwarn if "too few" in str(w.message)]


def test_a_metric_that_is_nan_on_a_batch_is_said_once(caplog):
    auc = lambda outputs, targets: torch.tensor(ranked(outputs[:, 1], targets == 1))
    with caplog.at_level(logging.WARNING, "fedloom"):
        classified(metrics={"auc": auc}).run()
    (said,) = caplog.messages
    assert re.search(r"round 1: metric 'auc' is nan.*update\(\) and compute\(\)", said)


# ------------------------------------------------------------------------------------- direction
def test_without_a_direction_there_is_no_best_and_no_target(tmp_path, caplog):
    says = r"'error_rate' is better.*error_rate.higher_is_better = True.*Experiment"
    with pytest.raises(ConfigError, match=says):
        small(FedAvg(), metrics=error_rate, evaluate=Evaluation(target=0.1)).build()
    with caplog.at_level(logging.WARNING, "fedloom"):
        result = small(FedAvg(), metrics=error_rate).run(tmp_path / "run")
    assert result.best is None and result.last is not None
    assert len(caplog.records) == 1 and "error_rate" in caplog.text
    run = load_run(tmp_path / "run")
    assert run.metric.higher_is_better is None is result.summary["metric"]["higher_is_better"]
    assert comparison(group_runs([run]))
    with pytest.raises(ConfigError, match=r"'error_rate' is better.*higher_is_better"):
        comparison(group_runs([run]), 0.5)


def test_a_direction_may_be_given_or_be_the_metrics_own(tmp_path):
    result = small(FedAvg(), metrics=error_rate, higher_is_better=False).run()
    assert result.best == min(r["test_error_rate"] for r in result.history)
    own = lambda outputs, targets: error_rate(outputs, targets)
    own.higher_is_better = False
    given = {"metrics": {"error_rate": own}, "evaluate": Evaluation(target=0.9)}
    again = small(FedAvg(), **given).run(tmp_path / "run")
    assert again.best == result.best and again.summary["rounds_to_target"] is not None
    assert load_run(tmp_path / "run").metric.higher_is_better is False
    summary = record(tmp_path / "run")
    del summary["metric"]["higher_is_better"]  # as in older folders
    (tmp_path / "run" / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "run" / "manifest.json").unlink()
    assert load_run(tmp_path / "run").metric.higher_is_better is None


# ------------------------------------------------------------------------------ a binary outcome
def two_classes():
    draw = np.random.default_rng(7)

    def sample(n):
        labels = (draw.random(n) < 0.3).astype(int)
        return (draw.normal(size=(n, 5)) + labels[:, None]).astype("float32"), labels

    tests = {f"site {i}": sample(n) for i, n in enumerate((70, 60, 12))}
    sizes = enumerate((60, 90, 40))
    return from_clients({f"site {i}": sample(n) for i, n in sizes}, client_tests=tests)


def binary(evaluate, out=None, **changes):
    net = lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    metrics = ["accuracy", "f1", "balanced_accuracy", "auc", "brier"]
    given = {"model": net, "data": two_classes(), "metrics": metrics, "cohort": 3}
    return small(FedAvg(), evaluate=evaluate, **(given | changes)).run(out)


def probabilities(result, data):
    z, y = outputs_of(result, data)
    return z.softmax(1)[:, 1].double(), y


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


def test_a_threshold_decides_for_all_metrics_of_classes():
    usual, result = binary(Evaluation()), binary(Evaluation(threshold=0.3))
    likely, targets = probabilities(result, two_classes())
    said = (likely > 0.3).long()
    row = result.history[-1]
    assert row["test_accuracy"] == pytest.approx(float((said == targets).double().mean()))
    assert row["test_f1"] == pytest.approx(f1_score(targets, said))
    recalls = [float((said == c)[targets == c].double().mean()) for c in (0, 1)]
    assert row["test_balanced_accuracy"] == pytest.approx(np.mean(recalls))
    for name in ("test_auc", "test_brier"):  # of probabilities
        assert row[name] == usual.history[-1][name]
    assert row["test_accuracy"] != usual.history[-1]["test_accuracy"]
    assert result.clients[0] == pytest.approx(float((said == targets)[:70].double().mean()))


@pytest.mark.parametrize("engine", ["serial", pytest.param("workers:2", marks=pytest.mark.slow)])
def test_a_threshold_is_chosen_on_the_validation_split(engine, engine_of):
    how = Evaluation(threshold="youden", validation=0.3)
    result = binary(how, engine=engine_of(engine), metrics=["accuracy", "brier"])
    data = two_classes().with_validation(0.3, 11)
    with torch.no_grad():
        likely = result.model(data.inputs[data.validation]).softmax(1)[:, 1]
    wanted = Threshold("youden")
    wanted.choose(likely, data.targets[data.validation] == 1)
    row = result.history[-1]
    assert row["threshold"] == pytest.approx(wanted.value) != 0.5
    likely, targets = probabilities(result, data)
    correct = (likely > row["threshold"]).long() == targets
    assert row["test_accuracy"] == pytest.approx(float(correct.double().mean()))
    assert result.clients[1] == pytest.approx(float(correct[70:130].double().mean()))


THREE = {"data": from_clients([(np.zeros((6, 5), "float32"), np.arange(6) % 3)] * 3)}
THREE |= {"metrics": None, "model": lambda: nn.Linear(5, 3)}


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
        (0.4, THREE, "is for two classes, and the targets are 3 classes"),
    ],
)
def test_a_threshold_that_nothing_is_decided_by_is_refused(rule, changes, said):
    with pytest.raises(ConfigError, match=said):
        binary(Evaluation(threshold=rule), **changes)


def test_a_threshold_is_chosen_where_both_classes_are_there():
    with pytest.raises(DataError, match="the validation split has one class"):
        Threshold("youden").choose(torch.rand(4), torch.ones(4))


def test_the_reliability_curve_is_of_all_and_of_each_site(tmp_path):
    result, data = binary(Evaluation(), tmp_path / "run"), two_classes()
    likely, targets = (v.numpy() for v in probabilities(result, data))
    curve = record(tmp_path / "run", "clients")["reliability"]
    sites = [(curve["clients"][i], data.test_clients.of(i)) for i in range(3)]
    for bins, rows in ((curve["bins"], slice(None)), *sites):
        p, y = likely[rows], targets[rows]
        place = np.minimum((p * 10).astype(int), 9)
        wanted = [np.bincount(place, v, 10) for v in (np.ones_like(p), p, y)]
        np.testing.assert_allclose(bins, wanted, atol=1e-5)
    groups = group_runs([load_run(tmp_path / "run")])
    picture = reliability_chart(groups)
    assert picture.title.endswith("too few rows to be drawn (below 50): site 2 (12)")
    counts = ", ".join(f"{n:.0f}" for n in curve["bins"][0])
    assert f"Rows per bin: FedAvg: {counts};" in picture.alt
    assert len(picture.figure.axes[0].lines) == 1 + 2 + 1  # the diagonal, sites, all of them
