"""No line that a command prints is wider than the page, in a terminal and in a pipe; but a command
to be copied stays on its line.
"""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from fedloom.cli.__main__ import cli
from fedloom.cli.printing import reflowed
from fedloom_papers.pages import columns
from support.scripts import ROOT
from tiny import Fedloom

SMALL = ("rounds=2", "local.epochs=1", "cohort=4", "data.clients=8")
RESULTS = ROOT / "docs/results"
LINES = str(RESULTS / "papers")
RUNS = ("digits", *SMALL, "algorithm=fedacg", "model.hidden=[64,64]")
COMMANDS = {
    "demo": ("demo", "--rounds", "1", "--seeds", "2"),
    "run": ("run", *RUNS, "--seeds", "2"),
    "sweep": ("sweep", *RUNS, "local.lr=0.1,0.3", "local.momentum=0.5,0.9"),
    "paper": ("paper", "fedacg:1b", "--rows", "fedavg,fedavgm,fedacg", "--out", LINES),
    "dry run": ("paper", "fedacg:1b", "--dry-run"),
    "list": ("paper", "run", str(RESULTS / "plan.toml"), "--dry-run", "--out", LINES),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_no_line_is_wider_than_the_page(
    name: str, fedloom: Fedloom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In terminals of 80 and 120 columns and in a pipe. From the second time on a command finds its
    runs finished, and lays out the same tables. The list reads all lines for seconds: once.
    """
    monkeypatch.setattr("fedloom.cli.demo._illustrate", lambda out, names: None)
    for width in (80, 120, 0) if name != "list" else (80,):
        if width:
            monkeypatch.setenv("COLUMNS", str(width))
        else:
            monkeypatch.delenv("COLUMNS")
        found = fedloom(*COMMANDS[name])
        page = width or (columns() if name in ("paper", "dry run") else 80)
        lines = found.stdout.splitlines()
        assert lines and not [x for x in lines if len(x) > page and "fedloom " not in x]


def test_settings_that_differ_are_listed_where_a_table_would_cut_words(
    fedloom: Fedloom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No name of a setting or value is broken in a narrow terminal: it says whose each value is."""
    for algorithm in ("fedavg", "fedprox", "fedavgm", "fedacg"):
        words = (*SMALL[1:], "rounds=1", f"algorithm={algorithm}", "model.hidden=[8]")
        fedloom("run", "digits", *words, "--out", f"runs/{algorithm}", "--quiet")
    monkeypatch.setenv("COLUMNS", "50")
    said = fedloom("compare", "runs").stdout.partition("Settings that differ:\n")[2]
    lines = [line.split(maxsplit=1) for line in said.partition("\n\n")[0].splitlines()]
    assert ["algorithm.lam", "-; 0.85: FedACG"] in lines
    assert ["algorithm.mu", "-; 0.001: FedProx"] in lines
    assert max(map(len, said.splitlines())) <= 50
    monkeypatch.setenv("COLUMNS", "200")
    table = fedloom("compare", "runs").stdout.splitlines()
    assert ["algorithm.mu", "-", "-", "-", "0.001"] in [line.split() for line in table]


@pytest.mark.parametrize("name", ["fedacg", "dirichlet", "local"])
def test_a_description_is_broken_at_words(
    name: str, fedloom: Fedloom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of `show`, in a terminal that is narrower than the docstring's lines; no word is lost."""
    monkeypatch.setenv("COLUMNS", "80")
    wide = fedloom("show", name).stdout
    narrow = reflowed(wide, 80)
    assert max(map(len, narrow.splitlines())) <= 80
    assert narrow.split() == wide.split()


def test_lines_that_were_not_broken_for_their_width_stay_lines() -> None:
    text = "  server: x        client: -\n  " + "word " * 19 + "\n  end of it\n\n  last"
    assert reflowed(text, 60).splitlines() == [
        "  server: x        client: -",
        "  " + " ".join(["word"] * 11),
        "  " + " ".join(["word"] * 8) + " end of it",
        "",
        "  last",
    ]


def helps(command: click.Command, context: click.Context) -> Iterator[str]:
    """What --help prints of a command and of those below it, 80 columns wide."""
    yield command.get_help(context)
    if not isinstance(command, click.Group):
        return
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from helps(below, click.Context(below, context, name, terminal_width=80))


def test_help_is_no_wider_than_a_terminal() -> None:
    text = "\n".join(helps(cli, click.Context(cli, info_name="fedloom", terminal_width=80)))
    assert not [line for line in text.splitlines() if len(line) > 80]
