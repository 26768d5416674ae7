"""`fedloom demo`: ends in a table and a report, and running it twice is no error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tiny import Fedloom

LABELS = ["FedAvg", "FedAvgM", "SCAFFOLD", "FedACG"]


def rows(output: str) -> list[str]:
    """The first words of the table's lines."""
    lines = output.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("---")) + 1
    return [line.split()[0] for line in lines[first : first + len(LABELS)]]


@pytest.fixture
def unillustrated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedloom.cli.demo._illustrate", lambda out, names: None)


@pytest.mark.usefixtures("unillustrated")
def test_the_demo_again_takes_what_is_there(fedloom: Fedloom) -> None:
    first = fedloom("demo", "--rounds", 2, "--seeds", 1)
    assert rows(first.output) == LABELS
    logs = {p: p.stat().st_mtime_ns for p in Path("runs/demo").glob("*/rounds.jsonl")}
    assert len(logs) == 4
    again = fedloom("demo", "--rounds", 2, "--seeds", 1)
    assert rows(again.output) == LABELS
    assert again.output.count("is there") == 4
    assert {p: p.stat().st_mtime_ns for p in logs} == logs


@pytest.mark.usefixtures("unillustrated")
def test_other_settings_go_to_another_folder(fedloom: Fedloom) -> None:
    fedloom("demo", "--rounds", 2, "--seeds", 1)
    text = fedloom("demo", "--rounds", 1, "--seeds", 1).output
    assert "runs/demo-2" in text
    assert len(list(Path("runs/demo-2").glob("*/summary.json"))) == 4
    assert len(list(Path("runs/demo").glob("*/summary.json"))) == 4


@pytest.mark.usefixtures("unillustrated")
def test_a_run_that_was_stopped_is_gone_on_with(fedloom: Fedloom) -> None:
    fedloom("demo", "--rounds", 2, "--seeds", 1)
    Path("runs/demo/fedacg-seed0/summary.json").unlink()
    text = fedloom("demo", "--rounds", 2, "--seeds", 1).output
    assert text.count("is there") == 3
    found = json.loads(Path("runs/demo/fedacg-seed0/summary.json").read_text())
    assert found["finished"]


@pytest.mark.slow
def test_the_demo_ends_in_a_report(fedloom: Fedloom) -> None:
    text = fedloom("demo", "--rounds", 3, "--seeds", 2).output
    assert "report" in text
    page = Path("runs/demo/report.html").read_text()
    assert all(label in page for label in LABELS)
    assert Path("runs/demo/pictures/accuracy_by_round.png").exists()
