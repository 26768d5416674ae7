"""The commands of the pages: each can be read, and those of three first days run as they stand."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import click
import pytest

from fedloom.cli.__main__ import cli
from fedloom.cli.run import split_settings
from fedloom.config import resolve
from fedloom.recipes import RECIPES
from tiny import Fedloom

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *(str(page.relative_to(ROOT)) for page in sorted(ROOT.glob("docs/**/*.md")))]


def section(page: str, heading: str = "") -> str:
    """A page, or what stands below one of its headings."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0] if heading else text


def commands(text: str) -> list[list[str]]:
    """The words behind fedloom of every line that begins with it in a block."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    shell = "".join(block for kind, block in blocks if kind in ("", "sh"))
    lines = re.findall(r"^(?:\.venv/bin/)?fedloom (.*)", shell, re.MULTILINE)
    return [shlex.split(re.split(r"\s{3,}|;| #", line)[0]) for line in lines]


def shorter(words: list[str]) -> list[str]:
    """A command with fewer rounds."""
    return ["rounds=2" if word == "rounds=30" else word for word in words]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if commands(section(page)) and "algorithms/" not in page]
)
def test_a_command_of_a_page_is_one(page: str) -> None:
    """Its options are known, and the settings of a recipe."""
    for words in commands(section(page)):
        command: click.Command | None = cli
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
def test_a_doctoral_student_compares_methods_and_draws_them(fedloom: Fedloom) -> None:
    for words in commands(section("docs/tutorial.md", "5. Compare methods")):
        fedloom(*shorter(words))
    figures, tables = commands(section("docs/cli.md", "Figures and tables"))
    drawn = fedloom(*figures).output.split()
    assert "figures/accuracy_by_round.pdf" in drawn and "figures/clients.png" in drawn
    fedloom(*tables)
    assert "FedACG" in Path("table.tex").read_text() and "FedACG" in Path("table.csv").read_text()


@pytest.mark.slow
def test_a_hospitals_engineer_trains_on_own_tables(
    fedloom: Fedloom, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = section("docs/tables.md", "From files to a run")
    toml = re.search(r"```toml\n(.*?)```", page, re.DOTALL)
    assert toml is not None
    fedloom("init", "study")
    monkeypatch.chdir("study")
    Path("my.toml").write_text(toml[1])
    printed = [fedloom(*words).output for words in commands(page)]
    assert "551, each held once" in printed[1] and "80 to 199" in printed[1]
    assert "worst client" in printed[4] and "SCAFFOLD" in printed[4]
    assert "checked: accuracy" in printed[5]
    scores = json.loads(next(Path("runs").glob("*fedavg*/clients.json")).read_text())
    assert scores["names"][0] == "cleveland" and len(scores["metrics"]["auc"]) == 4
    whole = re.search(r"```toml\n(.*?)```", section("docs/hospital.md"), re.DOTALL)
    Path("whole.toml").write_text(whole[1] if whole else "")
    fedloom("run", "whole.toml", "rounds=1", "--out", "whole", "--quiet")
    assert "\n  switzerland  81 " in fedloom("show", "./whole").output
    assert "there is no run in './away'" in fedloom("show", "./away", code=2).stderr


@pytest.mark.slow
def test_a_student_changes_one_thing(fedloom: Fedloom) -> None:
    for heading in ("3. The first run", "4. Change one thing"):
        for words in commands(section("docs/tutorial.md", heading)):
            fedloom(*shorter(words))
    names = re.findall(r"`(batch_size|learning_rate)`", section("docs/cli.md", "Settings"))
    said = fedloom("run", *(f"{name}=1" for name in names), "--dry-run").output
    assert "local.batch" in said and "local.lr" in said
    assert "did you mean 'lr'" in fedloom("run", "local.rl=1", code=2).output


def test_the_federation_s_tutorial_installs_what_its_last_commands_need() -> None:
    """`fedloom report` draws with the libraries of the extra of this name; `show` needs none."""
    page = section("docs/deployment/tutorial.md")
    assert "fedloom report" in page and "see it: fedloom show" in page
    (extras,) = re.findall(r"pip install .*'\.\[([^\]]*)\]' \./packages/fedloom-flower", page)
    assert {"digits", "report"} <= set(extras.split(","))
