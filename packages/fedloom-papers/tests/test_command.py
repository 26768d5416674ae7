"""`fedloom paper` comes by an entry point; old names say the new one."""

from __future__ import annotations

import click

from fedloom_papers.command import paper_command
from tiny import Fedloom

FLAGS = {
    "list": {"--out"},
    "run": {"--only", "--hours", "--out", "--jobs", "--mix", "--dry-run", "--quiet"},
    "measure": {"--out"},
    "table": {
        *("--scale", "--rows", "--protocols", "--seeds", "--out", "--jobs", "--dry-run", "--show"),
        *("--as-published", "--tune", "--halving", "--csv", "--latex", "--columns", "--figures"),
        *("--format", "--column", "--quiet"),
    },
}


def test_the_flags_are_these() -> None:
    found = {
        name: {
            option
            for p in command.params
            if isinstance(p, click.Option)
            for option in p.opts
            if option[:2] == "--"
        }
        for name, command in paper_command.commands.items()
    }
    assert found == FLAGS


def test_it_is_listed_and_an_old_name_says_the_new_one(fedloom: Fedloom) -> None:
    assert "paper " in fedloom("--help").output
    assert "`fedloom papers` is `fedloom paper list` now" in fedloom("papers", code=2).output
    assert "`fedloom paper measure`" in fedloom("measure", "runs/a", "cka", code=2).output


def test_a_table_without_runs_says_where_it_is_compared(fedloom: Fedloom) -> None:
    assert "fafed:5 has no runs" in fedloom("paper", "fafed:5", code=2).output
