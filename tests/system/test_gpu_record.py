"""`make gpu` on the stand-in for a GPU: all its pieces, and what it says of a failure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedloom import Local
from fedloom.models import resnet8

ROOT = Path(__file__).parents[2]


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import gpu

    yield gpu
    for name in ("gpu", "rounds", "loops"):
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_every_piece_is_done_once_and_the_record_has_a_page(gpu, monkeypatch, tmp_path, capsys):
    asked = []

    def run(device, *words, limit=1.0):
        asked.append((device, *words))
        file = words[-1]
        return f"{file}::one\n{file}::two[x y]\n" if "--collect-only" in words else "2 passed"

    few = {"clients": 3, "each": 4, "cohort": 2, "local": Local(steps=1, batch=2)}
    works = {name: of._replace(**few) for name, of in gpu.WORKS.items()}
    works |= {"W3": works["W2"], "W4": works["W4"]._replace(model=resnet8)}
    for name, value in (("pytest", run), ("WORKS", works), ("ROUNDS", 1)):
        monkeypatch.setattr(gpu, name, value)
    words = ["--device", "pretend", "--out", str(tmp_path)]
    assert gpu.main([*words, "--minutes", "2"]) == 3  # there is no time for the first one
    assert "10 pieces are left; run the same command again to resume" in capsys.readouterr().out
    real = gpu.rounds

    def stopped(of, engine, *rest):
        if engine == "vectorised":
            raise KeyboardInterrupt
        return real(of, engine, *rest)

    monkeypatch.setattr(gpu, "rounds", stopped)
    with pytest.raises(KeyboardInterrupt):
        gpu.main(words)
    monkeypatch.setattr(gpu, "rounds", real)
    assert gpu.main(words) == 0
    lines = [json.loads(x) for x in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    works = [f"W{n} {engine}" for n in (1, 2, 3, 4) for engine in ("serial", "vectorised")]
    assert [x["piece"] for x in lines] == ["contract 1 of 2", "contract 2 of 2", *works]
    assert [x for x in asked if "-rf" in x] == [
        ("pretend", "-rf", f"{file}::one", f"{file}::two[x y]") for file in gpu.FILES
    ]
    for line in lines[2:]:
        assert line["difference"] <= gpu.BOUND and line["s"] > 0 and 3 <= line["reads"] <= 8
    page = (tmp_path / "README.md").read_text()
    assert "Contract: of 4 tests 4 passed, 0 left out; failed: none" in page
    assert page.count("\n| W") == 8


@pytest.mark.slow
def test_the_stand_in_is_not_registered_in_the_process_that_measures_a_gpu():
    """It would break every backward pass on CUDA there."""
    code = "import gpu, torch; torch.device('pretend')"
    given = {**os.environ, "PYTHONPATH": str(ROOT / "benchmarks")}
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=given, capture_output=True, text=True
    )
    assert found.returncode == 1 and "start of device string: pretend" in found.stderr


def test_no_process_of_the_contract_runs_tests_of_two_files(gpu, monkeypatch):
    found = "tests/a.py::one\ntests/b.py::two\n"

    def collect(device, *words):
        return "".join(x + "\n" for x in found.split() if x.startswith(words[-1]))

    monkeypatch.setattr(gpu, "pytest", collect)
    monkeypatch.setattr(gpu, "FILES", ("tests/a.py", "tests/b.py"))
    parts = [x.args[1] for name, x in gpu.pieces("cuda", 0.0).items() if "contract" in name]
    assert parts == [["tests/a.py::one"], ["tests/b.py::two"]]


def test_a_test_that_fails_and_a_difference_that_is_too_large_are_told(gpu, monkeypatch):
    said = "FAILED tests/a.py::one[x] - assert 0\n1 failed, 2 passed, 1 skipped in 3 s\n"
    monkeypatch.setattr(gpu, "pytest", lambda *words, limit: said)
    found = gpu.contract("cuda", ["one", "two", "three", "four"], 0.0)
    assert found == {"tests": 4, "passed": 2, "skipped": 1, "failed": ["tests/a.py::one[x]"]}
    assert gpu.contract("cuda", ["one"] * 9, 0.0)["failed"][1].startswith("FAILED tests/a.py")
    work = {"s": 1.0, "busy": 0.5, "peak": 2.0, "reads": 4, "difference": 1e-3, "piece": "W1 x"}
    about = {"name": "a", "day": "b", "commit": "c", "torch": "d", "machine": "e", "piece": "f"}
    page = gpu.page([about | found, work])
    assert "failed: tests/a.py::one[x]" in page
    assert "| W1 x | 1 | 50% | 2.00 | 4 | 1.0e-03 (too large) |" in page
