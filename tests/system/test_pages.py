"""The pages of the algorithms: made from the code, up to date, and every line on them runs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from fedloom.algorithms.registry import ALGORITHMS, options
from fedloom.config import resolve

ROOT = Path(__file__).parents[2]


def load() -> Any:
    """docs/pages.py as a module."""
    spec = importlib.util.spec_from_file_location("pages", ROOT / "docs" / "pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGES = load()


def test_the_committed_pages_are_up_to_date() -> None:
    made = PAGES.pages()
    docs = ROOT / "docs"
    there = {f"algorithms/{p.name}" for p in (docs / "algorithms").glob("*.md")}
    assert there | {"compatibility.md", "settings.md", "old-names.md"} == set(made), (
        "make them again: make docs"
    )
    for path, text in made.items():
        assert (docs / path).read_text() == text, f"docs/{path} is old; make it again: make docs"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_page_has_everything(name: str) -> None:
    text = PAGES.page(name)
    assert text.startswith(f"# {ALGORITHMS.label(name)[0].upper()}")
    for option in options(name):
        assert f"`algorithm.{option.name}`" in text
        assert option.source.replace("|", "\\|") in text
    assert "| gradients per step |" in text
    assert f"algorithm={name}" in text
    assert (ROOT / "docs" / "algorithms" / text.split("](")[1].split(")")[0]).exists()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_method_is_proven(name: str) -> None:
    files = {proof.file for proof in PAGES.proofs_of(name)}
    assert any(f.startswith(("tests/closed_form/", "tests/golden/")) for f in files)
    assert "tests/system/test_costs.py" in files


def test_proofs_are_found_by_whole_words() -> None:
    names = {p.says for p in PAGES.proofs_of("scaffold")}
    assert "scaffolds c is the mean of all c i" in names
    assert "fedavg ends in its biased fixed point" not in names
    cases = {c for p in PAGES.proofs_of("fedsam") for c in p.cases}
    assert "FedSAM(rho 0) is FedAvg" in cases
    assert "MoFedSAM(rho 0) is FedCM" not in cases
    assert {p.says for p in PAGES.proofs_of_all()} >= {"workers have the bits of serial"}


@pytest.mark.parametrize("line", [line for lines in PAGES.LINES.values() for _, line in lines])
def test_a_line_on_a_page_is_a_run(line: str) -> None:
    resolve("digits", line.split()).experiment().plan()


def test_the_page_of_performance_is_what_the_records_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    made = importlib.import_module("performance")
    assert made.PAGE.read_text(encoding="utf-8") == made.page(), (
        "make it again: python benchmarks/performance.py"
    )
    assert made.newest("W9") == (None, []) and made.table("W9") == "Not measured yet."


def test_the_pages_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "algorithms").mkdir()
    (tmp_path / "algorithms" / "gone.md").write_text("of a method that is no more")
    PAGES.write(tmp_path)
    assert {p.stem for p in (tmp_path / "algorithms").glob("*")} == {*ALGORITHMS, "README"}
