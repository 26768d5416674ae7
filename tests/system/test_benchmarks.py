"""`make gpu` on the stand-in for a GPU, and `nox -s soak` in small: both say what failed."""

import json
import os
import subprocess
import sys

import pytest
import torch

from fedloom import Local
from fedloom.compression.codecs import Dense
from fedloom.models import resnet8
from support.folders import record
from support.scripts import ROOT
from tiny import environment

BENCHMARKS = ROOT / "benchmarks"


def module_of(name, monkeypatch):
    """A script of the benchmarks, as a module; it and what it imports are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield __import__(name)
    for other in ("gpu", "gpu_loops", "folder_parts", "rounds", "loops", "soak", "messages"):
        sys.modules.pop(other, None)


@pytest.fixture
def gpu(monkeypatch):
    yield from module_of("gpu", monkeypatch)


@pytest.fixture
def parts(monkeypatch):
    yield from module_of("folder_parts", monkeypatch)


@pytest.fixture
def soak(monkeypatch):
    yield from module_of("soak", monkeypatch)


# -------------------------------------------------------------------------------------------- gpu
@pytest.mark.slow
def test_every_piece_is_done_once_and_the_record_has_a_page(gpu, monkeypatch, tmp_path, capsys):
    calls = []

    def run(device, *words, limit=1.0):
        calls.append((device, *words))
        file = words[-1]
        return f"{file}::one\n{file}::two[x y]\n" if "--collect-only" in words else "2 passed"

    few = {"clients": 3, "each": 4, "cohort": 2, "local": Local(steps=1, batch=2)}
    works = {name: gpu.WORKS[name]._replace(**few) for name in ("P1", "W1")}
    works["P1"] = works["P1"]._replace(model=resnet8)
    for name, value in (("pytest", run), ("WORKS", works), ("ROUNDS", 1)):
        monkeypatch.setattr(gpu, name, value)
    words = ["--device", "pretend", "--out", str(tmp_path)]
    assert gpu.main([*words, "--minutes", "0.5"]) == 3  # there is no time for the first one
    assert "14 pieces are left; run the same command again to resume" in capsys.readouterr().out
    real = gpu.rounds

    def stopped(of, engine, *rest):
        if engine == "vectorised":
            raise KeyboardInterrupt
        return real(of, engine, *rest)

    monkeypatch.setattr(gpu, "rounds", stopped)
    with pytest.raises(KeyboardInterrupt):
        gpu.main(words)
    monkeypatch.setattr(gpu, "rounds", real)
    outcomes = [RuntimeError("CUDA error: an illegal access"), RuntimeError("no graph")]

    def fails(of, engine, *rest):
        if engine == "streams" and outcomes:
            raise outcomes.pop(0)
        return real(of, engine, *rest)

    monkeypatch.setattr(gpu, "rounds", fails)
    assert gpu.main(words) == 3  # another process goes on behind an error of CUDA
    assert gpu.main(words) == 1
    lines = [json.loads(x) for x in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    ways = ["by hand, eager, full", "by hand, vmap, full"]
    ways += [f"full, {engine}" for engine in ("auto", "serial", "vectorised", "streams")]
    pieces = [f"{work} {way}" for work in works for way in ways]
    assert [x["piece"] for x in lines] == [*pieces, "contract 1 of 2", "contract 2 of 2"]
    lines_asked = [("pretend", "-rf", f"{file}::one", f"{file}::two[x y]") for file in gpu.FILES]
    assert [x for x in calls if "-rf" in x] == lines_asked
    failed = [line["piece"] for line in lines if "error" in line]
    assert failed == ["P1 full, streams", "W1 full, streams"]
    for line in lines[:-2]:
        if "by hand" in line["piece"]:
            assert line["s"] > 0
        elif "error" not in line:
            assert (line["difference"] or 0.0) <= gpu.BOUND and line["s"] > 0
            assert 3 <= line["reads"] <= 8 and line["took"]
    page = (tmp_path / "README.md").read_text()
    assert "Contract: of 4 tests 4 passed, 0 left out; failed: none" in page
    assert page.count("\n| W1") == page.count("\n| P1") == 6
    assert "| W1 full, streams | failed: RuntimeError: no graph |" in page


@pytest.mark.slow
def test_the_stand_in_is_not_registered_in_the_process_that_measures_a_gpu():
    """It would break every backward pass on CUDA there."""
    line = [sys.executable, "-c", "import gpu, torch; torch.device('pretend')"]
    given = {**os.environ, "PYTHONPATH": str(BENCHMARKS)}
    done = subprocess.run(line, cwd=ROOT, env=given, capture_output=True, text=True)
    assert done.returncode == 1 and "start of device string: pretend" in done.stderr


def test_no_process_of_the_contract_runs_tests_of_two_files(gpu, monkeypatch):
    files = ("tests/a.py", "tests/b.py")
    monkeypatch.setattr(gpu, "pytest", lambda device, *words: f"{words[-1]}::one\n")
    monkeypatch.setattr(gpu, "FILES", files)
    parts = [x.args[1] for name, x in gpu.pieces("cuda", 0.0).items() if "contract" in name]
    assert parts == [[f"{file}::one"] for file in files]


def test_a_test_that_fails_and_a_difference_that_is_too_large_are_told(gpu, monkeypatch):
    said = "FAILED tests/a.py::one[x] - assert 0\n1 failed, 2 passed, 1 skipped in 3 s\n"
    monkeypatch.setattr(gpu, "pytest", lambda *words, limit: said)
    counted = gpu.contract("cuda", ["one", "two", "three", "four"], 0.0)
    assert counted == {"tests": 4, "passed": 2, "skipped": 1, "failed": ["tests/a.py::one[x]"]}
    assert gpu.contract("cuda", ["one"] * 9, 0.0)["failed"][1].startswith("FAILED tests/a.py")
    work = {"s": 1.0, "busy": 0.5, "peak": 2.0, "reads": 4, "difference": 1e-3, "piece": "W1 x"}
    about = {"name": "a", "day": "b", "commit": "c", "torch": "d", "machine": "e", "piece": "f"}
    page = gpu.page([about | counted, work])
    assert "failed: tests/a.py::one[x]" in page
    assert "| W1 x | 1 | - | 50% | 2.00 | 4 | 1.0e-03 (too large) |" in page  # no loop by hand


def test_a_folder_comes_back_from_its_parts(parts, tmp_path, monkeypatch, capsys):
    (tmp_path / "data" / "inside").mkdir(parents=True)
    content = os.urandom(3000)
    (tmp_path / "data" / "inside" / "a.bin").write_bytes(content)
    monkeypatch.setattr(parts, "SIZE", 1000)
    places = [str(tmp_path / name) for name in ("data", "parts", "again")]
    assert parts.main(["pack", *places[:2]]) == parts.main(["unpack", *places[1:]]) == 0
    files = [*(tmp_path / "parts").iterdir()]
    assert 3 < len(files) < 6 and all(file.stat().st_size <= 1000 for file in files)
    assert (tmp_path / "again" / "data" / "inside" / "a.bin").read_bytes() == content
    (tmp_path / "parts" / "mine.txt").write_text("mine")
    for words in (["pack", *places[:2]], ["unpack", str(tmp_path / "none"), places[2]]):
        with pytest.raises(SystemExit, match="2"):
            parts.main(words)
    assert (
        tmp_path / "parts" / "mine.txt"
    ).is_file() and "name a folder" in capsys.readouterr().err


def test_a_machine_without_a_gpu_is_told_so_in_one_line(gpu, capsys):
    with pytest.raises(SystemExit, match="2"):
        gpu.main(["--device", "cuda:77"])
    assert "device = 'cuda:77' cannot be used here; take auto, cpu" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------- soak
@pytest.mark.slow
def test_a_small_soak_kills_and_loses_nothing(tmp_path):
    words = ["--kills", "2", "--messages", "2000", "--engines", "serial"]
    line = [sys.executable, str(BENCHMARKS / "soak.py"), "--record", str(tmp_path / "soak.json")]
    given = {"env": environment(), "capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run([*line, *words], **given)
    assert done.returncode == 0 and "nothing lost" in done.stdout, done.stderr
    counts = record(tmp_path, "soak")["counts"]
    assert counts["kills"] == {"serial": 2} and sum(counts["messages"].values()) == 2000
    assert counts["runs"] >= 1 and 1000 < counts["refused"] < 2000


class Naive(Dense):
    """Reads as this release did before: what is not finite gets through."""

    def read(self, raw, layout, dtype):
        return self.decode(self.unpack(raw, layout), layout, dtype)


def test_what_gets_through_is_a_loss(soak, monkeypatch, tmp_path):
    monkeypatch.setattr(soak, "codecs", lambda: {"naive": Naive()})
    words = ["--kills", "0", "--messages", "5000", "--record", str(tmp_path / "r.json")]
    assert soak.main(words) == 1
    counts = soak.Counts(**record(tmp_path, "r")["counts"])
    assert counts.loss.startswith("naive, torch.float") and "LOST" in counts.line()


@pytest.mark.parametrize("kind", ["state", "masks", "theory", "both ways"])
def test_every_kind_of_run_of_a_soak_remembers_something(kind, soak, tmp_path):
    torch.set_num_threads(1)
    result = soak.experiment("serial", kind).run(tmp_path / "run")
    assert len(result.history) == soak.ROUNDS
    assert any((tmp_path / "run").rglob("memory.json"))
