"""fedloom advise: a tiny advice from the question to the settings that it leaves."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from support.schema import check
from tiny import Fedloom

TINY = ("heart", "rounds=1", "local.epochs=1", "--trials", "2", "--seeds", "4")


@pytest.mark.slow
def test_a_user_leaves_with_settings_and_reasons(
    fedloom: Fedloom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few of all methods; cfedavg is FedAvg without a codec."""
    few = ("fedavg", "fedprox", "cfedavg", "feddyn", "fedadam")
    monkeypatch.setattr("fedloom.referee.advice.ALGORITHMS", few)
    monkeypatch.setattr("fedloom.referee.tuner.MOST_SPLITS", 2)
    page = fedloom("advise", *TINY, "--quiet").stdout
    folder = Path("runs/advise-heart")
    found = check("advise", (folder / "advice.json").read_text("utf-8"))
    assert page == (folder / "advice.md").read_text("utf-8")
    names, tried = found["candidates"], [one["name"] for one in found["screen"]["tried"]]
    assert {*tried} == {*few} and found["screen"]["splits"] == found["splits"] == 2
    best = [name for name in tried if name not in ("fedavg", "cfedavg")][:2]
    assert names == ["fedavg", *best] and found["take"] in names
    assert "FedAvg, and the two best of all others: 5 methods had 2 trials each" in page
    assert [one["name"] for one in found["against"]] == [n for n in names if n != found["take"]]
    assert f"ake {found['take']}**" in page and "better than alone at" in found["alone"]

    (cell,) = found["cells"]
    assert {m["name"]: m["trials"] for m in cell["methods"]} == dict.fromkeys([*names, "pooled"], 2)
    assert all(len(method["values"]) == 4 for method in cell["methods"])
    runs = (len(tried) + 1) * 2 * 2 + 5 * 4
    assert found["runs"] == runs, "clients alone are run with seeds, and not tuned"
    assert len(cell["comparisons"]) == 3

    best = tomllib.loads((folder / "run.toml").read_text("utf-8"))
    assert best["algorithm"]["name"] == found["take"] and best["rounds"] == 1
    assert best["local"]["lr"] == float(found["settings"]["local.lr"])
    assert "validation" not in best["evaluate"] or best["evaluate"]["validation"] == 0
    fedloom("run", str(folder / "run.toml"), "rounds=1", "--quiet", "--out", "again")

    before = {file: file.stat().st_mtime_ns for file in folder.glob("*/*/summary.json")}
    assert fedloom("advise", *TINY, "--quiet").stdout == page, "the same command resumes"
    assert before == {file: file.stat().st_mtime_ns for file in before}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("digits", "data.clients=1"), "has one client"),
        (("digits", "local.lrr=1"), "did you mean 'lr'"),
        (("no.toml",), "no.toml"),
        (("digits", "--minutes", "0"), "minutes"),
    ],
)
def test_what_is_asked_wrongly_is_one_line(
    words: tuple[str, ...], said: str, fedloom: Fedloom
) -> None:
    (line,) = fedloom("advise", *words, code=2).stderr.splitlines()
    assert line.startswith("error: ") and said in line
