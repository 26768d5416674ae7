"""Bad input: one line that says what to do, exit code 2 (asked wrongly) or 1 (went wrong)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedloom import Experiment, FedAvg
from fedloom.data import digits, iid
from fedloom.models import mlp
from fedloom.report import load_run
from tiny import Fedloom

SMALL = ("rounds=2", "local.epochs=1")


def test_a_recipes_own_codec_is_not_blamed_on_the_command_line(fedloom: Fedloom) -> None:
    text = 'compress = "topk:abc"\nrounds = 2\nmodel = "mlp"\nalgorithm = "fedavg"\n'
    Path("own.toml").write_text(f'{text}[data]\nname = "digits"\npartition = "iid"\n')
    said = "file 'own.toml': compress.ratio must be in (0, 1], got 'abc'"
    for more in ([], ["algorithm=fedacg"], ["compress.feedback=forget"]):
        assert said in fedloom("run", "own.toml", *more, code=2).output


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("local.schedule={name = 'cosine', rounds = 1}", "0 from round 2 of 2 on"),
        ("evaluate.sizes_every=3", "evaluate.sizes_every has no effect"),
        (
            "aggregation={name = 'trimmed_mean', trim = 0.05}",
            "take aggregation.trim = 0.1, or a cohort of at least 20 clients",
        ),
    ],
)
def test_what_has_no_effect_is_said(change: str, words: str, fedloom: Fedloom) -> None:
    assert words in fedloom("run", *SMALL, change, "--dry-run").output


@pytest.mark.parametrize("command", ["run --resume", "compare", "report", "export"])
def test_what_is_no_run(command: str, fedloom: Fedloom) -> None:
    assert "nowhere" in fedloom(*command.split(), "nowhere", code=1).output
    Path("empty").mkdir()
    assert "config.toml" in fedloom(*command.split(), "empty", code=1).output


def test_data_that_are_not_there(fedloom: Fedloom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLOOM_DATA", str(Path("data").absolute()))
    Path("data").mkdir()
    text = fedloom("run", "fashion_dirichlet", "data.download=false", code=2).output
    for word in ("train-images-idx3-ubyte.gz", "data/fashion-mnist", "md5", "FEDLOOM_DATA"):
        assert word in text

    def refuse(*_: object, **__: object) -> None:
        raise OSError("connection refused")

    monkeypatch.setattr("requests.get", refuse)
    text = fedloom("run", "mnist_iid", code=2).output
    assert "connection refused" in text
    assert "md5" in text


def test_a_folder_that_cannot_be_written(fedloom: Fedloom) -> None:
    Path("file").write_text("")
    assert "cannot be written" in fedloom("run", *SMALL, "--out", "file/run", code=2).output
    assert "exists" in fedloom("run", *SMALL, "--out", "file", code=2).output


def test_a_folder_that_holds_a_run(fedloom: Fedloom, a: str) -> None:
    before = Path("a/summary.json").read_bytes()
    assert "fedloom run --resume a" in fedloom("run", *SMALL, "out=a", code=2).output
    Path("b").mkdir()
    shutil.copytree("a", "b/seed1")
    assert "b/seed1" in fedloom("run", *SMALL, "--out", "b", "--seeds", 2, code=2).output
    assert not Path("b/seed0").exists(), "found out before the first run"
    assert Path("a/summary.json").read_bytes() == before


def test_a_folder_of_another_run_is_not_gone_on_with(fedloom: Fedloom, a: str) -> None:
    text = fedloom("run", *SMALL, "algorithm=scaffold", "out=a", code=2).output
    assert "'a' exists, and holds something else than this run (algorithm.name" in text
    assert "resume" not in text and "choose another --out" in text


def test_a_method_that_does_not_read_its_move_takes_a_local_optimiser(fedloom: Fedloom) -> None:
    method = ("algorithm=scaffold", "algorithm.option=1")
    fedloom("run", *SMALL, *method, "local.momentum=0.9", "--out", "a", "--quiet")


def test_a_run_that_has_exploded_says_so(fedloom: Fedloom) -> None:
    output = fedloom("run", *SMALL, "local.lr=1e6", "--out", "a").output
    said = "the run diverges: train_loss is "
    assert f"warning: round 2: {said}" in output
    assert "warning: the accuracy is" in output and "nothing of use was learnt" in output
    assert json.loads(Path("a/summary.json").read_text())["warnings"][0].startswith(said)
    assert f"warning: a: {said}" in fedloom("compare", "a").output


@pytest.mark.slow
def test_nobody_who_reads_on_costs_no_report(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedloom", "run", *SMALL, "local.lr=1e6", "--out", "a"]
    for err in (subprocess.DEVNULL, subprocess.STDOUT):
        reading, writing = os.pipe()
        os.close(reading)  # as of `| head -1`, once it has its line
        done = subprocess.run(command, cwd=tmp_path, stdout=writing, stderr=err, timeout=120)
        os.close(writing)
        assert done.returncode == 0
        assert (tmp_path / "a" / "report.html").is_file()
        shutil.rmtree(tmp_path / "a")


def test_a_run_of_another_configuration(fedloom: Fedloom, a: str) -> None:
    assert "local.lr cannot change" in fedloom("run", "--resume", "a", "local.lr=1", code=2).output
    file = Path("a/config.toml")
    file.write_text(file.read_text().replace("lr = 0.1", "lr = 0.2"))
    Path("a/manifest.json").unlink()  # without a seal
    assert (
        "another configuration: local" in fedloom("run", "--resume", "a", "rounds=3", code=1).output
    )
    assert len(Path("a/rounds.jsonl").read_text().splitlines()) == 2


def test_fewer_rounds_than_there_are(fedloom: Fedloom, a: str) -> None:
    assert "2 rounds already" in fedloom("run", "--resume", "a", "rounds=1", code=2).output
    assert load_run("a").finished, "a refused change leaves the run as it was"


def test_a_loss_that_is_not_finite_names_client_and_round(fedloom: Fedloom) -> None:
    text = fedloom("run", *SMALL, "local.lr=1e30", "--quiet", code=1).output
    assert "client" in text
    assert "round" in text
    assert "lower local.lr" in text


def test_a_run_from_python_goes_on_in_python(fedloom: Fedloom) -> None:
    data = digits(iid(clients=5))
    made = Experiment(algorithm=FedAvg(), model=lambda: mlp(64), data=data, rounds=1, device="cpu")
    made.run("a")
    assert "Experiment(...).resume('a')" in fedloom("run", "--resume", "a", code=2).output
    assert "from Python" in fedloom("run", "a/config.toml", code=2).output


def test_what_nobody_foresaw_is_one_line_too(
    fedloom: Fedloom, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a first line\nand a second")

    monkeypatch.setattr("fedloom.config.resolve", fail)
    text = fedloom("run", "digits", code=1).output
    assert text.splitlines() == [
        "error: RuntimeError: a first line and a second "
        "(unexpected: `fedloom --debug ...` shows where)"
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(fedloom: Fedloom) -> None:
    assert "no GPU" in fedloom("run", "device=cuda", code=2).output
