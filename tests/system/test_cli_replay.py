"""`fedloom replay`: a round of a run's folder once more, as text, as tensors and in a debugger."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors import safe_open

from tiny import Fedloom

MINE = """
from fedloom.algorithm import FedAvg


class Mine(FedAvg):
    def direction(self, x, loc, msg, mem, grad, job):
        return 1.0 * grad(x), loc
"""
PARTS = ["data.partition.clients=6", "cohort=3", "local.epochs=1", "checkpoint.every_rounds=2"]


@pytest.fixture
def run(fedloom: Fedloom) -> str:
    Path("mine.py").write_text(MINE)
    more = ["engine=serial", "checkpoint.keep=1", "algorithm=mine.py:Mine"]
    fedloom("run", "digits", "rounds=4", *PARTS, *more, "--quiet", "--out", "run")
    return "run"


def content(folder: str) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}


def test_a_round_a_client_and_a_step(fedloom: Fedloom, run: str) -> None:
    before = content(run)
    end = fedloom("replay", run, "--round", 3)
    assert "round 3 is as in the log" in end.stdout and "repeats rounds 1 to 3" in end.stderr
    who = end.stdout.partition("clients")[2].splitlines()[0].strip().split(", ")
    assert len(who) == 3
    words = ["replay", run, "--round", 3, "--client", who[1], "--step", 2, "--out", "x.safetensors"]
    page = fedloom(*words).stdout
    assert "step 2: examples" in page and "with the model's move" in page
    with safe_open("x.safetensors", framework="pt") as f:
        about = json.loads(f.metadata()["about"])
        names = set(f.keys())
        moved = f.get_tensor("step.after") - f.get_tensor("step.before")
    steps = [line.split() for line in page.splitlines() if line.split()[:1] in (["1"], ["2"])]
    assert [line[-2] for line in steps] == [f"{s['loss']:.4g}" for s in about["steps"][:2]]
    assert float(moved.norm()) == about["steps"][1]["norm"]
    logged = json.loads(Path(run, "rounds.jsonl").read_text().splitlines()[2])
    assert about["row"]["train_loss"] == logged["train_loss"]
    wanted = {"message.x", "update.delta", "sent.delta", "server.before", "server.after", "batch.1"}
    assert wanted <= names
    assert content(run) == before


def test_blame_ranks_the_clients(fedloom: Fedloom) -> None:
    words = ["attack=sign_flip", "attack.share=0.1", "attack.strength=5", "rounds=2"]
    more = ["data.partition.clients=10", "cohort=10", "data.partition.alpha=10"]
    fedloom("run", "digits", *words, *more, "--quiet", "--out", "run")
    lines = fedloom("replay", "run", "--round", 2, "--blame").stdout.splitlines()
    table = [line.split() for line in lines if line[:2] == "  " and line.split()[0].isdigit()]
    assert len(table) == 10 and float(table[0][4]) < 0  # its cosine
    assert float(table[0][5]) == min(float(row[5]) for row in table)


def test_bad_input_is_one_line(fedloom: Fedloom, run: str) -> None:
    said = fedloom("replay", run, "--round", 5, code=2).stderr
    assert "round 5 of 'run' has not been run; it has 4 rounds" in said
    said = fedloom("replay", run, "--round", 2, "--client", "nobody", code=2).stderr
    assert "client nobody did not train in round 2; those that did: " in said
    assert "--client" in fedloom("replay", run, "--round", 2, "--step", 1, code=2).stderr
    said = fedloom("replay", run, "--round", 2, "local.lr=1", code=2).stderr
    assert "local.lr cannot change" in said
    assert "not a run directory" in fedloom("replay", "nowhere", "--round", 2, code=1).stderr
    Path("mine.py").write_text(f"{MINE}\n# changed\n")
    assert "has changed since" in fedloom("replay", run, "--round", 1, code=1).stderr
    assert "as in the log" in fedloom("replay", run, "--round", 1, "--changed-code").stdout
