"""Metrics that could be silently wrong: shapes that broadcast, values of a set, directions."""

from __future__ import annotations

import json
import logging
import math
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedloom import Evaluation, Experiment, FedAvg, Local
from fedloom.data import from_clients
from fedloom.errors import ConfigError, DataError
from fedloom.objectives import SquaredError
from fedloom.report import comparison, group_runs, load_run
from fedloom.report.curve_data import best
from fedloom.submodels import HeteroFL
from tiny import small

ENGINES = ["serial", "vectorised:2"]
UPWARDS = {"higher_is_better": True}


def error_rate(outputs, targets):
    return (outputs.argmax(1) != targets).float()


def line(n: int, seed: int):
    """Inputs (n, 3) and one number each, (n,): a model with one output gives (n, 1)."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(n, 3)).astype("float32")
    return x, (x @ np.array([1.0, -2.0, 0.5])).astype("float32")


def regression(**changes):
    settings = {
        "algorithm": FedAvg(),
        "model": lambda: nn.Linear(3, 1),
        "data": from_clients([line(n, n) for n in (4, 6, 9)], test=line(30, 99)),
        "rounds": 2,
        "local": Local(epochs=1, batch=3, lr=0.05),
        "device": "cpu",
    }
    return Experiment(**(settings | changes))


# ---------------------------------------------------------------------------------------- shapes
@pytest.mark.parametrize(
    "f",
    [
        lambda o, t: (o - t).abs().mean(),
        lambda o, t: (torch.sigmoid(o) - t.clamp(0, 1)).square(),
        lambda o, t: ((o > 0) == (t > 0)).float().mean(),
        lambda o, t: F.l1_loss(o, t),
        nn.MSELoss(),
    ],
)
@pytest.mark.parametrize("part", ["metrics", "objective"])
def test_outputs_that_meet_every_target_are_refused(f, part):
    says = r"(metric 'f'|the loss).*outputs of shape \[n, 1\].*targets of shape \[n\].*\[n, n\]"
    with pytest.raises(DataError, match=says):
        regression(**{part: {"f": f} if part == "metrics" else f}, higher_is_better=False).build()


@pytest.mark.parametrize(
    "f",
    [
        lambda o, t: (o.squeeze(1) - t).abs().mean(),
        lambda o, t: (o - t[:, None]).abs(),
        lambda o, t: (o.view_as(t) - t).abs(),
        lambda o, t: ((t[:, None] > t) & (o > o.T)).float().mean(),
        lambda o, t: torch.cdist(o, t[:, None]).mean(),
        lambda o, t: (o[:, 0] - t).abs(),
    ],
)
def test_those_who_look_after_the_shapes_are_let_through(f):
    row = regression(metrics={"f": f}, higher_is_better=False).run().history[-1]
    assert row["test_f"] >= 0
    regression(objective=lambda o, t: (o.squeeze(1) - t).square()).build()


# ------------------------------------------------------------------------------ of the whole set
class Auc:
    """The area under the ROC curve, by ranks; in the protocol of torchmetrics."""

    higher_is_better = True

    def __init__(self):
        self.scores, self.labels = [torch.tensor([9.0])], [torch.tensor([0])]  # of nobody

    def reset(self):
        self.scores, self.labels = [], []

    def update(self, preds, target):
        self.scores.append(preds[:, 1] - preds[:, 0])
        self.labels.append(target)

    def compute(self):
        z, y = torch.cat(self.scores), torch.cat(self.labels)
        return (z[y == 1][:, None] > z[y == 0]).float().mean()


def auc_function(outputs, targets):
    own = Auc()
    own.reset()
    own.update(outputs, targets)
    return own.compute()


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


@pytest.mark.parametrize("engine", ENGINES)
def test_an_object_is_measured_on_the_whole_set(engine, engine_of):
    asked = Auc()
    metrics = {"auc": asked, "accuracy": lambda o, t: (o.argmax(1) == t).float()}
    result = classified(engine=engine_of(engine), metrics=metrics).run()
    data = sorted_test()
    with torch.no_grad():
        z = result.model(data.test_inputs)
    row = result.history[-1]
    assert row["test_auc"] == pytest.approx(float(auc_function(z, data.test_targets)), abs=1e-12)
    right = (z.argmax(1) == data.test_targets).float().mean()
    assert row["test_accuracy"] == pytest.approx(float(right))
    assert list(row).index("test_auc") < list(row).index("test_accuracy")
    assert result.summary["metric"] == {"name": "auc", "higher_is_better": True, "unit": ""}
    assert result.clients == [None] * 3
    assert asked.labels[0].tolist() == [0]  # the user's own object is left alone


class LateAuc(Auc):
    """Nothing is known in the first two evaluations: NaN, and infinity."""

    def __init__(self):
        super().__init__()
        self.found = iter([math.nan, math.inf, 0.5, 0.75, 0.625, 0.5])

    def __deepcopy__(self, memo):
        return self

    def compute(self):
        return next(self.found) if len(torch.cat(self.labels)) == 1100 else 0.5


def test_what_is_not_finite_is_neither_the_best_nor_in_the_average(tmp_path):
    run = lambda rounds, auc: classified(
        rounds=rounds, metrics={"auc": auc}, evaluate=Evaluation(target=0.6)
    )
    whole = run(6, LateAuc()).run(tmp_path / "whole")
    averages = [row["test_auc_ema"] for row in whole.history]
    assert np.isnan(averages[:2]).all() and averages[2] == pytest.approx(0.5)
    assert averages[3] == pytest.approx((0.9 * 0.5 + 0.75) / 1.9)
    assert whole.summary["best"] == {"round": 4, "value": 0.75}
    assert whole.summary["last_ema"] == averages[-1] and whole.summary["rounds_to_target"] == 4
    assert best(load_run(tmp_path / "whole")) == whole.best

    auc = LateAuc()
    run(1, auc).run(tmp_path / "run")
    again = run(6, auc).resume(tmp_path / "run")
    for a, b in zip(whole.history, again.history, strict=True):
        assert repr(a | {"seconds": 0}) == repr(b | {"seconds": 0})
    for key in ("best", "last_ema", "rounds_to_target"):
        assert again.summary[key] == whole.summary[key]


def test_sub_models_are_measured_with_objects_too():
    parts = {"submodel": HeteroFL(), "capacities": [0.5, 1.0, 1.0]}
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    row = classified(model=model, **parts).run().history[-1]
    assert 0 <= row["test_auc@0.5"] <= 1 and row["test_auc@1"] == row["test_auc"]


def test_a_function_that_gives_nan_on_a_batch_is_said_once(caplog):
    with caplog.at_level(logging.WARNING, "fedloom"):
        classified(metrics={"auc": auc_function}).run()
    said = [r.getMessage() for r in caplog.records]
    assert len(said) == 1 and "round 1: metric 'auc' is nan" in said[0]
    assert "update() and compute()" in said[0]


# ------------------------------------------------------------------------------- what they give
@pytest.mark.parametrize("engine", ENGINES)
def test_booleans_and_integers_are_numbers(engine, engine_of):
    metrics = {
        "bools": lambda o, t: o.argmax(1) == t,
        "integers": lambda o, t: (o.argmax(1) == t).int()[:, None],
        "floats": lambda o, t: (o.argmax(1) == t).float(),
        "whole": lambda o, t: (o.argmax(1) == t).all(),
    }
    last = Evaluation(every=0)
    result = small(
        FedAvg(), engine=engine_of(engine), metrics=metrics, evaluate=last, **UPWARDS
    ).run()
    row = result.history[-1]
    assert 0 < row["test_bools"] == row["test_integers"] == row["test_floats"] < 1
    assert row["test_whole"] == 0


class Gives:
    """A metric of the whole set that gives this."""

    def __init__(self, value):
        self.value = value

    def update(self, outputs, targets):
        pass

    def compute(self):
        return self.value


class Weighed:
    """A metric that gives these weights."""

    def __init__(self, weight):
        self.weight = weight

    def __call__(self, outputs, targets):
        return torch.ones(len(targets))


@pytest.mark.parametrize(
    ("metric", "says"),
    [
        (lambda o, t: [1.0] * len(t), "gave a list; it must give a tensor"),
        (lambda o, t: np.ones(len(t)), "gave a ndarray; it must give a tensor"),
        (lambda o, t: torch.ones(3), r"gave shape \[3\] for a batch of 4; it must give one value"),
        (Gives(torch.ones(2)), r"compute\(\) gave shape \[2\]; it must give one number"),
        (Weighed(lambda t: [1.0] * len(t)), r"weight\(\) gave a list for a batch of 4"),
        (Weighed(lambda t: torch.ones(len(t), 2)), r"weight\(\) gave shape \[4, 2\].*one number"),
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

    result = small(FedAvg(), metrics={"many": of_many}, rounds=1, **UPWARDS).run()
    assert result.last == 1.0 and not [w for w in recwarn if "too few" in str(w.message)]


# ------------------------------------------------------------------------------------- direction
def test_an_unknown_direction_is_asked_for_where_it_is_needed():
    says = r"'error_rate' is better.*error_rate.higher_is_better = True.*Experiment"
    with pytest.raises(ConfigError, match=says):
        small(FedAvg(), metrics=error_rate, evaluate=Evaluation(target=0.1)).build()


def test_without_a_direction_there_is_no_best(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "fedloom"):
        result = small(FedAvg(), metrics=error_rate).run(tmp_path / "run")
    assert result.best is None and result.last is not None
    assert result.summary["metric"]["higher_is_better"] is None
    assert len(caplog.records) == 1 and "error_rate" in caplog.text
    run = load_run(tmp_path / "run")
    assert run.metric.higher_is_better is None
    assert comparison(group_runs([run]))
    with pytest.raises(ConfigError, match=r"'error_rate' is better.*higher_is_better"):
        comparison(group_runs([run]), 0.5)


def test_a_direction_may_be_given_or_be_the_metrics_own(tmp_path):
    result = small(FedAvg(), metrics=error_rate, higher_is_better=False).run()
    assert result.best == min(r["test_error_rate"] for r in result.history)

    class Rate:
        higher_is_better = False

        def __call__(self, outputs, targets):
            return error_rate(outputs, targets)

    again = small(FedAvg(), metrics={"error_rate": Rate()}, evaluate=Evaluation(target=0.9)).run()
    assert again.best == result.best and again.summary["rounds_to_target"] is not None


def test_old_folders_keep_what_they_said(tmp_path):
    small(FedAvg(), metrics=error_rate, higher_is_better=True).run(tmp_path / "run")
    assert load_run(tmp_path / "run").metric.higher_is_better is True
    file = tmp_path / "run" / "summary.json"
    summary = json.loads(file.read_text())
    del summary["metric"]["higher_is_better"]
    file.write_text(json.dumps(summary))
    (tmp_path / "run" / "manifest.json").unlink()
    assert load_run(tmp_path / "run").metric.higher_is_better is None


# ------------------------------------------------------------------------------------- also seen
def test_one_hot_targets_are_not_taken_for_numbers():
    def hot(n, seed):
        x, y = line(n, seed)
        return x, np.eye(3, dtype="float32")[np.digitize(y, [-1, 1])]

    data = from_clients([hot(n, n) for n in (4, 6, 9)])
    parts = {"data": data, "model": lambda: nn.Linear(3, 3)}
    with pytest.raises(DataError, match=r"every row has one 1.*argmax.*objective=SquaredError"):
        regression(**parts).build()
    regression(**parts, objective=SquaredError()).build()


def test_holding_out_most_of_the_data_is_said(caplog):
    with caplog.at_level(logging.WARNING, "fedloom"):
        small(FedAvg(), evaluate=Evaluation(validation=0.9999)).build()
    assert len(caplog.records) == 1
    assert "evaluate.validation = 0.9999 holds out 36 of 43 training samples" in caplog.text


@pytest.mark.slow
def test_a_report_of_a_metric_without_a_direction(tmp_path):
    from fedloom.cli.results import summarise
    from fedloom.report import write_report

    result = small(FedAvg(), metrics=error_rate).run(tmp_path / "run")
    assert "best" not in summarise(result)
    page = write_report(tmp_path / "run", tmp_path / "report.html").read_text()
    assert "is better" not in page
