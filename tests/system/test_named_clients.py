"""Names of clients live from the data to rows, files and the report; some clients never train."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from fedloom import Evaluation, Experiment, FedAvg, Local
from fedloom.data import from_arrays, from_clients, iid
from fedloom.errors import CompositionError, ConfigError, DataError
from fedloom.federation.attacks import SignFlip
from fedloom.federation.availability import Availability
from fedloom.federation.choice import PowerOfChoice
from fedloom.report import group_runs, load_run, write_report
from fedloom.report.charts import partition_chart
from fedloom.report.clients import client_cells
from fedloom.server.row import skipped
from fedloom.submodels import HeteroFL
from fedloom.submodels.private import FedPer
from support.folders import record, rows
from support.scores import accuracy

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
    return Experiment(data=data, **{**parts, "local": Local(lr=0.3), **more})


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


@pytest.mark.slow
def test_the_report_has_a_table_of_clients_the_worst_first(tmp_path):
    runs = []
    for label, rate in (("slow", 0.01), ("fast", 0.5)):
        for seed in (0, 1):
            run(named(), tmp_path / f"{label}{seed}", label=label, local=Local(lr=rate), seed=seed)
            runs.append(load_run(tmp_path / f"{label}{seed}"))
    groups = group_runs(runs)
    heads, lines, count = client_cells(groups)
    scores = ["slow, accuracy %", "fast, accuracy %"]
    assert heads == ["client", "examples", *scores, "majority %"] and count == 3
    means = np.mean([run.clients["values"] for run in groups[0].runs], axis=0)
    assert [line[0] for line in lines] == [NAMES[i] for i in np.argsort(means, kind="stable")]
    page = write_report(tmp_path / "slow0", tmp_path / "r.html").read_text()
    assert "Every client, the worst first" in page and ">bonn</th>" in page
    drawn = partition_chart(runs[0].partition).figure
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


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (from_clients([clinic(0, 8)]), "'yours' has no test set, so only the training loss is"),
        (
            from_clients([NUMBERS], test=NUMBERS),
            "nothing is measured per client; give client tests",
        ),
        (from_arrays(*clinic(0, 8), iid(1), test=clinic(1, 4)), ""),
    ],
    ids=["no test", "numbers", "measured"],
)
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
    ],
)
def test_a_client_that_there_is_not_is_named(key, value, said):
    with pytest.raises(ConfigError, match=said):
        run(named(), **{key: value})


def test_data_without_names_say_so():
    data = from_clients([clinic(i, 10 + i) for i in range(3)], test=clinic(9, 6))
    with pytest.raises(ConfigError, match="these data have no names of clients; give numbers"):
        run(data, cohort=[["lyon"]])


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
    said = hospitals(*begin, "weighting={lyon=1}", "--out", "c", code=2).output
    assert "weighting names 1 of 3 clients, and not 'bonn'" in said
    hospitals(*begin, "attack=sign_flip", 'attack.clients=["oslo"]', "--out", "d")
    hospitals(*begin, 'cohort=[["oslo"]]', "--out", "e")
    assert rows("e")[0]["cohort"] == 1
    half = ["model=mlp", "model.inputs=3", "model.hidden=[4]", "submodel=heterofl"]
    levels = "submodel.capacities={lyon='1/2', bonn=1, oslo=1}"
    hospitals(*begin, *half, levels, "--out", "f", "--quiet")
    assert record("f", "clients")["submodel"]["capacities"] == [1.0, 0.5, 1.0]
    said = hospitals(*begin, *half, levels.replace("oslo", "rome"), "--out", "g", code=2).output
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


def test_private_layers_and_clients_that_never_train_are_refused():
    given = {"private": FedPer(), "model": HALF["model"], "evaluate": Evaluation(unseen=[0])}
    with pytest.raises(CompositionError, match=r"evaluate\.unseen: a client that never trains"):
        run(named(), **given)


def test_unseen_clients_on_the_command_line(fedloom):
    words = ["run", "heart", "rounds=2", "--quiet"]
    fedloom(*words, 'data.unseen=["va"]', "--out", "a")
    assert rows("a")[-1]["unseen_accuracy"] > 0.3
    assert "unseen" in fedloom("compare", "a", "--wide").output
    fedloom("run", "--resume", "a", "rounds=3", "--quiet")
    said = fedloom(*words, 'data.unseen=["vaa"]', "--out", "b", code=2).output
    assert "evaluate.unseen names client 'vaa'" in said and "va" in said
