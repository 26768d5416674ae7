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
PAGES = ["tutorial", "write-a-part"]


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
def test_the_code_of_a_page_runs_and_its_classes_pass_the_check(
    page, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    blocks = code(page)
    module = types.ModuleType("page")
    vars(module).update(run(blocks, tmp_path))
    assert any("assert " in block for block in blocks)  # it proves what it says
    assert re.search(r"0\.\d+", capsys.readouterr().out)  # an accuracy, or a few
    parts = parts_of(module)
    checked = {p.__name__ if isinstance(p, type) else type(p).__name__ for p in parts.values()}
    files = [block for block in blocks if block.startswith("# my_")]
    assert {c for file in files for c in re.findall(r"^class (\w+)", file, re.M)} <= checked
    for name, part in parts.items():
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
