"""The commands and the code of the pages, examples and notebooks run as they stand there."""

import ast
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import types
from pathlib import Path

import click
import pytest

import fedloom as package
from fedloom.checks import parts_of
from fedloom.cli.__main__ import cli
from fedloom.cli.run import split_settings
from fedloom.config import resolve
from fedloom.recipes import RECIPES
from support.folders import record
from support.scripts import ROOT, load

DOCS = [str(page.relative_to(ROOT)) for page in sorted(ROOT.glob("docs/**/*.md"))]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
GALLERY = load("gallery", ROOT / "docs" / "gallery.py")
FEW = ("rounds=2", "local.epochs=1", "cohort=4", "data.clients=8", "model.hidden=[8]")


def section(page, heading=""):
    """A page, or what stands below one of its headings."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0] if heading else text


def commands(text):
    """The words behind fedloom of every line that begins with it in a block."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    shell = "".join(block for kind, block in blocks if kind in ("", "sh"))
    lines = re.findall(r"^(?:\.venv/bin/)?fedloom (.*)", shell, re.MULTILINE)
    return [shlex.split(re.split(r"\s{3,}|;| #", line)[0]) for line in lines]


def code(page):
    return re.findall(r"^```python\n(.*?)^```", section(f"docs/{page}.md"), re.M | re.S)


def shorter(words):
    return ["rounds=2" if word == "rounds=30" else word for word in words]


# ---------------------------------------------------------------------------------------- commands
@pytest.mark.parametrize(
    "page",
    [p for p in ["README.md", *DOCS] if commands(section(p)) and "algorithms/" not in p],
)
def test_a_command_of_a_page_is_one(page):
    """Its options are known, and the settings of a recipe."""
    for words in commands(section(page)):
        command = cli
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            name, *words = words
            known, command = command.commands, command.get_command(click.Context(cli), name)
            if command is None and "table" in known:  # a paper's: `paper fedsmoo:8`
                command, words = known["table"], [name, *words]
        assert command is not None, f"{page}: {name}"
        given = command.make_context(name, list(words)).params
        if name == "run" and "settings" in given:  # not that of deploy
            source, changes, _ = split_settings(given["settings"], None)
            if source in RECIPES and ".py:" not in " ".join(changes):  # files that a reader writes
                resolve(source, changes)


@pytest.mark.slow
def test_a_doctoral_student_compares_methods_and_draws_them(fedloom):
    for words in commands(section("docs/tutorial.md", "5. Compare methods")):
        fedloom(*shorter(words))
    figures, tables = commands(section("docs/cli.md", "Figures and tables"))
    drawn = fedloom(*figures).output.split()
    assert "figures/accuracy_by_round.pdf" in drawn and "figures/clients.png" in drawn
    fedloom(*tables)
    assert "FedACG" in Path("table.tex").read_text() and "FedACG" in Path("table.csv").read_text()


@pytest.mark.slow
def test_a_hospitals_engineer_trains_on_own_tables(fedloom, monkeypatch):
    page = section("docs/tables.md", "From files to a run")
    toml = lambda text: re.search(r"```toml\n(.*?)```", text, re.DOTALL)[1]
    fedloom("init", "study")
    monkeypatch.chdir("study")
    Path("my.toml").write_text(toml(page))
    printed = [fedloom(*words).output for words in commands(page)]
    assert "551, each held once" in printed[1] and "80 to 199" in printed[1]
    assert "worst client" in printed[4] and "SCAFFOLD" in printed[4]
    assert "checked: on " in printed[5]
    scores = record(next(Path("runs").glob("*fedavg*/clients.json")).parent, "clients")
    assert scores["names"][0] == "cleveland" and len(scores["metrics"]["auc"]) == 4
    Path("whole.toml").write_text(toml(section("docs/hospital.md")))
    fedloom("run", "whole.toml", "rounds=1", "--out", "whole", "--quiet")
    assert "\n  switzerland  81 " in fedloom("show", "./whole").output
    assert "there is no run in './away'" in fedloom("show", "./away", code=2).stderr


@pytest.mark.slow
def test_a_student_changes_one_thing(fedloom):
    for heading in ("3. The first run", "4. Change one thing"):
        for words in commands(section("docs/tutorial.md", heading)):
            fedloom(*shorter(words))
    assert "did you mean 'local.batch'" in fedloom("run", "batch_size=1", code=2).output
    assert "did you mean 'lr'" in fedloom("run", "local.rl=1", code=2).output


def test_the_federation_s_tutorial_installs_what_its_last_commands_need():
    """`fedloom report` draws with the libraries of the extra of this name; `show` needs none."""
    page = section("docs/deployment/tutorial.md")
    assert "fedloom report" in page and "see it: fedloom show" in page
    (extras,) = re.findall(r"pip install .*'\.\[([^\]]*)\]' \./packages/fedloom-flower", page)
    assert {"digits", "report"} <= set(extras.split(","))


@pytest.mark.slow
@pytest.mark.parametrize("section", GALLERY.SECTIONS, ids=lambda section: section.title)
def test_the_commands_of_the_gallery_make_its_pictures(section, fedloom):
    for command in GALLERY.words(section.commands):
        words = [str(ROOT / w) if w.startswith("docs/") else w for w in command[1:]]
        words = ["2" if w == "3" else w for w in words if not w.startswith("rounds=")]
        fedloom(*words, *(FEW if words[0] == "run" else ()))
    assert [file for file in section.shown if not Path(file).is_file()] == []


# -------------------------------------------------------------------------------------------- code
@pytest.mark.slow
@pytest.mark.parametrize("page", ["tutorial", "write-a-part"])
def test_the_code_of_a_page_runs_and_its_classes_pass_the_check(page, fedloom, capsys):
    blocks = code(page)
    Path("page.py").write_text("\n".join(blocks))
    module = types.ModuleType("page")
    vars(module).update(runpy.run_path("page.py", run_name="page"))
    assert any("assert " in block for block in blocks)  # it proves what it says
    assert re.search(r"0\.\d+", capsys.readouterr().out)  # an accuracy, or a few
    parts = parts_of(module)
    checked = {p.__name__ if isinstance(p, type) else type(p).__name__ for p in parts.values()}
    files = [block for block in blocks if block.startswith("# my_")]
    assert {c for file in files for c in re.findall(r"^class (\w+)", file, re.M)} <= checked
    for name, part in parts.items():
        report = package.check(part, engines=(), name=name)
        assert report.passed, str(report)
    if page == "write-a-part":  # and its command
        Path("my_algorithm.py").write_text(blocks[0])
        words = re.search(r"^fedloom (run [^\n]*)$", section(f"docs/{page}.md"), re.M)[1]
        fedloom(*words.replace("--seeds 3", "--quiet").split(), *FEW[1:2])
        config = Path("runs/digits-Recall-seed0/config.toml").read_text()
        assert "alpha = 0.8" in config


@pytest.mark.slow
def test_the_python_page_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("page.py").write_text("\n".join(code("python")))
    end = runpy.run_path("page.py")
    assert end["result"].last > 0.7 and end["again"].last > 0.7
    assert (tmp_path / "runs" / "labels" / "summary.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_an_example_runs_is_short_and_warns_of_nothing(path, tmp_path):
    assert len(path.read_text().splitlines()) <= 60
    line = [sys.executable, "-W", "error", str(path)]
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert re.search(r"(accuracy|error) \d\.\d", done.stdout)


def execute(cell, names):
    """Run a cell as a notebook does -> what its last line shows."""
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if last is None:
        return ""
    shown = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
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
    wanted = {"01": ["<iframe", "scaffold: accuracy 0."]}
    wanted["02"] = ["<table", "switzerland", "90 rows left out"]
    assert all(part in said for part in wanted[path.stem[:2]])
