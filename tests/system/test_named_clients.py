"""Names of clients live from the data to rows, files and the report."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from torch import nn

from fedloom import Experiment, FedAvg, Local
from fedloom.data import from_arrays, from_clients, iid
from fedloom.federation.choice import PowerOfChoice
from fedloom.report import group_runs, load_run, write_report
from fedloom.report.charts import partition_chart
from fedloom.report.clients import client_cells
from fedloom.server.row import skipped

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
