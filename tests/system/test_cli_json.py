"""`--json`: what a program needs without reading tables, as the schemas of docs/schemas say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from schemas import PRINTED, pages

from fedloom.checks import check as contract
from support.schema import check
from tiny import Fedloom

MINE = """
from fedloom import LocalSGD
from fedloom.compression.codecs import TopK

sparse = TopK(ratio=0.3)


class Steep(LocalSGD):
    def direction(self, x, loc, msg, mem, grad, job):
        g = grad(x)
        return (g / g.norm() if g.norm() > 1 else g), loc
"""


def test_names_are_those_of_the_table(fedloom: Fedloom) -> None:
    every = check("list", fedloom("list", "--json").stdout)["topics"]
    table = fedloom("list", "algorithms").stdout.splitlines()
    assert [entry["name"] for entry in every["algorithms"]] == [line.split()[0] for line in table]
    one = check("list", fedloom("list", "codecs", "--json").stdout)
    assert one == {"topics": {"codecs": every["codecs"]}}


def test_runs_have_numbers_and_a_damaged_one_says_why(fedloom: Fedloom) -> None:
    assert check("list", fedloom("list", "runs", "--json").stdout) == {"runs": []}
    fedloom("run", "digits", "rounds=2", "--quiet", "--out", "runs/a")
    (one,) = check("list", fedloom("list", "runs", "--json").stdout)["runs"]
    last = json.loads(Path("runs/a/rounds.jsonl").read_text().splitlines()[-1])
    assert one["value"] == last["test_accuracy"] and one["finished"] and not one["running"]
    assert (one["folder"], one["rounds"], one["planned"]) == ("runs/a", 2, 2)
    Path("runs/a/config.toml").write_text("=")
    (one,) = check("list", fedloom("list", "runs", "--json").stdout)["runs"]
    assert "config.toml" in one["damaged"]


@pytest.mark.usefixtures("accounts_at_hand")
def test_a_dry_run_has_the_settings_and_the_estimate(fedloom: Fedloom) -> None:
    words = ["run", "digits", "rounds=2", "--dry-run", "--seeds", "3"]
    found = check("dry-run", fedloom(*words, "--json").stdout)
    assert found["settings"]["rounds"] == 2 and found["seeds"] == 3
    costs = found["costs"]
    assert costs["traffic"] == costs["client_rounds"] * (costs["down"] + costs["up"])
    assert costs["privacy"] is None and costs["sizes"] == []
    parts = ["submodel=heterofl", "submodel.capacities=[0.5, 1.0]"]
    found = check("dry-run", fedloom(*words, *parts, "--json").stdout)
    assert [size["capacity"] for size in found["costs"]["sizes"]] == [0.5, 1.0]
    assert not Path("runs").exists()
    private = ["sampling=poisson", "weighting=uniform", "aggregation=dp", "aggregation.noise=2"]
    found = check("dry-run", fedloom(*words, *private, "--json").stdout)
    assert found["costs"]["privacy"][2] == 2 and found["costs"]["privacy"][0] > 0


def test_json_of_a_run_is_of_its_dry_run(fedloom: Fedloom) -> None:
    assert "--dry-run" in fedloom("run", "digits", "--json", code=2).stderr


@pytest.mark.slow
def test_checks_tell_what_failed(fedloom: Fedloom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "__defaults__", (("vectorised:3",), "", None, None))
    Path("mine.py").write_text(MINE)
    end = fedloom("check", "mine.py", "--json", code=1)
    parts = {part["part"]: part for part in check("check", end.stdout)["parts"]}
    assert "failed" in end.stderr
    assert parts["sparse"]["passed"] and not parts["Steep"]["passed"]
    failed = [c for c in parts["Steep"]["outcomes"] if c["passed"] is False]
    assert failed and all(c["why"] for c in failed)


def test_a_schema_refuses_another_value() -> None:
    """The check of the tests sees a wrong type, a missing and an unknown key."""
    for wrong in ('{"runs": 3}', "{}", '{"topics": {"a": [{"name": "x"}]}}', '{"runs": [NaN]}'):
        with pytest.raises(AssertionError):
            check("list", wrong)


def test_the_committed_schemas_are_those_of_the_records() -> None:
    root = Path(__file__).parents[2] / "docs"
    made = pages()
    assert {p.name for p in (root / "schemas").glob("*.json")} - {"settings.json"} == {
        f"{name}.json" for name in PRINTED
    }
    for path, text in made.items():
        assert (root / path).read_text("utf-8") == text, "make them again: nox -s docs"
