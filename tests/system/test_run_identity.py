"""What decides the numbers of a run tells it from others, for `resume` and `compare`; what was
changed since it was written is said, and never gone on from.
"""

import json
import runpy
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from crash_script import agree
from crash_script import experiment as stopped
from torch import nn

from fedloom import Experiment, FedAvg, Local
from fedloom.algorithms import FedACG, fedprox
from fedloom.cli.__main__ import cli
from fedloom.compression.codecs import TopK
from fedloom.compression.error_feedback import Residual
from fedloom.compression.link import FieldCodec, Link
from fedloom.data import digits, dirichlet, iid
from fedloom.errors import CheckpointError
from fedloom.experiment import provenance
from fedloom.experiment.provenance import configuration, mark, plain
from fedloom.federation.devices import LogNormal
from fedloom.models import mlp
from fedloom.report.runs import load_run
from fedloom.storage.run_directory import RunDirectory
from fedloom.study import state_of
from fedloom.submodels import FedRolex, HeteroFL
from support.folders import record
from tiny import clusters, environment, small, weights
from tiny import mlp as tiny_mlp

# ---------------------------------------------------------------------------------- configurations
TEN = iid(clients=10)
RUNS = {
    "iid": (TEN, {}),
    "skew": (dirichlet(0.05, clients=10), {}),
    "many": (iid(clients=20), {}),
    "down": (TEN, {"compress": Link(down="sign")}),
    "slow": (TEN, {"devices": LogNormal()}),
    "double": (TEN, {"dtype": "float64"}),
    "begun": (TEN, {"weights": mlp(64, (4,), 10).state_dict()}),
    "again": (TEN, {"engine": "vectorised", "seed": 1}),
}


def test_runs_of_other_data_or_compression_are_of_another_group(tmp_path):
    groups = {}
    for name, (partition, given) in RUNS.items():
        torch.manual_seed(0)
        data = digits(partition, seed=given.get("seed", 0))
        parts = {"algorithm": FedAvg(), "model": mlp(64, (4,), 10), "rounds": 1, "cohort": 2}
        Experiment(data=data, **parts, **given).run(tmp_path / name)
        groups[name] = load_run(tmp_path / name).group
    assert groups.pop("again") == groups["iid"], "a seed and an engine make no other group"
    assert len(set(groups.values())) == len(groups), groups
    table = CliRunner().invoke(cli, ["compare", *(str(tmp_path / name) for name in RUNS)]).output
    assert "kind iid" in table and "kind dirichlet" in table and "clients 20" in table
    assert "data.split" not in table


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
    given = {"name": "n", "label": "l", "compress": Link("topk:0.5", down="sign")}
    given |= {"devices": LogNormal(), "weights": nn.Linear(5, 3).state_dict()}
    exp = small(FedAvg(), torch.float64, model=nn.Linear(5, 3).double(), **given)
    known = configuration(exp, exp.build()).keys()
    optional = {"submodel", "private", "aggregation", "attack", "churn", "availability"}
    optional |= {"choose", "clock", "stages", "model_seed"}
    names = {field.name for field in fields(Experiment)}
    assert names - known - optional == {*ELSEWHERE}


# ------------------------------------------------------------------------------------ another run


class Permuted(nn.Module):
    def __init__(self, order):
        super().__init__()
        torch.manual_seed(0)
        self.line = nn.Linear(5, 3)
        self.register_buffer("order", torch.tensor(order))

    def forward(self, x):
        return self.line(x[:, self.order])


def permuted(*order):
    return {"model": Permuted(order)}


def proximal(mu):
    return {"algorithm": fedprox(mu=np.float32(mu))}


def coded(ratio):
    return {"compress": FieldCodec(TopK(ratio=ratio), Residual())}


def weighted(*classes):
    """A loss with a buffer."""
    return {"objective": nn.CrossEntropyLoss(torch.tensor(classes))}


SLICES = {"submodel": HeteroFL(), "capacities": [0.5, 1.0]}
# {what: (the run, another one, what is said to differ)}
OTHERS = {
    "a number": (proximal(0.5), proximal(7.0), "algorithm"),
    "a loss's buffer": (weighted(1.0, 1.0, 1.0), weighted(1.0, 1.0, 9.0), "objective"),
    "a model's buffer": (permuted(0, 1, 2, 3, 4), permuted(4, 3, 2, 1, 0), "weights"),
    "a codec's option": (coded(0.5), coded(0.4), "compress"),
    "a codec": ({}, coded(0.5), "compress"),
    "a rule": (SLICES, SLICES | {"submodel": FedRolex()}, "submodel"),
    "capacities": (SLICES, SLICES | {"capacities": [0.25, 1.0]}, "submodel"),
    "a method": ({}, {"algorithm": FedACG()}, "algorithm"),
    "a rate": ({}, {"local": Local(epochs=2, batch=4, lr=0.101)}, "local"),
    "data": ({}, {"data": clusters(seed=8)}, "samples"),
    "sizes": ({}, {"data": clusters(sizes=(1, 3, 5, 8, 11, 3, 12))}, ".*clients"),
    "weights": ({}, {"model": tiny_mlp(seed=6)}, "weights"),
    "a seed": ({}, {"seed": 6}, "seed"),
    "a cohort": ({}, {"cohort": 3}, "cohort"),
    "weights of clients": ({}, {"weighting": "uniform"}, "weighting"),
    "how cohorts are drawn": ({}, {"sampling": "bernoulli"}, "sampling"),
    "what is not finite": ({}, {"nonfinite": "skip"}, "nonfinite"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_content_is_another_run(name, tmp_path):
    one, other, part = OTHERS[name]
    of = lambda given, rounds: small(**{"algorithm": FedAvg(), "rounds": rounds, **given})
    of(one, 2).run(tmp_path / "run")
    with pytest.raises(CheckpointError, match=f"another configuration: .*{part}.*differ"):
        of(other, 3).resume(tmp_path / "run")
    assert len(of(one, 3).resume(tmp_path / "run").history) == 3


def test_every_changed_input_is_another_run(tmp_path):
    data = clusters(sizes=(1, 300, 300, 200))

    def resumed(**changes):
        return stopped(rounds=1, data=replace(data, **changes)).resume(tmp_path / "run")

    stopped(rounds=1, data=data).run(tmp_path / "run")
    for name in ("inputs", "test_inputs"):
        array = getattr(data, name)
        others = [array.flip(0)] if name == "inputs" else []
        for row in (0, 1, 2, len(array) - 2, len(array) - 1):
            others.append(array.clone())
            others[-1][row, -1] += 1e-3
        for other in others:
            with pytest.raises(CheckpointError, match="samples differ"):
                resumed(**{name: other})
    resumed(inputs=data.inputs.t().contiguous().t())  # the same, laid out otherwise


def test_another_function_is_said(tmp_path, caplog):
    def of(rate):
        return small(FedAvg(), rounds=2, local=Local(lr=0.5, schedule=lambda round, step: rate))

    of(1.0).run(tmp_path / "run")
    of(1.0).resume(tmp_path / "run")
    assert "function" not in caplog.text
    of(0.01).resume(tmp_path / "run")
    assert "the function local.schedule has other numbers or names in it" in caplog.text


# ------------------------------------------------------------------------------------------ marks
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
    own = environment() | {"PYTHONHASHSEED": "1"}
    there = subprocess.run([sys.executable, "s.py"], env=own, capture_output=True, text=True)
    assert capsys.readouterr().out == there.stdout and there.stdout.startswith(" ~")
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
    assert plain(fedprox(mu=np.float32(0.5)))["mu"] == 0.5
    assert plain([np.int64(3), torch.tensor(0.25), np.bool_(True)]) == [3, 0.25, True]


def test_a_large_array_is_hashed_piece_by_piece(monkeypatch):
    x = torch.arange(7 * 5 * 3.0).view(7, 5, 3)
    arrays = [x, x.transpose(0, 2), torch.empty(0, 4), torch.empty(4, 0), torch.tensor(3)]
    once = [mark(array) for array in arrays]
    for size in (1, 60, 130):
        monkeypatch.setattr(provenance, "_PIECE", size)
        assert [mark(array) for array in arrays] == once


# ----------------------------------------------------------------------------------- changed files
@pytest.mark.parametrize("name", ["config.toml", "summary.json", "manifest.json", "memory.json"])
def test_files_that_are_nested_too_deep_are_one_line(name, run):
    opened = "a = " + "[" * 100_000 if name == "config.toml" else "[" * 100_000
    for file in [*run.rglob(name)] or [run / name]:
        file.write_text(opened)
    calls = {
        "config.toml": [lambda: load_run(run), RunDirectory(run).read_config],
        "summary.json": [lambda: load_run(run), lambda: state_of(run)],
    }
    for call in calls.get(name, [lambda: stopped(rounds=10).resume(run)]):
        with pytest.raises(CheckpointError) as caught:
            call()
        assert "\n" not in str(caught.value) and name in str(caught.value)


@pytest.mark.parametrize("name", ["fedloom", "torch"])
def test_another_version_is_said_and_written_down(name, run, whole, caplog):
    now = record(run, "environment")
    (run / "environment.json").write_text(json.dumps(now | {name: "0.0.7"}))
    (run / "manifest.json").unlink()
    stopped(rounds=8).resume(run)
    said = f"was run with {name} 0.0.7 until round 6 and goes on with {name} {now[name]}"
    assert said in caplog.text
    caplog.clear()
    assert weights(stopped(rounds=10).resume(run).model) == weights(whole.model)
    assert not caplog.text
    assert record(run, "environment")["earlier"] == f"{name} 0.0.7 until round 6"


def test_files_that_say_nothing_are_named(run, whole, caplog):
    (run / "environment.json").write_text("{")
    agree(stopped(rounds=10).resume(run), whole)
    assert "which versions made the rounds until now is not known" in caplog.text
    (run / "fingerprint.json").write_text("[]")
    (run / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"fingerprint.json' cannot be read"):
        stopped(rounds=11).resume(run)
