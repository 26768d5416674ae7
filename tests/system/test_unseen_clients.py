"""Clients that never train are measured: in rows, per client, in compare and in the report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedloom import Evaluation, Experiment, FedAvg, Local
from fedloom.data import from_clients
from fedloom.errors import CompositionError, ConfigError, DataError
from fedloom.report import write_report
from fedloom.submodels.private import FedPer

NAMES = ("lyon", "bonn", "oslo", "rome")


def clinic(seed, n):
    draw = np.random.default_rng(seed)
    inputs = draw.normal(size=(n, 3)).astype("float32")
    return inputs, (inputs.sum(1) + draw.normal(size=n) > 0).astype("int64")


def clinics(tests=True):
    pairs = {name: clinic(i, 10 + i) for i, name in enumerate(NAMES)}
    own = {name: clinic(9 + i, 6) for i, name in enumerate(NAMES)}
    return pairs, own if tests else None


def run(data, out=None, **more):
    parts = {"algorithm": FedAvg(), "model": lambda: nn.Linear(3, 2), "rounds": 3}
    return Experiment(data=data, local=Local(lr=0.3), **{**parts, **more}).run(out)


def scores(model, pair):
    inputs, targets = map(torch.as_tensor, pair)
    outputs = model(inputs)
    loss = nn.functional.cross_entropy(outputs, targets)
    return float((outputs.argmax(1) == targets).float().mean()), float(loss.detach())


def both(name):
    pairs, own = clinics()
    return tuple(np.concatenate(parts) for parts in zip(pairs[name], own[name], strict=True))


def test_a_client_set_apart_is_measured_on_all_its_rows_and_trains_nobody(tmp_path):
    pairs, own = clinics()
    data = from_clients(pairs, client_tests=own)
    found = run(data, tmp_path / "a", evaluate=Evaluation(unseen=["oslo", "lyon"]))
    three = {k: pairs[k] for k in ("bonn", "rome")}, {k: own[k] for k in ("bonn", "rome")}
    without = run(from_clients(three[0], client_tests=three[1]))
    for one, other in zip(found.model.parameters(), without.model.parameters(), strict=True):
        assert torch.equal(one, other), "those that stay train as if the others did not exist"
    assert found.history[-1]["test_accuracy"] == without.history[-1]["test_accuracy"]
    table = {row["client"]: row for row in found.per_client()}
    for name in ("lyon", "oslo"):
        accuracy, _ = scores(found.model, both(name))
        assert table[name]["accuracy"] == pytest.approx(accuracy) and table[name]["unseen"]
        assert table[name]["examples"] == 0
    assert "unseen" not in table["bonn"]
    whole = [np.concatenate(rows) for rows in zip(both("lyon"), both("oslo"), strict=True)]
    accuracy, loss = scores(found.model, whole)
    last = found.history[-1]
    assert last["unseen_accuracy"] == pytest.approx(accuracy)
    assert last["unseen_loss"] == pytest.approx(loss, rel=1e-5)
    kept = json.loads((tmp_path / "a/clients.json").read_text())["unseen"]
    assert kept["names"] == ["oslo", "lyon"] and kept["rows"] == [18, 16]
    assert kept["metrics"]["accuracy"] == [table["oslo"]["accuracy"], table["lyon"]["accuracy"]]
    page = write_report(tmp_path / "a", tmp_path / "r.html").read_text()
    assert "never trained" in page and ">oslo<" in page


def test_clients_with_test_rows_alone_are_unseen():
    pairs, own = clinics()
    pairs["oslo"] = ([], [])
    found = run(from_clients(pairs, client_tests=own))
    row = next(row for row in found.per_client() if row["client"] == "oslo")
    assert row["accuracy"] == pytest.approx(scores(found.model, own["oslo"])[0])
    assert len(found.examples) == 3
    assert found.history[-1]["unseen_accuracy"] == pytest.approx(row["accuracy"])


def test_a_client_without_any_row_is_refused():
    pairs, own = clinics()
    pairs["oslo"], own["oslo"] = ([], []), ([], [])
    with pytest.raises(DataError, match="client oslo has no samples, neither"):
        from_clients(pairs, client_tests=own)


def test_a_share_is_drawn_from_the_seed():
    data = from_clients(list(clinics()[0].values()), test=clinic(20, 8))
    names = [
        [row["client"] for row in run(data, seed=s, evaluate=Evaluation(unseen=0.5)).per_client()]
        for s in (0, 0, 3)
    ]
    assert names[0] == names[1] and all(len(each) == 4 for each in names)


@pytest.mark.parametrize(
    ("unseen", "said"),
    [
        (["osl"], "evaluate.unseen names client 'osl', .* did you mean 'oslo'"),
        ([7], "names client 7"),
        (list(NAMES), "sets all 4 clients apart"),
        (["oslo", 2], "names a client twice"),
    ],
)
def test_what_cannot_be_set_apart_is_said(unseen, said):
    pairs, own = clinics()
    with pytest.raises(ConfigError, match=said):
        run(from_clients(pairs, client_tests=own), evaluate=Evaluation(unseen=unseen))


def test_clients_without_names_keep_the_numbers_that_they_had():
    pairs = [clinic(i, 10 + i) for i in range(4)]
    data = from_clients(pairs, test=clinic(20, 8))
    found = run(data, evaluate=Evaluation(unseen=[1]))
    examples = {row["client"]: row["examples"] for row in found.per_client()}
    assert examples == {"0": 10, "1": 0, "2": 12, "3": 13}
    alone = from_clients([pairs[0], ([], []), pairs[2]], client_tests=pairs[:3])
    examples = {row["client"]: row["examples"] for row in run(alone).per_client()}
    assert examples == {"0": 10, "1": 0, "2": 12}


def test_private_layers_are_refused():
    pairs, own = clinics()
    layers = {"private": FedPer(), "model": lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))}
    with pytest.raises(CompositionError, match=r"evaluate\.unseen: a client that never trains"):
        run(from_clients(pairs, client_tests=own), evaluate=Evaluation(unseen=[0]), **layers)


def test_the_command_line(fedloom):
    words = ["heart", "rounds=2", "--quiet"]
    fedloom("run", *words, 'data.unseen=["va"]', "--out", "a")
    row = json.loads(Path("a/rounds.jsonl").read_text().splitlines()[-1])
    assert row["unseen_accuracy"] > 0.3
    assert "unseen" in fedloom("compare", "a", "--wide").output
    fedloom("run", "--resume", "a", "rounds=3", "--quiet")
    said = fedloom("run", *words, 'data.unseen=["vaa"]', "--out", "b", code=2).output
    assert "evaluate.unseen names client 'vaa'" in said and "va" in said
