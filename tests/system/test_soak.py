"""`nox -s soak` in small: it kills, reads, counts, goes on, and would say what was lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedloom.compression.codecs import Dense
from tiny import environment

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def soak(tmp_path, *words):
    line = [sys.executable, BENCHMARKS / "soak.py", "--record", tmp_path / "soak.json", *words]
    done = subprocess.run(
        [str(w) for w in line], env=environment(), capture_output=True, text=True, timeout=300
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_a_small_soak_loses_nothing_and_goes_on_with_its_record(tmp_path):
    code, said = soak(tmp_path, "--kills", 2, "--messages", 2000, "--engines", "serial")
    assert code == 0 and "nothing lost" in said, said
    counts = json.loads((tmp_path / "soak.json").read_text())["counts"]
    assert counts["kills"] == {"serial": 2} and sum(counts["messages"].values()) == 2000
    assert counts["runs"] >= 1 and 1000 < counts["refused"] < 2000


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import soak

    yield soak
    for name in ("soak", "messages"):
        sys.modules.pop(name, None)


def test_what_gets_through_is_a_loss(module, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "codecs", lambda: {"naive": Naive()})
    assert module.main(["--kills", "0", "--messages", "5000", "--record", f"{tmp_path}/r"]) == 1
    loss = json.loads((tmp_path / "r").read_text())["counts"]["loss"]
    assert loss.startswith("naive, torch.float")


class Naive(Dense):
    """Reads as this release did before: what is not finite gets through."""

    def read(self, raw, layout, dtype):
        return self.decode(self.unpack(raw, layout), layout, dtype)


def test_other_bits_are_a_loss(module, tmp_path):
    counts = module.Counts(seed=0)
    (tmp_path / "run.digest").write_text("other")
    module._compare(tmp_path / "run", "bits", "serial", counts)
    assert "other bits" in counts.loss and "LOST" in counts.line()


@pytest.mark.parametrize("kind", ["state", "masks", "theory", "both ways"])
def test_every_kind_of_run_remembers_something(kind, module, tmp_path):
    torch.set_num_threads(1)
    result = module.experiment("serial", kind).run(tmp_path / "run")
    assert len(result.history) == module.ROUNDS
    assert any((tmp_path / "run").rglob("memory.json"))
