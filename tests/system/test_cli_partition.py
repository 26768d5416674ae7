"""`fedloom data partition`, and partitions, test sets and churn from the command line."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import Result

from fedloom.config import resolve
from fedloom.data import measure
from tiny import Fedloom


def rows(result: Result) -> dict[str, str]:
    """{name: value} of the table."""
    lines = [x.strip() for x in result.output.splitlines()[1:] if x.startswith("  ")]
    return {name.strip(): rest.strip() for name, _, rest in (x.partition("  ") for x in lines)}


def test_the_measures_are_printed(fedloom: Fedloom) -> None:
    result = fedloom("data", "partition", "digits", "data.alpha=0.1", "tests=matched", "seed=4")
    assert result.output.startswith("digits: dirichlet (alpha 0.1, clients 50), seed 4\n")
    found = measure(resolve("digits", ["data.alpha=0.1", "tests=matched", "seed=4"]).data())
    shown = rows(result)
    assert shown["clients"] == "50"
    assert shown["samples"] == "1,438, each held once"
    assert shown["samples per client"] == "28 to 29, median 29"
    assert found.labels is not None and found.tests is not None
    assert shown["two clients, distance"].startswith(f"{found.labels.pairs:.3f} ")
    assert shown["training and test labels, distance"] == f"{found.tests.distance:.3f}"
    lines = result.output.splitlines()
    first = lines.index(next(x for x in lines if x.split()[:2] == ["client", "samples"]))
    assert lines[first].endswith("a bar for each class, 0 to 9")
    assert [len(x.split()[2]) for x in lines[first + 1 : first + 21]] == 20 * [10]
    assert "the others: --plot" in lines[first + 21]
    assert not list(Path().iterdir()), "nothing is written"


def test_a_partition_by_its_short_name_and_options(fedloom: Fedloom) -> None:
    shown = rows(fedloom("data", "partition", "partition=pathological", "partition.classes=2"))
    assert shown["classes per client"] in ("2 of 10", "1 to 2, median 2 of 10")
    assert "held more than once" in shown["samples"]
    shown = rows(
        fedloom(
            "data",
            "partition",
            "partition=class_groups",
            "partition.groups=[[0,9],[1,2,3,4,5,6,7,8]]",
        )
    )
    assert shown["classes per client"] == "2 to 8, median 5 of 10"


def test_lists_are_saved_and_used_again(fedloom: Fedloom) -> None:
    saved = fedloom("data", "partition", "tests=matched", "--save", "new/split.npz")
    assert "partition=lists partition.file=new/split.npz" in saved.output
    again = fedloom(
        "data",
        "partition",
        "partition=lists",
        "partition.file=new/split.npz",
        "tests=matched",
        "seed=7",
    )
    one, other = rows(saved), rows(again)
    assert {k: v for k, v in one.items() if not k.startswith("lists in")} == other


def test_matched_test_sets_are_what_clients_are_measured_on(fedloom: Fedloom) -> None:
    fedloom("run", "tests=matched", "rounds=2", "--out", "a", "--quiet")
    assert tomllib.loads(Path("a/config.toml").read_text())["data"]["tests"] == "matched"
    clients = json.loads(Path("a/clients.json").read_text())
    assert clients["basis"] == "own test sets"
    assert len(clients["values"]) == 50
    fedloom("run", "a/config.toml", "tests=none", "--out", "b", "--quiet")
    assert "tests" not in tomllib.loads(Path("b/config.toml").read_text())["data"]


def test_a_changing_set_of_clients_is_run_and_resumed(fedloom: Fedloom) -> None:
    change = ("churn.active=25", "churn.every=2", "churn.forget=true", "cohort=5")
    fedloom("run", "algorithm=scaffold", *change, "rounds=3", "--out", "a", "--quiet")
    wanted = {"active": 25, "every": 2, "replace": 0.5, "forget": True}
    assert tomllib.loads(Path("a/config.toml").read_text())["churn"] == wanted
    fedloom("run", "--resume", "a", "rounds=5", "--quiet")
    fedloom("run", "algorithm=scaffold", *change, "rounds=5", "--out", "b", "--quiet")
    a, b = ((Path(x) / "rounds.jsonl").read_text().splitlines() for x in ("a", "b"))
    assert [json.loads(x)["test_accuracy"] for x in a] == [
        json.loads(x)["test_accuracy"] for x in b
    ]
    fedloom("run", *change, "churn.replace=none", "rounds=2", "--out", "c", "--quiet")
    assert tomllib.loads(Path("c/config.toml").read_text())["churn"]["replace"] == "none"


@pytest.mark.slow
def test_a_picture_is_drawn(fedloom: Fedloom) -> None:
    result = fedloom("data", "partition", "digits", "--plot", "new/a.png")
    assert "picture in new/a.png" in result.output
    assert Path("new/a.png").read_bytes()[:4] == b"\x89PNG"


def test_clients_are_called_by_their_names(fedloom: Fedloom) -> None:
    pytest.importorskip("pandas", reason="the extra tables is not installed")
    lines = fedloom("data", "partition", "heart").stdout.splitlines()
    assert [line.split()[0] for line in lines[-4:]] == [
        "cleveland",
        "hungarian",
        "switzerland",
        "va",
    ]
