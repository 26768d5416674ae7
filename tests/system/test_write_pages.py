"""The pages that build a part from an empty file: their code is run as it stands there."""

from __future__ import annotations

import re
import runpy
import types
from pathlib import Path

import pytest

import fedloom
from fedloom.checks import parts_of

DOCS = Path(__file__).parents[2] / "docs"
WRITE = ["write-an-algorithm", "write-an-objective", "write-a-codec", "write-a-submodel"]
PAGES = ["tutorial", *WRITE]


def code(page: str) -> list[str]:
    """The Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```", (DOCS / f"{page}.md").read_text(), re.M | re.S)


def run(blocks: list[str], folder: Path) -> dict[str, object]:
    """All that these blocks define."""
    script = folder / "page.py"
    script.write_text("\n".join(blocks))
    return runpy.run_path(str(script), run_name="page")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = code(page)
    made = run(blocks, tmp_path)
    mine = [block for block in blocks if block.startswith("# my_")]
    assert mine
    assert "assert " in blocks[-1]  # it ends with its proof
    assert re.search(r"0\.\d+", capsys.readouterr().out)  # an accuracy, or a few
    every_part_passes_the_check(made, set(re.findall(r"^class (\w+)", mine[0], re.M)))


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_all_classes_of_a_page_pass_the_check(page, tmp_path, monkeypatch):
    """Those that show what else there is, too: one or two seconds each."""
    monkeypatch.chdir(tmp_path)
    made = run(code(page), tmp_path)
    every_part_passes_the_check(made, set(made))


def every_part_passes_the_check(made: dict[str, object], wanted: set[str]) -> None:
    """Of the classes that the page defines, those with these names."""
    module = types.ModuleType("page")
    vars(module).update(made)
    for name, part in parts_of(module).items():
        if isinstance(part, type) and name in wanted:
            report = fedloom.check(part, engines=(), name=name)
            assert report.passed, str(report)


@pytest.mark.slow
def test_the_python_page_runs_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "page.py"
    script.write_text("\n".join(code("python")))
    end = runpy.run_path(str(script))
    assert end["result"].last > 0.7 and end["again"].last > 0.7
    assert (tmp_path / "runs" / "labels" / "summary.json").exists()


def test_every_such_page_is_among_them():
    assert {p.stem for p in DOCS.glob("write-*.md")} == set(WRITE)
