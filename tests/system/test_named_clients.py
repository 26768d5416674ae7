"""Names of clients live from the data to rows, files and the report."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from fedloom import Experiment, FedAvg, Local
from fedloom.data import from_arrays, from_clients, iid
from fedloom.errors import ConfigError
from fedloom.federation.attacks import SignFlip
from fedloom.federation.availability import Availability
from fedloom.federation.choice import PowerOfChoice
from fedloom.report import group_runs, load_run, write_report
from fedloom.report.charts import partition_chart
from fedloom.report.clients import client_cells
from fedloom.server.row import skipped
from fedloom.submodels import HeteroFL

NAMES = ("lyon", "bonn", "oslo")


def clinic(seed, n):
    draw = np.random.default_rng(seed)
    inputs = draw.normal(size=(n, 3)).astype("float32")
    return inputs, (inputs.sum(1) > 0).astype("int64")


def named(**more):
    pairs = {name: clinic(i, 10 + i) for i, name in enumerate(NAMES)}
    tests = {name: clinic(9 + i, 6) for i, name in enumerate(NAMES)}
    return from_clients(pairs, client_tests=tests, class_names=("home", "ward"), **more)


def clinician():
    return nn.Linear(3, 2)


def run(data, out=None, **more):
    parts = {"algorithm": FedAvg(), "model": clinician, "rounds": 2, "local": Local(lr=0.1)}
    return Experiment(data=data, **{**parts, **more}).run(out)


def test_names_are_in_rows_files_and_the_result(tmp_path):
    result = run(named(), tmp_path / "r", choose=PowerOfChoice(among=3), cohort=2)
    files = {
        name: json.loads((tmp_path / "r" / f"{name}.json").read_text())
        for name in ("partition", "clients", "summary")
    }
    assert files["partition"]["client_names"] == list(NAMES)
    assert files["clients"]["names"] == list(NAMES)
    worst = NAMES[int(np.argmin(result.clients))]
    assert files["summary"]["client_accuracy_worst_name"] == worst
    for row in result.history:
        assert row["client_names"] == [NAMES[i] for i in row["clients"]]
        assert row["client_accuracy_worst_name"] in NAMES
    table = result.per_client()
    assert table[0]["client"] == worst
    assert {row["client"]: row["examples"] for row in table} == {
        name: 10 + i for i, name in enumerate(NAMES)
    }
    scores = [row["accuracy"] for row in table]
    assert scores == sorted(scores) and set(scores) == set(result.clients)
    config = (tmp_path / "r" / "config.toml").read_text()
    assert '"home"' in config and '"lyon"' in config


@pytest.mark.slow
def test_the_report_has_a_table_of_clients_the_worst_first(tmp_path):
    for label, rate in (("slow", 0.01), ("fast", 0.5)):
        for seed in (0, 1):
            out = tmp_path / f"{label}{seed}"
            run(named(), out, label=label, local=Local(lr=rate), seed=seed)
    groups = group_runs(load_run(tmp_path / name) for name in ("slow0", "slow1", "fast0", "fast1"))
    heads, lines, count = client_cells(groups)
    scores = ["slow, accuracy %", "fast, accuracy %"]
    assert heads == ["client", "examples", *scores, "majority %"] and count == 3
    means = np.mean([run.clients["values"] for run in groups[0].runs], axis=0)
    assert [line[0] for line in lines] == [NAMES[i] for i in np.argsort(means, kind="stable")]
    assert {line[0]: line[1] for line in lines} == {"lyon": "10", "bonn": "11", "oslo": "12"}
    page = write_report(tmp_path / "slow0", tmp_path / "r.html").read_text()
    assert "Every client, the worst first" in page and ">bonn</th>" in page
    drawn = partition_chart(load_run(tmp_path / "slow0").partition).figure
    assert [tick.get_text() for tick in drawn.axes[1].get_xticklabels()] == list(NAMES)


def test_names_decide_no_number_and_do_not_prevent_a_resume(tmp_path):
    run(named(), tmp_path / "r")
    plain = named()
    object.__setattr__(plain, "client_names", ())
    object.__setattr__(plain, "class_names", ())
    longer = {"algorithm": FedAvg(), "model": clinician, "rounds": 3, "local": Local(lr=0.1)}
    again = Experiment(data=plain, **longer).resume(tmp_path / "r")
    assert len(again.history) == 3 and "client_accuracy_worst_name" not in again.summary


def test_clients_that_are_left_out_are_named(caplog):
    stats = [SimpleNamespace(client=i, answered=i == 1) for i in range(3)]
    assert skipped(stats, 4, NAMES) == {"skipped": [0, 2], "skipped_names": ["lyon", "oslo"]}
    assert "round 4: left out, as not finite: the updates of clients lyon, oslo" in caplog.text
    assert skipped(stats, 4) == {"skipped": [0, 2]}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (from_clients([clinic(0, 8)]), "'yours' has no test set, so only the training loss is"),
        (
            from_clients([(clinic(0, 8)[0], np.ones(8))], test=(clinic(1, 4)[0], np.ones(4))),
            "nothing is measured per client; give client tests",
        ),
        (from_arrays(*clinic(0, 8), iid(1), test=clinic(1, 4)), ""),
    ],
)
def test_what_is_not_measured_is_said_in_one_line(data, says, capsys):
    module = nn.Linear(3, 2 if data.classes else 1)
    if not data.classes:
        module = nn.Sequential(module, nn.Flatten(0))
    parts = {"algorithm": FedAvg(), "model": module, "rounds": 1, "cohort": 1}
    Experiment(data=data, **parts).run(progress=True)
    said = capsys.readouterr().err.splitlines()
    assert sum("measured" in line for line in said) == bool(says)
    assert any(says in line for line in said)


def vector(result):
    return torch.cat([p.flatten() for p in result.model.parameters()])


def test_settings_name_clients_as_the_data_do(tmp_path):
    """By name and by number is the same run."""
    half = {
        "submodel": HeteroFL(),
        "model": lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)),
    }
    trace = tmp_path / "trace.csv"
    trace.write_text("client,first_round,last_round\nlyon,1,1\noslo,1,2\n")
    numbers = tmp_path / "numbers.csv"
    numbers.write_text(trace.read_text().replace("lyon", "0").replace("oslo", "2"))
    for by_name, by_number in (
        (
            {"weighting": {"bonn": 2.0, "oslo": 3.5, "lyon": 1.0}},
            {"weighting": [1.0, 2.0, 3.5]},
        ),
        ({"cohort": [["oslo"], ["bonn", 0]]}, {"cohort": [[2], [0, 1]]}),
        (
            {"capacities": {"oslo": "1/2", "bonn": 1, "lyon": 1}, **half},
            {"capacities": [1, 1, 0.5], **half},
        ),
        (
            {"availability": Availability(trace=str(trace))},
            {"availability": Availability(trace=str(numbers))},
        ),
        (
            {"attack": SignFlip(clients=["bonn"])},
            {"attack": SignFlip(clients=[1])},
        ),
    ):
        one, other = run(named(), **by_name), run(named(), **by_number)
        assert torch.equal(vector(one), vector(other)), by_name


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"weighting": {"lyon": 1.0, "bon": 2.0, "oslo": 1.0}}, "'bon'.*did you mean 'bonn'"),
        (
            {"weighting": {"lyon": 1.0, "oslo": 1.0}},
            "weighting names 2 of 3 clients, and not 'bonn'",
        ),
        ({"weighting": {"lyon": 1.0, 0: 1.0, "oslo": 1.0}}, "names a client twice"),
        ({"weighting": {"lyon": 1.0, "bonn": 0.0, "oslo": 1.0}}, "numbers above 0, got 0"),
        ({"cohort": [["lyon"], ["berlin"]]}, "cohort of round 2 names client 'berlin'"),
        ({"cohort": [["lyon", 0]]}, "names a client twice"),
        ({"attack": SignFlip(clients=["berlin"])}, "attack.clients names client 'berlin'"),
        ({"attack": SignFlip(clients=[])}, "attack.clients names nobody"),
        ({"attack": SignFlip(clients=[7])}, "attack.clients names client 7"),
    ],
)
def test_a_client_that_there_is_not_is_named(given, said):
    with pytest.raises(ConfigError, match=said):
        run(named(), **given)


def test_data_without_names_say_so():
    pairs = [clinic(i, 10 + i) for i in range(3)]
    with pytest.raises(ConfigError, match="these data have no names of clients; give numbers"):
        run(from_clients(pairs, test=clinic(9, 6)), cohort=[["lyon"]])


def test_a_run_by_name_resumes_and_a_file_may_name_clients_too(fedloom, tmp_path):
    for site in NAMES:
        rows = zip(*clinic(len(site), 12), strict=True)
        lines = [",".join(map(str, (*x.tolist(), y))) for x, y in rows]
        (tmp_path / f"{site}.csv").write_text("\n".join(["a,b,c,y", *lines]) + "\n")
    table = {"name": "table", "path": "*.csv", "target": "y", "test_share": 0.3}
    lines = [f"{k} = {json.dumps(v)}" for k, v in {**table, "partition": "natural"}.items()]
    keys = [
        'algorithm = "fedavg"',
        "rounds = 2",
        'model = { name = "logistic", inputs = 3, classes = 2 }',
        "[data]",
        *lines,
    ]
    (tmp_path / "t.toml").write_text("\n".join(keys))
    words = ["t.toml", "weighting={lyon=1, bonn=2, oslo=0.5}"]
    fedloom("run", *words, "--out", "a", "--quiet")
    fedloom("run", "--resume", "a", "rounds=3", "--quiet")
    fedloom("run", "t.toml", "rounds=3", "weighting=[2, 1, 0.5]", "--out", "b", "--quiet")
    rows = [(tmp_path / run / "rounds.jsonl").read_text().splitlines()[-1] for run in "ab"]
    assert len({json.loads(row)["test_loss"] for row in rows}) == 1  # bonn is the first of names
    said = fedloom("run", "t.toml", "rounds=1", "weighting={lyon=1}", "--out", "c", code=2).output
    assert "weighting names 1 of 3 clients, and not 'bonn'" in said
    fedloom(
        "run", "t.toml", "rounds=1", "attack=sign_flip", 'attack.clients=["oslo"]', "--out", "d"
    )
    fedloom("run", "t.toml", "rounds=1", 'cohort=[["oslo"]]', "--out", "e")
    assert json.loads((tmp_path / "e/rounds.jsonl").read_text())["cohort"] == 1
    half = ["model=mlp", "model.inputs=3", "model.hidden=[4]", "submodel=heterofl"]
    levels = "submodel.capacities={lyon='1/2', bonn=1, oslo=1}"
    fedloom("run", "t.toml", "rounds=1", *half, levels, "--out", "f", "--quiet")
    capacities = json.loads((tmp_path / "f/clients.json").read_text())["submodel"]["capacities"]
    assert capacities == [1.0, 0.5, 1.0]
    wrong = levels.replace("oslo", "rome")
    said = fedloom("run", "t.toml", *half, wrong, "--out", "g", code=2).output
    assert "capacities names client 'rome'" in said


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_a_client_has_a_factor_of_the_rate(engine):
    alone = {"cohort": [["bonn"]], "rounds": 1, "engine": engine}
    half = run(named(), local=Local(lr=0.2, lr_by_client={"bonn": 0.5}), **alone)
    as_list = run(named(), local=Local(lr=0.2, lr_by_client=[3, 0.5, 1]), **alone)
    other = run(named(), local=Local(lr=0.2), cohort=[["oslo"]], rounds=1, engine=engine)
    same = run(
        named(), local=Local(lr=0.2, lr_by_client={"bonn": 0.5}), **{**alone, "cohort": [["oslo"]]}
    )
    want = run(named(), local=Local(lr=0.1), **alone)
    assert torch.equal(half.state.x, want.state.x) and torch.equal(as_list.state.x, want.state.x)
    assert torch.equal(same.state.x, other.state.x)  # the others' factor is 1
    both = {"rounds": 2, "cohort": 3, "local": Local(lr=0.2, lr_by_client={"bonn": 0.5})}
    one, many = (run(named(), engine=e, **both).state.x for e in ("serial", engine))
    torch.testing.assert_close(one, many, rtol=1e-5, atol=1e-6)


def test_factors_of_rates_and_parts_of_clients_on_the_command_line(fedloom, tmp_path):
    lines = ["x,site,y"] + [f"{k % 7},{NAMES[k % 3]},{k % 2}" for k in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    data = {"path": "t.csv", "target": "y", "client": "site", "test_share": 0.3, "clients": "none"}
    words = ["algorithm=fedavg", "model=logistic", "model.inputs=1", "model.classes=2"]
    words += ["data=table", *(f"data.{key}={value}" for key, value in data.items())]
    words += ["rounds=1", "cohort=1.0", "data.partition=natural"]
    fedloom("run", *words, "data.parts=2", "data.parts_alpha=0.5", "--out", "a", "--quiet")
    about = json.loads((tmp_path / "a/partition.json").read_text())
    assert sorted(about["client_names"]) == sorted(f"{n}/{k}" for n in NAMES for k in (0, 1))
    assert sum(about["sizes"]) == 42
    factors = 'local.lr_by_client={"lyon/0"=0.5}'
    fedloom("run", *words, "data.parts=2", factors, "--out", "b", "--quiet")
    for word, said in (
        ("local.lr_by_client={rome=0.5}", "local.lr_by_client names client 'rome'"),
        ("local.lr_by_client=[1, 2]", "local.lr_by_client has 2 numbers for 3 clients"),
        ("local.lr_by_client={lyon=0}", "local.lr_by_client must be a list of one per client"),
        ("data.parts_alpha=0.5", "give partition.parts, from 2, too"),
        ("data.parts=40", "cannot share"),
    ):
        found = fedloom("run", *words, word, "--out", "c", code=2).output
        assert said in found and found.count("\n") == 1
