"""Values per client: every metric, on each client's own rows, and as the metric's own mean says."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner

from fedloom import Evaluation, FedAvg, Local
from fedloom.cli.__main__ import cli
from fedloom.data import from_clients
from fedloom.report import comparison, group_runs, load_run
from fedloom.report.clients import client_cells
from fedloom.report.table_text import table_cells
from fedloom.submodels import HeteroFL
from support.folders import record
from support.scores import Auc, accuracy, ranked, right
from tiny import small

engines = pytest.mark.parametrize("engine", ["serial", "vectorised:2"])


def mean_accuracy(outputs, targets):
    return right(outputs, targets).mean()


def labelled(*labels):
    inputs = np.random.default_rng(len(labels)).normal(size=(len(labels), 5))
    return inputs.astype("float32"), np.array(labels, dtype="int64")


def with_tests(sizes=(3, 5, 8, 4)):
    """Clients with test sets of their own, of several sizes."""
    draw = np.random.default_rng(4)

    def sample(n):
        labels = draw.integers(0, 3, n)
        return (draw.normal(size=(n, 5)) + labels[:, None]).astype("float32"), labels

    return from_clients([sample(n) for n in sizes], client_tests=[sample(2 * n) for n in sizes])


def outputs_of(result, data, i):
    """The model's outputs on a client's test rows, and the labels."""
    index = data.test_clients.of(i)
    with torch.no_grad():
        return result.model(data.test_inputs[index]), data.test_targets[index]


ALL = {"auc": Auc(), "batch": mean_accuracy, "each": right}


@engines
def test_every_metric_is_measured_on_each_clients_own_rows(engine, engine_of, tmp_path):
    data = with_tests()
    result = small(FedAvg(), engine=engine_of(engine), metrics=ALL, data=data).run(tmp_path / "run")
    file = record(tmp_path / "run", "clients")
    values = file["metrics"]
    assert values == result.client_metrics and file["values"] == result.clients
    assert file["basis"] == "own test sets" and [*values] == [*ALL]
    for i in range(data.population):
        z, y = outputs_of(result, data, i)
        assert values["each"][i] == pytest.approx(accuracy(z, y)) == values["batch"][i]
        assert values["auc"][i] == pytest.approx(ranked(z[:, 1] - z[:, 0], y == 1))
    row = result.history[-1]
    for where in (row, result.summary):
        assert where["client_auc_worst"] == min(values["auc"])
        assert where["client_auc_mean"] == pytest.approx(np.mean(values["auc"]))
        assert where["client_each_spread"] == pytest.approx(np.std(values["each"]))
        assert where["client_batch_worst"] == min(values["batch"])
    assert result.per_client()[0].keys() == {"client", "examples", *ALL}
    assert result.per_client()[0]["auc"] == min(values["auc"])
    group = group_runs([load_run(tmp_path / "run")])
    heads, cells = table_cells(comparison(group))
    assert cells[0][heads.index("worst client, each")] == f"{row['client_each_worst']:.4g}"
    assert comparison(group)[0]["client_each_tenth"] == row["client_each_tenth"]


def test_one_class_gives_no_auc_and_says_so(tmp_path):
    some = [labelled(0, 1, 2), labelled(1, 0), labelled(2, 0, 1, 1)]
    tests = [labelled(1, 1, 1), labelled(0, 1, 0), labelled()]
    data = from_clients(some, client_tests=tests)
    result = small(FedAvg(), metrics=ALL, data=data, cohort=2).run(tmp_path / "run")
    file = record(tmp_path / "run", "clients")
    assert result.clients[0] is None and result.clients[1] in (0.0, 0.5, 1.0)
    assert file["why_none"]["auc"] == {"its test rows have one class": [0], "no test rows": [2]}
    assert file["why_none"]["each"] == {"no test rows": [2]}
    assert file["metrics"]["each"][0] is not None and file["metrics"]["each"][2] is None


@engines
def test_without_own_rows_a_metric_of_a_set_has_no_value_per_client(engine, engine_of, tmp_path):
    given = {"metrics": {name: ALL[name] for name in ("batch", "auc", "each")}}
    given |= {"engine": engine_of(engine), "higher_is_better": True}
    result = small(FedAvg(), **given).run(tmp_path / "run")
    assert result.last == pytest.approx(result.history[-1]["test_each"])
    assert result.clients == [None] * len(result.clients)
    file = record(tmp_path / "run", "clients")
    why = {"it needs test rows of the client's own: data.tests = matched": [*range(7)]}
    assert file["why_none"]["batch"] == file["why_none"]["auc"] == why
    assert all(v is not None for v in file["metrics"]["each"])
    parts = {f"client_each_{part}" for part in ("mean", "worst", "tenth", "spread")}
    assert {k for k in result.summary if k.startswith("client_")} == parts


@engines
def test_a_metric_that_is_a_mean_of_some_batches_is_measured_client_by_client(engine, engine_of):
    def mixed(outputs, targets):
        each = right(outputs, targets)
        return each if len(each) == 500 else each.mean()

    data = with_tests((3, 5, 8, 542))  # 1,116 examples are 500, 500 and 116
    short = {"rounds": 2, "local": Local(steps=2, batch=4, lr=0.1), "higher_is_better": True}
    result = small(
        FedAvg(), engine=engine_of(engine), metrics={"mixed": mixed}, data=data, **short
    ).run()
    for i, value in enumerate(result.clients):
        assert value == pytest.approx(accuracy(*outputs_of(result, data, i)))


def test_the_report_has_every_metric_of_clients_with_names(tmp_path):
    names = ["north", "south", "west"]
    rows = lambda n: labelled(*(np.arange(n) % 3))
    data = from_clients({n: rows(9) for n in names}, client_tests={n: rows(6) for n in names})
    metrics = {name: ALL[name] for name in ("auc", "each")}
    result = small(FedAvg(), metrics=metrics, data=data, cohort=2).run(tmp_path / "run")
    heads, lines, count = client_cells(group_runs([load_run(tmp_path / "run")]))
    assert heads == ["client", "examples", "auc", "each"] and count == 3
    for i, name in enumerate(names):
        (line,) = [line for line in lines if line[0] == name]
        assert line[2:] == [f"{result.client_metrics[k][i]:.4g}" for k in metrics]
    assert result.summary["client_each_worst_name"] in names
    shown = CliRunner().invoke(cli, ["show", str(tmp_path / "run")]).output.split("\n\n")[1]
    assert [line.split() for line in shown.splitlines()] == [heads, *lines]


def test_an_accuracy_stands_beside_that_of_the_majoritys_class(tmp_path):
    own = {"a": labelled(1, 1, 0), "b": labelled(0, 0, 2), "c": labelled(2, 2, 2)}
    tests = {"a": labelled(1, 1, 1, 0), "b": labelled(1, 1, 0, 0, 0), "c": labelled(0)}
    data = from_clients(own, client_tests=tests)
    small(FedAvg(), data=data, cohort=2).run(tmp_path / "run")
    heads, lines, _ = client_cells(group_runs([load_run(tmp_path / "run")]))
    assert heads[-2:] == ["accuracy %", "majority %"]
    assert {line[0]: line[-1] for line in lines} == {"a": "75.00 %", "b": "60.00 %", "c": "0.00 %"}


def test_sub_models_have_no_value_per_client_of_a_mean_of_batches():
    parts = {"submodel": HeteroFL(), "capacities": [0.5, 1.0, 1.0, 1.0], "data": with_tests()}
    parts |= {"evaluate": Evaluation(sizes=(0.75,)), "metrics": {"acc": mean_accuracy}}
    result = small(FedAvg(), **parts, higher_is_better=True).run()
    assert result.history[-1]["test_acc@0.5"] > 0
    assert not [k for k in result.history[-1] if k.startswith("local_")]
    assert result.summary["sizes"]["unseen"][0]["outside"] is None


class Surprise:
    """exp of the mean loss of the examples, of which those of class 1 count three times."""

    higher_is_better = False

    def __call__(self, outputs, targets):
        return F.cross_entropy(outputs, targets, reduction="none")

    def weight(self, targets):
        return 1 + 2 * (targets == 1).int()

    @staticmethod
    def final(mean):
        return math.exp(mean)


@engines
@pytest.mark.parametrize("own", [True, False], ids=["own rows", "the common test set"])
def test_values_per_client_heed_weights_and_final(engine, own, engine_of):
    parts = {"data": with_tests()} if own else {}
    experiment = small(FedAvg(), engine=engine_of(engine), metrics={"it": Surprise()}, **parts)
    result, data = experiment.run(), experiment.data
    with torch.no_grad():
        outputs, labels = result.model(data.test_inputs), data.test_targets
    each, weight = Surprise()(outputs, labels).double(), Surprise().weight(labels).double()
    for i, value in enumerate(result.clients):
        if own:
            much = torch.zeros(len(labels)).index_fill_(0, data.test_clients.of(i), 1.0)
        else:  # a test set in which each class is as frequent as at the client
            much = (data.label_counts()[i] / torch.bincount(labels, minlength=3))[labels]
        mean = (much * weight * each).sum() / (much * weight).sum()
        assert value == pytest.approx(Surprise.final(mean), rel=1e-6)
