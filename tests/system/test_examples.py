"""Every example runs, prints its result, and warns of nothing; every notebook too."""

import ast
import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_example_runs_and_is_short(path, tmp_path):
    assert len(path.read_text().splitlines()) <= 60
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ,
    )
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"(accuracy|error) \d\.\d", ran.stdout)


def execute(cell, names):
    """Run a cell as a notebook does -> what its last line shows."""
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    shown = (
        None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    )
    return "" if shown is None else getattr(shown, "_repr_html_", shown.__repr__)()


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_runs_from_top_to_bottom(path, tmp_path, monkeypatch, capsys):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    monkeypatch.setitem(sys.modules, "__main__", types.SimpleNamespace(__dict__=names))
    shown = "".join(execute("".join(cell["source"]), names) for cell in cells)
    said = shown + capsys.readouterr().out
    for part in {
        "01": ("<iframe", "scaffold: accuracy 0."),
        "02": ("<table", "switzerland", "90 rows left out"),
    }[path.stem[:2]]:
        assert part in said
