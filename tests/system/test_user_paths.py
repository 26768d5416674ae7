"""~ is the home folder in every path that a user gives: in Python, in a file, on the line."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from fedloom import Experiment, FedAvg, load_runs
from fedloom.cli.__main__ import cli
from fedloom.data import folders, from_clients, iid, table
from fedloom.data.partition.without_labels import lists
from fedloom.report import write_report

TOML = """
name = "t"
rounds = 1
algorithm = "fedavg"
device = "cpu"
model = { name = "logistic", inputs = 1, classes = 2 }
[data]
name = "table"
path = "~/sites/*.csv"
target = "y"
test = ["~/sites/*.csv"]
partition = "natural"
"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home folder with two tables; the working directory is elsewhere, and must stay empty."""
    (tmp_path / "home" / "sites").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    for name in "ab":
        rows = "".join(f"{i},{i % 2}\n" for i in range(6))
        (tmp_path / "home" / "sites" / f"{name}.csv").write_text("x,y\n" + rows)
    yield tmp_path / "home"
    assert not os.listdir(tmp_path / "here")


def experiment(**more):
    data = from_clients([(torch.ones(4, 2), torch.arange(4) % 2)] * 2)
    return Experiment(
        algorithm=FedAvg(), model=lambda: torch.nn.Linear(2, 2), data=data, rounds=1, device="cpu",
        **more,
    )  # fmt: skip


def test_in_python(home):
    experiment().run("~/runs/a")
    assert experiment().resume("~/runs/a").path == home / "runs" / "a"
    assert len(load_runs("~/runs/*")) == 1 == len(load_runs("~/runs/a"))
    assert write_report(["~/runs/a"], "~/a.html").is_file() and (home / "a.html").is_file()
    save_file({"weight": torch.zeros(2, 2), "bias": torch.zeros(2)}, home / "w.safetensors")
    experiment(weights="~/w.safetensors").build()


def test_of_data(home):
    pytest.importorskip("pandas", reason="the extra tables is not installed")
    for path in ("~/sites/*.csv", ["~/sites/a.csv", Path("~/sites/b.csv")]):
        assert table(path, target="y").client_names == ("a", "b")
    data = table(iid(2), path="~/sites/a.csv", target="y", test="~/sites/b.csv")
    assert data.name == "a" and len(data.test_inputs) == 6
    data.save_indices("~/split.npz")
    assert lists("~/split.npz").split(data.targets, 0).count == 2
    assert data.load_indices("~/split.npz").population == 2
    (home / "split.txt").write_text("[[0, 1], [2]]")
    assert lists("~/split.txt").split(data.targets, 0).sizes.tolist() == [2, 1]
    (home / "arrays" / "a").mkdir(parents=True)
    for name, array in (("inputs", data.inputs), ("targets", data.targets)):
        np.save(home / "arrays" / "a" / f"{name}.npy", array.numpy())
    assert folders(path="~/arrays").population == 1


def test_in_a_file_and_on_the_command_line(home):
    pytest.importorskip("pandas", reason="the extra tables is not installed")
    (home / "t.toml").write_text(TOML)
    (home / "mine.py").write_text("import torch\n\ndef net():\n    return torch.nn.Linear(1, 2)\n")

    def fedloom(*words):
        result = CliRunner().invoke(cli, [*words])
        assert result.exit_code == 0, result.output
        return result.output

    fedloom("run", "~/t.toml", "--out=~/runs/t", "--quiet")
    assert (home / "runs" / "t" / "summary.json").is_file()
    fedloom(
        "run",
        "~/t.toml",
        "data.path=~/sites/a.csv",
        "data.test=none",
        "model=~/mine.py:net",
        "data.partition.name=iid",
        "data.partition.clients=2",
        "--out",
        "~/runs/u",
        "--quiet",
    )
    fedloom("show", "~/runs/u")
    fedloom("compare", "~/runs/*", "--csv", "~/runs.csv")
    assert (home / "runs.csv").is_file()
    fedloom("describe", "~/sites/*.csv", "--target", "y")
