"""fedloom init: a starter that runs at once. Names after Tab."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from fedloom.cli.__main__ import cli
from fedloom.cli.settings_argument import recipes
from tiny import Fedloom


@pytest.mark.slow
def test_the_starter_runs_at_once(
    fedloom: Fedloom, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = fedloom("init", "study").output
    assert "fedloom run config.toml" in said
    assert "is not empty" in fedloom("init", "study", code=2).output
    monkeypatch.chdir("study")
    text = fedloom("run", "config.toml", "rounds=8", "--out", "runs/config").output
    assert "4 with 77 to 199 samples (Gini 0.21), label distance 0.33 of 1" in text
    assert json.loads(Path("runs/config/summary.json").read_text())["last"]["value"] > 0.7
    assert "label distance" not in fedloom("data", "partition", "config.toml").output

    # the same settings with the data and the method of its files
    own = ("data=my_data.py:load", "algorithm=my_method.py:HeavyServer", "rounds=8")
    fedloom("run", "config.toml", *own, "--out", "runs/own")
    text = Path("runs/own/config.toml").read_text()
    assert "my_data.py:load" in text and 'label = "HeavyServer"' in text

    settings = Path("config.toml")
    settings.write_text(settings.read_text().replace("rounds = 30", "rounds = 8"))
    monkeypatch.syspath_prepend(".")
    for _ in range(2):  # the second time everything is there
        runpy.run_path("train.py")
    for module in ("my_data", "my_method"):
        sys.modules.pop(module)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == lines[2:] and lines[1].startswith("HeavyServer: accuracy 0.")
    table = fedloom("compare", "runs").output
    assert "HeavyServer" in table and "algorithm.beta" in table
    assert "FedAvg (from Python)" in table and "data.input_shape" not in table


def test_the_starters_scripts_are_whole(fedloom: Fedloom) -> None:
    fedloom("init", "study")
    for script in Path("study").glob("*.py"):
        assert max(map(len, script.read_text().splitlines())) <= 100
        compile(script.read_text(), script.name, "exec")


@pytest.mark.slow
def test_the_starters_method_keeps_the_rules(fedloom: Fedloom) -> None:
    fedloom("init", "study")
    fedloom("check", "study/my_method.py")


def test_a_shell_completes_commands_options_and_names() -> None:
    for shell in ("zsh", "fish"):  # bash asks for its version, which may be missing
        words = os.environ | {"_FEDLOOM_COMPLETE": f"{shell}_source"}
        code = "from fedloom.cli.__main__ import main; main()"
        done = subprocess.run([sys.executable, "-c", code], env=words, capture_output=True)
        assert done.returncode == 0 and b"_FEDLOOM_COMPLETE" in done.stdout, done.stderr
    made = ShellComplete(cli, {}, "fedloom", "_FEDLOOM_COMPLETE")
    offered = {item.value for item in made.get_completions([], "re")}
    assert offered == {"referee", "replay", "report"}
    assert {i.value for i in made.get_completions(["compare"], "--l")} == {"--latex"}
    assert {i.value for i in made.get_completions(["run"], "digi")} == {"digits"}
    assert [i.type for i in recipes(None, None, "mine.to")] == ["file"]
