"""`fedloom check`, `replay` and `init`: what helps the author of a part."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

import fedloom.checks
from fedloom.cli.__main__ import cli
from fedloom.config import from_run
from support.folders import record
from support.schema import check as schema

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
NEEDS = "from fedloom import LocalSGD\nclass A(LocalSGD):\n    f: object\n"
HALF = "from fedloom.compression.codecs.base import Codec\nclass A(Codec):\n"
HALF += "    def pack(self, m):\n        return b''\n"


@pytest.fixture
def quick(monkeypatch):
    """Without processes, whose start takes seconds."""
    monkeypatch.setattr(fedloom.checks.check, "__defaults__", (("vectorised:3",), "", None, None))


def write(name, text):
    Path("helper.py").write_text("factor = 1.5\n")
    Path(name).write_text(text)
    return name


@pytest.mark.slow
def test_parts_that_are_right(fedloom, quick):
    output = fedloom("check", write("good.py", GOOD)).output
    assert "Damped (algorithm)" in output and "sparse (codec)" in output
    assert "_Hidden" not in output and "Prox" not in output and "FAILED" not in output
    lines = [line.split() for line in output.splitlines()]
    engines = [line for line in lines if line[:2] == ["engine", "vectorised:3"]]
    assert len(engines) == 2
    assert all(line[2] == "ok" and float(line[3]) >= 0 for line in engines)
    (part,) = schema("check", fedloom("check", "good.py:sparse", "--json").stdout)["parts"]
    assert part["part"] == "sparse" and part["passed"]
    own = ("check", write("own.py", OWN), "--data", "clients", "--model")
    output = fedloom(*own, "net").output
    assert "Small (algorithm)" in output and "FAILED" not in output
    assert "has no 'nett'; did you mean 'net'?" in fedloom(*own, "nett", code=2).output


def test_a_failure_is_a_paragraph_and_exit_code_1(fedloom, quick):
    output = fedloom("check", write("bad.py", BAD), code=1).output
    row = next(line for line in output.splitlines() if line.startswith("  runs "))
    assert row.split()[1] == "FAILED"
    text = " ".join(output.split())
    assert "line 8, in direction() (`if g.norm() > 1:`): direction() branches" in text
    assert "choose with torch.where, or shorten with fedloom.core.vector.clip" in text
    assert "error: one check of 'bad.py' failed" in output
    end = fedloom("check", "bad.py", "--json", code=1)
    (part,) = schema("check", end.stdout)["parts"]
    failed = [c for c in part["outcomes"] if c["passed"] is False]
    assert (
        not part["passed"] and failed and all(c["why"] for c in failed) and "failed" in end.stderr
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import fedlooom\n", "line 1: ModuleNotFoundError: No module named 'fedlooom'"),
        ("x = 1\nclass A(:\n    pass\n", "line 2: SyntaxError: invalid syntax"),
        ("x = 1\n\nraise SystemExit('no')\n", "line 3: SystemExit: no"),
        ("from fedloom import FedAvg\n", "defines nothing that can be checked"),
        (NEEDS, "A: missing a required argument: 'f'; give arguments by name, such as f=... Write"),
        (HALF, "A cannot be made: it has no decode, encode; write them"),
    ],
)
def test_a_file_that_cannot_be_checked(fedloom, text, words):
    path = list(sys.path)
    assert words in fedloom("check", write("mine.py", text), code=2).output
    assert sys.path == path and "mine" not in sys.modules, "loading it leaves nothing behind"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("mine.py", "'mine.py' does not exist"),
        ("mine.py:A", "'mine.py' does not exist"),
        (".", "'.' is a folder; give a Python file"),
        ("mine.txt", "its name must end in .py"),
        ("bad.py:Steap", "has no part 'Steap'; did you mean 'Steep'?"),
    ],
)
def test_a_file_or_a_name_that_is_not_there(words, said, fedloom):
    write("bad.py", BAD)
    write("mine.txt", "")
    assert said in fedloom("check", words, code=2).output


# ------------------------------------------------------------------------------------------ replay


@pytest.fixture
def run(fedloom):
    write("mine.py", GOOD)
    words = "data.partition.clients=6 cohort=3 local.epochs=1 rounds=4 engine=serial"
    words += " checkpoint.every_rounds=2 checkpoint.keep=1 algorithm=mine.py:Damped"
    fedloom("run", "digits", *words.split(), "--quiet", "--out", "run")
    return "run"


def test_a_round_and_a_client_are_replayed(fedloom, run):
    content = lambda: {p: p.read_bytes() for p in Path(run).rglob("*") if p.is_file()}
    before = content()
    end = fedloom("replay", run, "--round", 3)
    assert "round 3 is as in the log" in end.stdout and "repeats rounds 1 to 3" in end.stderr
    who = end.stdout.partition("clients")[2].splitlines()[0].strip().split(", ")
    assert len(who) == 3
    page = fedloom("replay", run, "--round", 3, "--client", who[1]).stdout
    assert "with the model's move" in page and content() == before
    steps = [line.split() for line in page.splitlines() if line.split()[:1] in (["1"], ["2"])]
    with from_run(run, own=True).experiment().replay(run, 3) as replay:
        replay.go()
        trace = replay.client(int(who[1]))
    assert [line[-2:] for line in steps] == [
        [f"{s.loss:.4g}", f"{s.norm:.4g}"] for s in trace.steps[:2]
    ]


def test_blame_ranks_the_clients(fedloom):
    words = "attack=sign_flip attack.share=0.1 attack.strength=5 rounds=2 cohort=10"
    words += " data.partition.clients=10 data.partition.alpha=10"
    fedloom("run", "digits", *words.split(), "--quiet", "--out", "run")
    lines = fedloom("replay", "run", "--round", 2, "--blame").stdout.splitlines()
    table = [line.split() for line in lines if line[:2] == "  " and line.split()[0].isdigit()]
    assert len(table) == 10 and float(table[0][4]) < 0  # its cosine
    assert float(table[0][5]) == min(float(row[5]) for row in table)


def test_what_cannot_be_replayed_is_one_line(fedloom, run):
    for words, said in (
        ("--round 5", "round 5 of 'run' has not been run; it has 4 rounds"),
        ("--round 2 --client nobody", "client nobody did not train in round 2; those that did: "),
        ("--round 2 local.lr=1", "local.lr cannot change"),
    ):
        assert said in fedloom("replay", run, *words.split(), code=2).stderr
    assert "not a run directory" in fedloom("replay", "nowhere", "--round", 2, code=1).stderr
    write("mine.py", f"{GOOD}\n# changed\n")
    assert "has changed since" in fedloom("replay", run, "--round", 1, code=1).stderr
    assert "as in the log" in fedloom("replay", run, "--round", 1, "--changed-code").stdout


# -------------------------------------------------------------------------------------------- init
@pytest.mark.slow
def test_the_starter_runs_at_once(fedloom, monkeypatch, capsys):
    fedloom("init", "study")
    monkeypatch.chdir("study")
    fedloom("check", "my_method.py")
    text = fedloom("run", "config.toml", "rounds=8", "--out", "runs/config").output
    assert "4 with 77 to 199 samples (Gini 0.21), label distance 0.33 of 1" in text
    assert record("runs/config")["last"]["value"] > 0.7
    assert "label distance" not in fedloom("data", "partition", "config.toml").output
    # the same settings with the data and the method of its files
    own = ("data=my_data.py:load", "algorithm=my_method.py:HeavyServer", "rounds=8")
    fedloom("run", "config.toml", *own, "--out", "runs/own")
    text = Path("runs/own/config.toml").read_text()
    assert "my_data.py:load" in text and 'label = "HeavyServer"' in text
    settings = Path("config.toml")
    settings.write_text(settings.read_text().replace("rounds = 30", "rounds = 8"))
    monkeypatch.syspath_prepend(".")
    for _ in range(2):  # the second time everything is there
        runpy.run_path("train.py")
    for module in ("my_data", "my_method"):
        sys.modules.pop(module)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == lines[2:] and lines[1].startswith("HeavyServer: accuracy 0.")
    table = fedloom("compare", "runs").output
    assert "HeavyServer" in table and "algorithm.beta" in table
    assert "FedAvg (from Python)" in table and "data.input_shape" not in table


def test_a_starter_is_written_into_an_empty_folder_only(fedloom):
    assert "fedloom run config.toml" in fedloom("init", "study").output
    assert "is not empty" in fedloom("init", "study", code=2).output
    for script in Path("study").glob("*.py"):
        compile(script.read_text(), script.name, "exec")


@pytest.mark.parametrize(
    "shell", ["zsh", "fish"]
)  # bash asks for its version, which may be missing
def test_a_shell_gets_its_completion(shell):
    words = os.environ | {"_FEDLOOM_COMPLETE": f"{shell}_source"}
    code = "from fedloom.cli.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=words, capture_output=True)
    assert done.returncode == 0 and b"_FEDLOOM_COMPLETE" in done.stdout, done.stderr


def test_commands_options_and_names_are_completed():
    complete = ShellComplete(cli, {}, "fedloom", "_FEDLOOM_COMPLETE").get_completions
    offered = lambda given, word: {item.value for item in complete(given, word)}
    assert offered([], "re") == {"referee", "replay", "report"}
    assert offered(["compare"], "--l") == {"--latex"}
