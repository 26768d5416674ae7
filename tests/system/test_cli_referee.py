"""fedloom referee: three strangers' methods, going on after a stop, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedloom.cli.__main__ import cli
from fedloom.core.interrupts import TimeUpError
from fedloom.experiment.experiment import Experiment
from support.schema import check
from tiny import Fedloom

STRANGERS = Path(__file__).parents[2] / "examples" / "referee" / "strangers.py"
SMALL = ("digits", "data.clients=20", "data.alpha=0.1", "cohort=4", "local.epochs=1")
QUICK = (*SMALL, "rounds=2", "--trials", "2", "--seeds", "4", "--quiet")


def verdicts(found: dict[str, Any]) -> dict[str, str]:
    return {c["against"]: c["verdict"] for cell in found["cells"] for c in cell["comparisons"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "verdict"), [("Calm", "undecided"), ("Shy", "worse"), ("Anchored", "no difference")]
)
def test_a_strangers_method_gets_the_right_verdict(
    name: str, verdict: str, fedloom: Fedloom
) -> None:
    words = (f"{STRANGERS}:{name}", "--against", "fedavg", *SMALL, "rounds=30")
    page = fedloom("referee", *words, "--trials", "5", "--seeds", "9", "--quiet").stdout
    found = check(
        "referee", Path(f"runs/referee-strangers.py-{name}/referee.json").read_text("utf-8")
    )
    assert verdicts(found) == {"fedavg": verdict}
    alike = [["strangers.py:Anchored", "fedavg"]] if name == "Anchored" else []
    assert found["alike"] == alike and ("same algorithm" in page) == bool(alike)
    idle = ["algorithm.mu"] if alike else []
    assert found["cells"][0]["methods"][0]["without_effect"] == idle
    assert ("algorithm.mu has no effect" in page) == bool(alike)
    assert page == Path(f"runs/referee-strangers.py-{name}/referee.md").read_text("utf-8")
    assert (
        Path(f"runs/referee-strangers.py-{name}/referee.png").is_file() and "(referee.png)" in page
    )


@pytest.mark.slow
def test_everybody_has_the_same_trials_and_seeds(fedloom: Fedloom) -> None:
    said = fedloom("referee", "fedprox", "--against", "fedavg,scaffold", *QUICK, "--json")
    found = check("referee", said.stdout)
    (cell,) = found["cells"]
    assert {m["trials"] for m in cell["methods"]} == {2} and cell["seeds"] == 4
    assert {len(m["values"]) for m in cell["methods"]} == {4}
    assert {m["first_seed"] for m in cell["methods"]} == {1}
    assert found["looks"] == [4] and [row["label"] for row in cell["rows"]] == [
        *("FedProx", "FedAvg", "SCAFFOLD")
    ]
    mine, theirs = (m["values"] for m in cell["methods"][:2])
    gaps = [a - b for a, b in zip(mine, theirs, strict=True)]
    assert cell["comparisons"][0]["difference"] == pytest.approx(sum(gaps) / 4)


@pytest.mark.slow
def test_the_same_command_goes_on(fedloom: Fedloom, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("referee", "fedprox", "--against", "fedavg", *QUICK, "--out", "here")
    run, calls = Experiment.run, list[int]()

    def stopped(self: Experiment, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return run(self, *args, **kwargs)

    monkeypatch.setattr(Experiment, "run", stopped)
    done = CliRunner().invoke(cli, words, prog_name="fedloom")
    assert done.exit_code == 130 and "run the same command again to resume" in done.output
    monkeypatch.setattr(Experiment, "run", run)
    page = fedloom(*words).stdout
    before = {file: file.stat().st_mtime_ns for file in Path("here").glob("*/*/summary.json")}
    assert len(before) == 2 * (2 * 4 + 4), "two trials on four splits of 140 rows, four seeds"
    assert fedloom(*words).stdout == page
    assert {file: file.stat().st_mtime_ns for file in before} == before, "nothing runs again"
    said = fedloom(*words[:-1], "here", "--delta", "0.5", code=2).output
    assert "holds a study of something else" in said and "choose another --out" in said


@pytest.mark.slow
def test_time_that_is_up_keeps_what_is_whole(
    fedloom: Fedloom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seeds count of which every method of a cell has a run."""
    run, calls = Experiment.run, list[int]()

    def slow(self: Experiment, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 20:  # 2 x 2 trials on 4 splits, the first seed of both, the second of one
            raise TimeUpError
        return run(self, *args, **kwargs)

    monkeypatch.setattr(Experiment, "run", slow)
    words = ("referee", "fedprox", "--against", "fedavg", *QUICK, "--json")
    done = fedloom(*words)
    found = check("referee", done.stdout)
    assert found["ended"] == "time" and "run the same command again to resume" in done.stderr
    assert found["cells"][0]["seeds"] == 1 and verdicts(found) == {"fedavg": "undecided"}
    assert json.loads(fedloom(*words).stdout)["ended"] == "plan"


def test_too_little_time_says_what_it_would_take(fedloom: Fedloom) -> None:
    said = fedloom(
        "referee", "fedprox", "--against", "fedavg", *QUICK, "--minutes", "0.0001", code=2
    )
    (line,) = said.stderr.splitlines()
    assert "minutes are too few to tune all methods and run one seed of each" in line
    assert "give --minutes 1" in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("algorithm=fedprox", "--against", "fedavg"), "give the method first"),
        (("fedprx", "--against", "fedavg"), "did you mean 'fedprox'"),
        (("no.py:Mine", "--against", "fedavg"), "does not exist"),
        (("fedprox", "--against", "fedavg", "digits", "local.lr=x"), "local.lr"),
        (("fedprox", "--against", "fedavg", "nothing"), "nothing"),
        (("fedprox", "--against", "fedavg", "--tune", "algorithm.nu=1,2"), "no method has"),
    ],
)
def test_what_is_asked_wrongly_is_one_line(
    words: tuple[str, ...], said: str, fedloom: Fedloom
) -> None:
    (line,) = fedloom("referee", *words, code=2).stderr.splitlines()
    assert line.startswith("error: ") and said in line


@pytest.mark.slow
def test_a_method_that_fails_is_named_and_not_judged(fedloom: Fedloom) -> None:
    words = ("fedprox", "--against", "fedavg local.lr=1e30,fedavg", *QUICK)
    page = fedloom("referee", *words).stdout
    found = check("referee", Path("runs/referee-fedprox/referee.json").read_text("utf-8"))
    pairs = {c["against"]: c for c in found["cells"][0]["comparisons"]}
    assert pairs["fedavg local.lr=1e30"]["failures"] == 4 and pairs["fedavg"]["failures"] == 0
    assert pairs["fedavg local.lr=1e30"]["verdict"] == "undecided"
    assert pairs["fedavg local.lr=1e30"]["difference"] is None
    assert "4 runs of it and of fedavg local.lr=1e30 failed" in page


@pytest.mark.slow
def test_codecs_are_compared_too(fedloom: Fedloom) -> None:
    words = ("topk:0.1", "--against", "topk:0.5", "--vary", "compress", *QUICK, "--json")
    found = check("referee", fedloom("referee", *words).stdout)
    methods = found["cells"][0]["methods"]
    assert [m["settings"]["compress"] for m in methods] == ["topk:0.1", "topk:0.5"]
    assert found["cells"][0]["rows"][0]["bytes"] < found["cells"][0]["rows"][1]["bytes"]


def test_the_json_of_a_comparison_is_as_its_schema_says(fedloom: Fedloom) -> None:
    for method in ("fedavg", "fedprox"):
        words = (*SMALL, "rounds=2", f"algorithm={method}", "--quiet", "--out", f"runs/{method}")
        fedloom("run", *words)
    rows = check("compare", fedloom("compare", "runs", "--json", "-").stdout)
    assert [row["label"] for row in rows] == ["FedAvg", "FedProx"]
    assert rows[1]["against"] == "FedAvg" and rows[0]["difference"] is None
