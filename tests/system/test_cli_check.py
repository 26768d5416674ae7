"""`fedloom check`: a table, a paragraph for every failure, and one line for what is no part."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedloom.checks
from tiny import Fedloom

GOOD = """
from __future__ import annotations

from fedloom.algorithm import LocalSGD, hyper
from fedloom.compression.codecs import TopK
from fedloom.wrappers import Prox
from helper import factor


class Damped(LocalSGD):
    share: float = hyper(0.5, low=0, high=1, source="ours")

    def direction(self, x, loc, msg, mem, grad, job):
        return factor * self.share * grad(x), loc


class _Hidden(LocalSGD):
    sent = "nothing"


sparse = TopK(ratio=0.3)
"""
BAD = """
from fedloom import LocalSGD


class Steep(LocalSGD):
    def direction(self, x, loc, msg, mem, grad, job):
        g = grad(x)
        if g.norm() > 1:
            g = g / g.norm()
        return g, loc
"""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without processes, whose start takes seconds."""
    monkeypatch.setattr(fedloom.checks.check, "__defaults__", (("vectorised:3",), "", None, None))


def write(name: str, text: str) -> str:
    Path(name).write_text(text)
    return name


@pytest.mark.slow
def test_parts_that_are_right(fedloom: Fedloom, quick: None) -> None:
    write("helper.py", "factor = 1.5\n")
    output = fedloom("check", write("good.py", GOOD)).output
    assert "Damped (algorithm, good.py)" in output and "sparse (codec, good.py)" in output
    assert "_Hidden" not in output and "Prox" not in output and "FAILED" not in output
    lines = [line.split() for line in output.splitlines()]
    engines = [line for line in lines if line[:2] == ["engine", "vectorised:3"]]
    assert len(engines) == 2
    assert all(line[2] == "ok" and float(line[3]) >= 0 for line in engines)


OWN = """
import torch
from fedloom import LocalSGD
from fedloom.data import from_clients


class Small(LocalSGD):
    def client_init(self, x):
        x.reshape(8)
        return super().client_init(x)


def net():
    return torch.nn.Linear(3, 2)


def clients():
    return from_clients([(torch.randn(5, 3), torch.arange(5) % 2) for _ in range(3)])
"""


@pytest.mark.slow
def test_one_part_of_a_file_and_a_model_and_data_of_it(fedloom: Fedloom, quick: None) -> None:
    write("helper.py", "factor = 1.5\n")
    output = fedloom("check", write("good.py", GOOD) + ":sparse").output
    assert "sparse (codec, good.py)" in output and "Damped" not in output
    own = write("own.py", OWN)
    output = fedloom("check", own, "--model", "net", "--data", "clients").output
    assert "Small (algorithm, own.py)" in output and "FAILED" not in output
    output = fedloom("check", own, "--model", "nett", "--data", "clients", code=2).output
    assert "has no 'nett'; did you mean 'net'?" in output


def test_a_failure_is_a_paragraph_and_exit_code_1(fedloom: Fedloom, quick: None) -> None:
    output = fedloom("check", write("bad.py", BAD), code=1).output
    row = next(line for line in output.splitlines() if line.startswith("  runs "))
    assert row.split()[1] == "FAILED"
    text = " ".join(output.split())
    assert "line 8, in direction() (`if g.norm() > 1:`): direction() branches" in text
    assert "choose with torch.where, or shorten with fedloom.core.vector.clip" in text
    assert "error: one check of 'bad.py' failed" in output


@pytest.mark.slow
def test_the_algorithm_of_the_docs_passes(fedloom: Fedloom, quick: None) -> None:
    page = (Path(__file__).parents[2] / "docs" / "write-a-part.md").read_text()
    blocks = [part.partition("```")[0] for part in page.split("```python\n")[1:]]
    first = next(block for block in blocks if block.startswith("# my_algorithm.py"))
    output = fedloom("check", write("my_algorithm.py", first)).output
    assert "Recall (algorithm" in output and "FAILED" not in output


@pytest.mark.slow
def test_workers_get_what_the_file_defines_and_imports(fedloom: Fedloom) -> None:
    write("helper.py", "factor = 1.5\n")
    output = fedloom("check", write("good.py", GOOD) + ":Damped").output
    row = next(line for line in output.splitlines() if line.strip().startswith("engine workers:2"))
    assert row.split()[2] == "ok"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import fedlooom\n", "line 1: ModuleNotFoundError: No module named 'fedlooom'"),
        ("x = 1\nclass A(:\n    pass\n", "line 2: SyntaxError: invalid syntax"),
        ("x = 1\n\nraise SystemExit('no')\n", "line 3: SystemExit: no"),
        ("x = 1\n", "defines nothing that can be checked"),
        ("from fedloom import FedAvg\n", "defines nothing that can be checked"),
        (
            "from fedloom import LocalSGD\nclass A(LocalSGD):\n    f: object\n",
            "A needs a value for 'f' that cannot be guessed; write `mine = A(f=...)`",
        ),
        (
            "from fedloom.compression.codecs.base import Codec\nclass A(Codec):\n"
            "    def pack(self, m):\n        return b''\n",
            "A cannot be made: it has no decode, encode; write them",
        ),
        (
            "from fedloom.algorithm import Algorithm\nclass A(Algorithm):\n    pass\n",
            "A cannot be made: it has no broadcast, client_init, direction, finish, model, probe,",
        ),
    ],
)
def test_a_file_that_cannot_be_checked(fedloom: Fedloom, text: str, words: str) -> None:
    assert words in fedloom("check", write("mine.py", text), code=2).output


def test_a_file_or_a_name_that_is_not_there(fedloom: Fedloom) -> None:
    assert "'mine.py' does not exist" in fedloom("check", "mine.py", code=2).output
    assert "'mine.py' does not exist" in fedloom("check", "mine.py:A", code=2).output
    assert "'.' is a folder; give a Python file" in fedloom("check", ".", code=2).output
    assert "its name must end in .py" in fedloom("check", write("mine.txt", ""), code=2).output
    output = fedloom("check", write("bad.py", BAD) + ":Steap", code=2).output
    assert "has no part 'Steap'; did you mean 'Steep'?" in output


def test_loading_a_file_leaves_nothing_behind(fedloom: Fedloom) -> None:
    import sys

    before = list(sys.path)
    fedloom("check", write("mine.py", "x = 1\n"), code=2)
    assert list(sys.path) == before and "mine" not in sys.modules
