"""Values of every metric per client, on its own rows, and as the metric's own mean says. Names of
clients live from the data to rows, files and the report; some clients never train.
"""

import json
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from torch import nn

from fedloom import Evaluation, Experiment, FedAvg, Local
from fedloom.cli.__main__ import cli
from fedloom.data import from_arrays, from_clients, iid
from fedloom.errors import CompositionError, ConfigError, DataError
from fedloom.federation.attacks import SignFlip
from fedloom.federation.availability import Availability
from fedloom.federation.choice import PowerOfChoice
from fedloom.report import comparison, group_runs, load_run, write_report
from fedloom.report.charts import partition_chart
from fedloom.report.clients import client_cells
from fedloom.report.table_text import table_cells
from fedloom.server.row import skipped
from fedloom.submodels import HeteroFL
from fedloom.submodels.private import FedPer
from support.folders import record, rows
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


def test_the_report_has_every_metric_of_clients_with_names_the_worst_first(tmp_path):
    names, metrics = ["north", "south", "west"], {name: ALL[name] for name in ("auc", "each")}
    rows = lambda n: labelled(*(np.arange(n) % 3))
    data = from_clients({n: rows(9) for n in names}, client_tests={n: rows(6) for n in names})
    result = small(FedAvg(), metrics=metrics, data=data, cohort=2).run(tmp_path / "run")
    small(FedAvg(), metrics=metrics, data=data, cohort=1, label="one").run(tmp_path / "one")
    of = lambda *runs: client_cells(group_runs([load_run(tmp_path / run) for run in runs]))
    heads, lines, count = of("run")
    assert heads == ["client", "examples", "auc", "each"] and count == 3
    each = zip(*(result.client_metrics[k] for k in metrics), strict=True)
    worst = sorted(zip(each, names, strict=True), key=lambda pair: pair[0][0])
    assert [line[0] for line in lines] == [name for _, name in worst]
    assert [line[2:] for line in lines] == [[f"{v:.4g}" for v in values] for values, _ in worst]
    assert result.summary["client_each_worst_name"] in names
    shown = CliRunner().invoke(cli, ["show", str(tmp_path / "run")]).output.split("\n\n")[1]
    assert [line.split() for line in shown.splitlines()] == [heads, *lines]
    assert of("run", "one")[0][2:] == ["FedAvg, auc", "one, auc", "FedAvg, each", "one, each"]


def test_an_accuracy_stands_beside_that_of_the_majoritys_class(tmp_path):
    own = {"a": labelled(1, 1, 0), "b": labelled(0, 0, 2), "c": labelled(2, 2, 2)}
    tests = {"a": labelled(1, 1, 1, 0), "b": labelled(1, 1, 0, 0, 0), "c": labelled(0)}
    small(FedAvg(), data=from_clients(own, client_tests=tests), cohort=2).run(tmp_path / "run")
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


# -------------------------------------------------------------------------------------------- names
NAMES = ("lyon", "bonn", "oslo")
FOUR = (*NAMES, "rome")


def clinic(seed, n):
    draw = np.random.default_rng(seed)
    inputs = draw.normal(size=(n, 3)).astype("float32")
    return inputs, (inputs.sum(1) + draw.normal(size=n) > 0).astype("int64")


def clinics(names=NAMES):
    """(training rows, test rows) by name."""
    pairs = {name: clinic(i, 10 + i) for i, name in enumerate(names)}
    return pairs, {name: clinic(9 + i, 6) for i, name in enumerate(names)}


def named(names=NAMES):
    pairs, tests = clinics(names)
    return from_clients(pairs, client_tests=tests, class_names=("home", "ward"))


def experiment(data, **more):
    parts = {"algorithm": FedAvg(), "model": lambda: nn.Linear(3, 2), "rounds": 2}
    return Experiment(data=data, **(parts | {"local": Local(lr=0.3)} | more))


def run(data, out=None, **more):
    return experiment(data, **more).run(out)


def test_names_are_in_rows_files_and_the_result(tmp_path):
    result = run(named(), tmp_path / "r", choose=PowerOfChoice(among=3), cohort=2)
    assert record(tmp_path / "r", "partition")["client_names"] == list(NAMES)
    assert record(tmp_path / "r", "clients")["names"] == list(NAMES)
    worst = NAMES[int(np.argmin(result.clients))]
    assert record(tmp_path / "r")["client_accuracy_worst_name"] == worst
    for row in result.history:
        assert row["client_names"] == [NAMES[i] for i in row["clients"]]
        assert row["client_accuracy_worst_name"] in NAMES
    table = result.per_client()
    assert table[0]["client"] == worst
    examples = {row["client"]: row["examples"] for row in table}
    assert examples == {"lyon": 10, "bonn": 11, "oslo": 12}
    scores = [row["accuracy"] for row in table]
    assert scores == sorted(scores) and set(scores) == set(result.clients)
    config = (tmp_path / "r" / "config.toml").read_text()
    assert '"home"' in config and '"lyon"' in config
    drawn = partition_chart(load_run(tmp_path / "r").partition).figure
    assert [tick.get_text() for tick in drawn.axes[1].get_xticklabels()] == list(NAMES)


def test_names_decide_no_number_and_do_not_prevent_a_resume(tmp_path):
    run(named(), tmp_path / "r")
    plain = named()
    for field in ("client_names", "class_names"):
        object.__setattr__(plain, field, ())
    again = experiment(plain, rounds=3).resume(tmp_path / "r")
    assert len(again.history) == 3 and "client_accuracy_worst_name" not in again.summary


def test_clients_that_are_left_out_are_named(caplog):
    stats = [SimpleNamespace(client=i, answered=i == 1) for i in range(3)]
    assert skipped(stats, 4, NAMES) == {"skipped": [0, 2], "skipped_names": ["lyon", "oslo"]}
    assert "round 4: left out, as not finite: the updates of clients lyon, oslo" in caplog.text
    assert skipped(stats, 4) == {"skipped": [0, 2]}


NUMBERS = (clinic(0, 8)[0], np.ones(8))  # targets that are no classes
SAID = [
    (from_clients([clinic(0, 8)]), "'yours' has no test set, so only the training loss is"),
    (from_clients([NUMBERS], test=NUMBERS), "nothing is measured per client; give client tests"),
    (from_arrays(*clinic(0, 8), iid(1), test=clinic(1, 4)), ""),
]


@pytest.mark.parametrize(("data", "says"), SAID, ids=["no test", "numbers", "measured"])
def test_what_is_not_measured_is_said_in_one_line(data, says, capsys):
    model = nn.Linear(3, 2) if data.classes else nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))
    experiment(data, model=model, cohort=1, rounds=1).run(progress=True)
    said = capsys.readouterr().err.splitlines()
    assert sum("measured" in line for line in said) == bool(says)
    assert any(says in line for line in said)


HALF = {"submodel": HeteroFL()}
HALF |= {"model": lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))}
TRACE = "client,first_round,last_round\nlyon,1,1\noslo,1,2\n"


def test_settings_name_clients_as_the_data_do(tmp_path):
    for name, text in (("t", TRACE), ("n", TRACE.replace("lyon", "0").replace("oslo", "2"))):
        (tmp_path / name).write_text(text)
    trace = lambda name: Availability(trace=str(tmp_path / name))
    for key, by_name, by_number, more in (
        ("weighting", {"bonn": 2.0, "oslo": 3.5, "lyon": 1.0}, [1.0, 2.0, 3.5], {}),
        ("cohort", [["oslo"], ["bonn", 0]], [[2], [0, 1]], {}),
        ("capacities", {"oslo": "1/2", "bonn": 1, "lyon": 1}, [1, 1, 0.5], HALF),
        ("availability", trace("t"), trace("n"), {}),
        ("attack", SignFlip(clients=["bonn"]), SignFlip(clients=[1]), {}),
    ):
        one, other = (run(named(), **{key: of}, **more) for of in (by_name, by_number))
        assert torch.equal(one.state.x, other.state.x), key


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("weighting", {"lyon": 1.0, "bon": 2.0, "oslo": 1.0}, "'bon'.*did you mean 'bonn'"),
        ("weighting", {"lyon": 1.0, "oslo": 1.0}, "names 2 of 3 clients, and not 'bonn'"),
        ("weighting", {"lyon": 1.0, 0: 1.0, "oslo": 1.0}, "names a client twice"),
        ("weighting", {"lyon": 1.0, "bonn": 0.0, "oslo": 1.0}, "numbers above 0, got 0"),
        ("cohort", [["lyon"], ["berlin"]], "cohort of round 2 names client 'berlin'"),
        ("cohort", [["lyon", 0]], "names a client twice"),
        ("attack", SignFlip(clients=["berlin"]), "attack.clients names client 'berlin'"),
        ("attack", SignFlip(clients=[]), "attack.clients names nobody"),
        ("attack", SignFlip(clients=[7]), "attack.clients names client 7"),
        ("evaluate", Evaluation(unseen=["osl"]), "names client 'osl', .* did you mean 'oslo'"),
        ("evaluate", Evaluation(unseen=[7]), "evaluate.unseen names client 7"),
        ("evaluate", Evaluation(unseen=list(NAMES)), "sets all 3 clients apart"),
        ("evaluate", Evaluation(unseen=["oslo", 2]), "names a client twice"),
        ("private", FedPer(), r"evaluate\.unseen: a client that never trains"),
        ("", [["lyon"]], "these data have no names of clients; give numbers"),
    ],
)
def test_clients_that_cannot_be_named_so_are_refused(key, value, said):
    apart = {"model": HALF["model"], "evaluate": Evaluation(unseen=[0])}
    unnamed = from_clients([clinic(i, 10 + i) for i in range(3)], test=clinic(9, 6))
    more = apart if key == "private" else {}
    with pytest.raises((ConfigError, CompositionError), match=said):
        run(named() if key else unnamed, **{key or "cohort": value}, **more)


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_a_client_has_a_factor_of_the_rate(engine):
    def end(rate, factors=(), who="bonn"):
        local = Local(lr=rate, lr_by_client=factors)
        return run(named(), local=local, cohort=[[who]], rounds=1, engine=engine).state.x

    half = {"bonn": 0.5}
    assert torch.equal(end(0.2, half), end(0.1)) and torch.equal(end(0.2, [3, 0.5, 1]), end(0.1))
    assert torch.equal(end(0.2, half, "oslo"), end(0.2, (), "oslo"))  # the others' factor is 1
    both = {"cohort": 3, "local": Local(lr=0.2, lr_by_client=half)}
    one, many = (run(named(), engine=e, **both).state.x for e in ("serial", engine))
    torch.testing.assert_close(one, many, rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------------- on the command line
@pytest.fixture
def hospitals(fedloom):
    """The command line beside a table for each name, and settings that read them."""
    for site in NAMES:
        lines = [",".join(map(str, (*x, y))) for x, y in zip(*clinic(len(site), 12), strict=True)]
        with open(f"{site}.csv", "w") as file:
            file.write("\n".join(["a,b,c,y", *lines]) + "\n")
    table = {"name": "table", "path": "*.csv", "target": "y", "test_share": 0.3}
    table["partition"] = "natural"
    head = 'algorithm = "fedavg"\nrounds = 2\n'
    head += 'model = { name = "logistic", inputs = 3, classes = 2 }\n[data]\n'
    with open("t.toml", "w") as file:
        file.write(head + "\n".join(f"{k} = {json.dumps(v)}" for k, v in table.items()))
    return fedloom


def test_a_run_by_name_resumes_and_a_file_may_name_clients_too(hospitals):
    hospitals("run", "t.toml", "weighting={lyon=1, bonn=2, oslo=0.5}", "--out", "a", "--quiet")
    hospitals("run", "--resume", "a", "rounds=3", "--quiet")
    hospitals("run", "t.toml", "rounds=3", "weighting=[2, 1, 0.5]", "--out", "b", "--quiet")
    one, other = (rows(run)[-1]["test_loss"] for run in "ab")
    assert one == other  # bonn is the first of names
    begin = ("run", "t.toml", "rounds=1")
    hospitals(*begin, "attack=sign_flip", 'attack.clients=["oslo"]', "--out", "c")
    said = hospitals(*begin, 'cohort=[["oslo"]]', "--out", "d").output
    assert rows("d")[0]["cohort"] == 1
    worst = record("d")["client_accuracy_worst_name"]
    assert re.search(rf"^  worst client +{worst}, ", said, re.MULTILINE)
    half = ["model=mlp", "model.inputs=3", "model.hidden=[4]", "submodel=heterofl"]
    levels = "submodel.capacities={lyon='1/2', bonn=1, oslo=1}"
    hospitals(*begin, *half, levels, "--out", "e")
    assert record("e", "clients")["submodel"]["capacities"] == [1.0, 0.5, 1.0]
    said = hospitals(*begin, *half, levels.replace("oslo", "rome"), "--out", "f", code=2).output
    assert "capacities names client 'rome'" in said


def test_factors_of_rates_on_the_command_line(fedloom, tmp_path):
    lines = ["x,site,y"] + [f"{k % 7},{NAMES[k % 3]},{k % 2}" for k in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    data = "path=t.csv target=y client=site test_share=0.3 clients=none partition=natural"
    words = ["run", "rounds=1", "cohort=1.0", "algorithm=fedavg", "data=table"]
    words += ["model=logistic", "model.inputs=1", "model.classes=2"]
    words += [f"data.{word}" for word in data.split()]
    fedloom(*words, "local.lr_by_client={lyon=0.5}", "--out", "b", "--quiet")
    for word, said in (
        ("local.lr_by_client={rome=0.5}", "local.lr_by_client names client 'rome'"),
        ("local.lr_by_client=[1, 2]", "local.lr_by_client has 2 numbers for 3 clients"),
        ("local.lr_by_client={lyon=0}", "local.lr_by_client must be a list of one per client"),
    ):
        output = fedloom(*words, word, "--out", "c", code=2).output
        assert said in output and output.count("\n") == 1


# ------------------------------------------------------------------------ clients that never train
def scores(model, pair):
    inputs, targets = map(torch.as_tensor, pair)
    outputs = model(inputs).detach()
    return accuracy(outputs, targets), float(nn.functional.cross_entropy(outputs, targets))


def merged(*pairs):
    return [np.concatenate(parts) for parts in zip(*pairs, strict=True)]


def by_client(result):
    return {row["client"]: row for row in result.per_client()}


def test_a_client_set_apart_is_measured_on_all_its_rows_and_trains_nobody(tmp_path):
    pairs, own = clinics(FOUR)
    result = run(named(FOUR), tmp_path / "a", evaluate=Evaluation(unseen=["oslo", "lyon"]))
    left = [{name: part[name] for name in ("bonn", "rome")} for part in (pairs, own)]
    without = run(from_clients(left[0], client_tests=left[1]))
    assert torch.equal(result.state.x, without.state.x), "as if the others did not exist"
    last, table = result.history[-1], by_client(result)
    assert last["test_accuracy"] == without.history[-1]["test_accuracy"]
    both = {name: merged(pairs[name], own[name]) for name in ("lyon", "oslo")}
    for name, rows_of in both.items():
        assert table[name]["accuracy"] == pytest.approx(scores(result.model, rows_of)[0])
        assert table[name]["unseen"] and table[name]["examples"] == 0
    assert "unseen" not in table["bonn"]
    right, loss = scores(result.model, merged(*both.values()))
    assert last["unseen_accuracy"] == pytest.approx(right)
    assert last["unseen_loss"] == pytest.approx(loss, rel=1e-5)
    kept = record(tmp_path / "a", "clients")["unseen"]
    assert kept["names"] == ["oslo", "lyon"] and kept["rows"] == [18, 16]
    assert kept["metrics"]["accuracy"] == [table[name]["accuracy"] for name in ("oslo", "lyon")]
    page = write_report(tmp_path / "a", tmp_path / "r.html").read_text()
    assert "Every client, the worst first" in page
    assert "never trained" in page and ">oslo<" in page


def test_clients_with_test_rows_alone_are_unseen():
    pairs, own = clinics(FOUR)
    pairs["oslo"] = ([], [])
    result = run(from_clients(pairs, client_tests=own))
    value = by_client(result)["oslo"]["accuracy"]
    assert value == pytest.approx(scores(result.model, own["oslo"])[0])
    assert len(result.examples) == 3 and result.history[-1]["unseen_accuracy"] == value
    with pytest.raises(DataError, match="client oslo has no samples, neither"):
        from_clients(pairs, client_tests=own | {"oslo": ([], [])})


def test_clients_without_names_keep_the_numbers_that_they_had_and_a_share_is_drawn():
    pairs = [clinic(i, 10 + i) for i in range(4)]
    data = from_clients(pairs, test=clinic(20, 8))
    examples = lambda result: {name: row["examples"] for name, row in by_client(result).items()}
    result = run(data, evaluate=Evaluation(unseen=[1]))
    assert examples(result) == {"0": 10, "1": 0, "2": 12, "3": 13}
    alone = from_clients([pairs[0], ([], []), pairs[2]], client_tests=pairs[:3])
    assert examples(run(alone)) == {"0": 10, "1": 0, "2": 12}
    half = {"evaluate": Evaluation(unseen=0.5)}
    one, again, other = ([*by_client(run(data, seed=s, **half))] for s in (0, 0, 3))
    assert one == again and len(one) == len(other) == 4


def test_unseen_clients_on_the_command_line(fedloom):
    words = ["run", "heart", "rounds=2", "--quiet"]
    fedloom(*words, 'data.unseen=["va"]', "--out", "a")
    assert rows("a")[-1]["unseen_accuracy"] > 0.3
    assert "unseen" in fedloom("compare", "a", "--wide").output
    fedloom("run", "--resume", "a", "rounds=3", "--quiet")
    said = fedloom(*words, 'data.unseen=["vaa"]', "--out", "b", code=2).output
    assert "evaluate.unseen names client 'vaa'" in said and "va" in said
