"""What someone meets first: README, and `fedloom` alone."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import click
import pytest

from fedloom.algorithms.registry import ALGORITHMS
from fedloom.cli.__main__ import FIRST, cli
from tiny import Fedloom

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_readme_names_every_method() -> None:
    named = re.sub(r"[^a-z]", "", README.lower())
    missing = [
        name for name in ALGORITHMS if name.replace("_", "").removesuffix("adaptive") not in named
    ]
    assert not missing and f"{len(ALGORITHMS)} methods" in README


@pytest.mark.parametrize("number", range(len(re.findall("```python", README))))
@pytest.mark.usefixtures("shared_workers")
def test_its_python_runs(number: int, fedloom: Fedloom) -> None:
    """The first block with fewer rounds; the method is checked by `fedloom check`."""
    block = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[number]
    file = Path("part.py")
    file.write_text(block.replace("rounds=60", "rounds=2"), encoding="utf-8")
    if number == 0:
        runpy.run_path(str(file), run_name="__main__")
    else:
        fedloom("check", f"{file}:Prox")


def test_help_begins_with_what_a_beginner_needs() -> None:
    """No summary is cut, and each takes one line of a terminal of 80 columns."""
    from click.testing import CliRunner

    said = CliRunner().invoke(cli, ["--help"], terminal_width=80).output
    first, more = said.split("To begin with:\n")[1].split("More:\n")
    assert re.findall(r"^  (\w+)", first, re.MULTILINE) == list(FIRST)
    assert {*re.findall(r"^  (\w+)", more, re.MULTILINE)} == {
        *cli.list_commands(click.Context(cli))
    } - {*FIRST}
    assert "..." not in first + more and not re.search(r"^    ", more, re.MULTILINE)


@pytest.mark.parametrize("group", ["data", "deploy"])
def test_no_summary_of_a_group_is_cut(group: str) -> None:
    from click.testing import CliRunner

    said = CliRunner().invoke(cli, [group, "--help"], terminal_width=80).output
    commands = said.split("Commands:\n")[1]
    assert "..." not in commands and not re.search(r"^    ", commands, re.MULTILINE)
