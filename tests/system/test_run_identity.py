"""What decides the numbers of a run tells it from others: for `resume`, and for `compare`."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from crash_script import experiment as stopped
from torch import nn

from fedloom import Experiment, FedAvg, Local
from fedloom.algorithms import FedACG, fedprox
from fedloom.cli.__main__ import cli
from fedloom.compression.link import Link
from fedloom.data import digits, dirichlet, iid
from fedloom.errors import CheckpointError
from fedloom.experiment.provenance import configuration, mark, plain
from fedloom.federation.devices import LogNormal
from fedloom.models import mlp
from fedloom.report.runs import load_run
from tiny import clusters, environment, small
from tiny import mlp as tiny_mlp


def of_digits(partition, folder, seed=0, **given):
    torch.manual_seed(0)
    parts = {"algorithm": FedAvg(), "model": mlp(64, (4,), 10), "rounds": 1, "cohort": 2, **given}
    return Experiment(data=digits(partition, seed=seed), seed=seed, **parts).run(folder)


def test_runs_of_other_data_or_compression_are_of_another_group(tmp_path):
    runs = {
        "iid": (iid(clients=10), {}),
        "skew": (dirichlet(0.05, clients=10), {}),
        "many": (iid(clients=20), {}),
        "down": (iid(clients=10), {"compress": Link(down="sign")}),
        "slow": (iid(clients=10), {"devices": LogNormal()}),
        "double": (iid(clients=10), {"dtype": "float64"}),
        "begun": (iid(clients=10), {"weights": mlp(64, (4,), 10).state_dict()}),
        "again": (iid(clients=10), {"engine": "vectorised", "seed": 1}),
    }
    found = {}
    for name, (partition, given) in runs.items():
        of_digits(partition, tmp_path / name, **given)
        found[name] = load_run(tmp_path / name).group
    assert found.pop("again") == found["iid"], "a seed and an engine make no other group"
    assert len(set(found.values())) == len(found), found
    told = CliRunner().invoke(cli, ["compare", *(str(tmp_path / name) for name in runs)]).output
    assert "kind iid" in told and "kind dirichlet" in told and "clients 20" in told
    assert "data.split" not in told


# what of an experiment no configuration names, and why
ELSEWHERE = {
    "capacities": "in submodel",
    "metrics": "they are what is measured",
    "higher_is_better": "how a measured value is read",
    "channels_last": "rounding alone",
    "device": "where it is computed",
    "checkpoint": "where it is kept",
    "resident_bytes": "where it is kept",
    "ranks": "where it is computed",
    "on_round": "it is told, and decides nothing",
    "on_evaluation": "it is told, and decides nothing",
    "tracker": "it is told, and decides nothing",
    "measures": "what is measured",
    "config": "it is the configuration",
}


def test_every_argument_is_in_the_configuration_or_decides_nothing():
    """A new argument of an experiment must be told, or get a reason here."""
    exp = small(
        FedAvg(),
        torch.float64,
        name="n",
        label="l",
        compress=Link("topk:0.5", down="sign"),
        devices=LogNormal(),
        model=nn.Linear(5, 3).double(),
        weights=nn.Linear(5, 3).state_dict(),
    )
    told = configuration(exp, exp.build()).keys()
    optional = {"submodel", "private", "aggregation", "attack", "churn", "availability"}
    optional |= {"choose", "clock", "stages", "model_seed"}
    names = {field.name for field in fields(Experiment)}
    assert names - told - optional == ELSEWHERE.keys() & names
    assert ELSEWHERE.keys() <= names


class Weighted(nn.Module):
    def __init__(self, weights):
        super().__init__()
        self.register_buffer("weights", torch.tensor(weights))

    def forward(self, outputs, targets):
        return nn.functional.cross_entropy(outputs, targets, self.weights)


class Permuted(nn.Module):
    def __init__(self, order):
        super().__init__()
        torch.manual_seed(0)
        self.line = nn.Linear(5, 3)
        self.register_buffer("order", torch.tensor(order))

    def forward(self, x):
        return self.line(x[:, self.order])


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        (
            {"algorithm": fedprox(mu=np.float32(0.5))},
            {"algorithm": fedprox(mu=np.float32(7.0))},
            "algorithm differ",
        ),
        (
            {"objective": Weighted([1.0, 1.0, 1.0])},
            {"objective": Weighted([1.0, 1.0, 9.0])},
            "objective differ",
        ),
        (
            {"model": Permuted([0, 1, 2, 3, 4])},
            {"model": Permuted([4, 3, 2, 1, 0])},
            "weights differ",
        ),
    ],
    ids=["number", "loss", "index buffer"],
)
def test_another_content_is_another_run(one, other, says, tmp_path):
    run = lambda given: small(**{"algorithm": FedAvg(), "rounds": 2, **given})
    run(one).run(tmp_path / "run")
    with pytest.raises(CheckpointError, match=says):
        run(other).resume(tmp_path / "run")
    run(one).resume(tmp_path / "run")


def with_rate(rate):
    return small(FedAvg(), rounds=2, local=Local(lr=0.5, schedule=lambda round, step: rate))


def test_another_function_is_said(tmp_path, caplog):
    with_rate(1.0).run(tmp_path / "run")
    with_rate(1.0).resume(tmp_path / "run")
    assert "function" not in caplog.text
    with_rate(0.01).resume(tmp_path / "run")
    assert "the function local.schedule has other numbers or names in it" in caplog.text


def test_a_number_of_numpy_is_written_as_one():
    assert plain(fedprox(mu=np.float32(0.5)))["mu"] == 0.5
    assert plain([np.int64(3), torch.tensor(0.25), np.bool_(True)]) == [3, 0.25, True]


SCRIPT = """
from fedloom.experiment.provenance import mark
def rate(round, step, low=0.5):
    "Falls."
    return low if round in {"a", "b", "c", "d", "e", "f"} else (lambda x: x * 3.0)(step)
print(mark(rate))
"""


@pytest.mark.slow
def test_a_mark_is_the_same_in_every_process(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("s.py").write_text(SCRIPT)
    runpy.run_path("s.py", run_name="__main__")
    there = subprocess.run(
        [sys.executable, "s.py"],
        env=environment() | {"PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert capsys.readouterr().out == there and there.startswith(" ~")
    assert mark(len) == "" and mark(np.ones(3)) == mark(torch.ones(3, dtype=torch.float64))


class Stated(nn.Module):
    """Its state holds more than tensors."""

    def get_extra_state(self):
        return {"steps": 3}

    def set_extra_state(self, state):
        pass


def test_odd_content_has_a_mark_too():
    closed = np.arange(3.0)
    closed.flags.writeable = False
    native = mark(np.arange(3.0))
    assert native == mark(closed) == mark(np.arange(3.0)[::-1][::-1])
    assert native == mark(np.arange(3.0).astype(">f8")) != mark(np.arange(3.0)[::-1])
    assert mark(np.array(["a"])) == "" and mark(np.ones(2, np.longdouble)) == ""
    assert mark(Stated()) == mark(Stated()) != ""
    assert mark(torch.eye(2).to_sparse()) == ""


def test_another_configuration_is_refused(tmp_path):
    stopped(rounds=2).run(tmp_path / "run")
    others = {
        "algorithm": FedACG(),
        "seed": 6,
        "cohort": 3,
        "local": Local(epochs=1, batch=4, lr=0.051),
        "data": clusters(seed=8),
        "data ": clusters(sizes=(1, 3, 5, 8, 11, 3, 12)),
        "model": tiny_mlp(seed=6),
        "weighting": "uniform",
        "sampling": "bernoulli",
        "nonfinite": "skip",
    }
    missed = []
    for name, value in others.items():
        try:
            stopped(**{name.strip(): value, "rounds": 2}).resume(tmp_path / "run")
            missed.append(name)
        except CheckpointError as error:
            assert re.search("another configuration.*differ", str(error))
    assert not missed
    assert len(stopped(rounds=3).resume(tmp_path / "run").history) == 3
    with pytest.raises(CheckpointError, match="not a run directory"):
        stopped().resume(tmp_path)
