"""`fedloom describe`: tables of sites, of which nobody is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedloom.data.published.heart import COLUMNS, heart_files
from support.schema import check
from tiny import Fedloom

pytest.importorskip("pandas", reason="the extra tables is not installed")


def write(name: str, rows: int, seed: int, ill: float) -> None:
    draw = np.random.default_rng(seed)
    lines = ["age,ward,outcome"]
    for _ in range(rows):
        ward = draw.choice(["Innere", "Chirurgie", f"Rare ward of {name}"], p=[0.6, 0.35, 0.05])
        lines.append(f"{draw.integers(20, 95)},{ward},{'ill' if draw.random() < ill else 'well'}")
    Path(f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture
def sites() -> list[str]:
    write("bonn", 120, 0, 0.8)
    write("kiel", 80, 1, 0.2)
    write("ulm", 7, 2, 0.5)
    return ["bonn.csv", "kiel.csv", "ulm.csv"]


def test_tables_are_described_on_a_page(
    fedloom: Fedloom, sites: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = fedloom("describe", *sites, "--target", "outcome").stdout
    assert max(map(len, said.splitlines())) <= 80
    assert "Rare" not in said and "ulm   -" in said and "age      bonn" in said
    assert "Chirurgie: -, Innere:" in said and "distance of two sites' labels 0.5" in said
    assert "labels" not in fedloom("describe", *sites).stdout


def test_descriptions_as_json(fedloom: Fedloom, sites: list[str]) -> None:
    end = fedloom("describe", *sites, "--target", "outcome", 'inputs=["age"]', "--json")
    found = check("describe", end.stdout)
    assert [*found["sites"]["bonn"]["columns"]] == ["age", "outcome"]
    nothing = {"least": 10, "rows": None, "target": "outcome", "columns": {}, "duplicates": None}
    assert found["sites"]["ulm"] == nothing
    rows = (Path(name).read_text("utf-8").splitlines()[1:] for name in sites[:2])
    bonn, kiel = ({(line.split(",")[0], line.split(",")[2]) for line in of} for of in rows)
    assert found["sites"]["bonn"]["duplicates"]["shared"] == {"kiel": len(bonn & kiel)}
    assert 0.4 < found["labels"]["pairs"] < 0.8
    end = fedloom("describe", *sites, "--target", "age", "--least", "5", "--json")
    found = check("describe", end.stdout)
    assert found["labels"] is None and found["sites"]["ulm"]["rows"] == 7


def test_a_file_that_cannot_be_described_is_named(fedloom: Fedloom, sites: list[str]) -> None:
    whole = Path("kiel.csv").read_text("utf-8")
    for text, says in (
        ("", "kiel.csv is empty; it needs a header and rows below it"),
        ("age,ward,outcome\n", "kiel.csv has no rows below its header"),
        (whole.replace("ward,", "dept,", 1), "kiel.csv has no column 'ward', which bonn.csv has"),
        (whole.replace("outcome", "end", 1), "kiel.csv has no column 'outcome'"),
        (whole.replace("\n", "\n?,Innere,ill\n", 1), "kiel.csv, column 'age', row 1: '?' is no fi"),
    ):
        Path("kiel.csv").write_text(text, encoding="utf-8")
        said = fedloom("describe", *sites, "--target", "outcome", code=2).stderr
        assert said.startswith("error: ") and said.count("\n") == 1 and says in said
    Path("kiel.csv").write_bytes(whole.encode("utf-16"))
    said = fedloom("describe", *sites, code=2).stderr
    assert "of this file alone: encoding.kiel = cp1252" in said
    assert fedloom("describe", *sites, "encoding.kiel=utf-16").stdout
    assert "there is no file away.csv" in fedloom("describe", "away.csv", code=2).stderr


HEART = """
[data]
name = "table"
path = {files}
names = {names}
na_values = ["?"]
target = "num > 0"
class_names = ["healthy", "ill"]
inputs = ["age", "sex", "chol"]
"""


def test_what_is_described_is_what_a_run_would_train_on(fedloom: Fedloom) -> None:
    """The hospitals that come along: how files are read, which rows count, what the target is."""
    files, names = [*map(str, heart_files())], [*COLUMNS]
    Path("heart.toml").write_text(HEART.format(files=files, names=names), encoding="utf-8")

    def rows(*more: str) -> dict[str, int]:
        found = check("describe", fedloom("describe", "heart.toml", *more, "--json").stdout)
        assert all(
            [*s["columns"]] == ["age", "sex", "chol", "num > 0"] for s in found["sites"].values()
        )
        return {name: site["rows"] for name, site in found["sites"].items()}

    assert [*rows().values()] == [303, 294, 123, 200]
    assert [*rows("missing=drop").values()] == [303, 271, 123, 193]
    assert [*rows("test_share=0.34").values()] == [199, 194, 81, 132]
    Path("heart.toml").write_text("[data]\nname = 'digits'\n", encoding="utf-8")
    assert "only a table can be desc" in fedloom("describe", "heart.toml", code=2).stderr
    one = ["age,site,y", *(f"{n},{'ab'[n % 2]},{n % 3}" for n in range(60))]
    Path("one.csv").write_text("\n".join(one) + "\n", encoding="utf-8")
    end = fedloom("describe", "one.csv", "client=site", "--target", "y", "--json")
    found = check("describe", end.stdout)["sites"]
    assert {name: site["rows"] for name, site in found.items()} == {"a": 30, "b": 30}
    assert [*found["a"]["columns"]] == ["age", "y"]
    end = fedloom("describe", "one.csv", "client=site", "alpha=1", code=2)
    assert "has no key 'alpha'" in end.stderr
