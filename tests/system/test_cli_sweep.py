"""fedloom sweep: a table, a choice, and going on after a stop."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedloom.cli.__main__ import cli
from fedloom.experiment.experiment import Experiment
from tiny import Fedloom

SMALL = ("rounds=2", "local.epochs=1", "cohort=4", "data.clients=8")
SWEEP = ("sweep", "digits", *SMALL, "local.lr=0.01,0.3")


def summaries(folder: str = "runs/sweep-digits") -> dict[Path, int]:
    """Every finished run, and when it finished."""
    return {p: p.stat().st_mtime_ns for p in Path(folder).glob("*/summary.json")}


def table(output: str) -> str:
    """What a sweep says, without the warnings of runs that learn nothing in two rounds."""
    return "\n".join(line for line in output.splitlines() if not line.startswith("warning: "))


def test_a_sweep_runs_everything_once_and_chooses(
    fedloom: Fedloom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")  # its headings on one line
    text = table(fedloom(*SWEEP, "--quiet").output)
    heads = text.splitlines()[0]
    assert "validation accuracy, last tenth" in heads and "test accuracy, last tenth" in heads
    assert [line.split()[:2] for line in text.splitlines()[1:3]] == [["0.01", "1"], ["0.3", "1"]]
    assert "best by the validation split: local.lr=0.3" in text
    before = summaries()
    assert len(before) == 2
    assert table(fedloom(*SWEEP, "--quiet").output) == text
    assert summaries() == before, "finished runs are skipped"
    text = table(fedloom(*SWEEP, "seeds=2", "--quiet").output)
    assert [line.split()[:2] for line in text.splitlines()[1:3]] == [["0.01", "2"], ["0.3", "2"]]
    assert len(summaries()) == 4
    assert before.items() <= summaries().items(), "one seed more is two runs more"
    dry = fedloom("run", "runs/sweep-digits/best.toml", "--dry-run").output
    assert "lr = 0.3" in dry
    assert "validation = 0.0" in dry


def test_a_stopped_sweep_goes_on(fedloom: Fedloom, monkeypatch: pytest.MonkeyPatch) -> None:
    run, calls = Experiment.run, []

    def stop(self: Experiment, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return run(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Experiment, "run", stop)
        stopped = CliRunner().invoke(cli, [*SWEEP, "--quiet"], prog_name="fedloom")
    assert stopped.exit_code == 130
    assert "run the same command again to resume" in stopped.output
    kept = summaries()
    assert len(kept) == 1
    assert "best by" in fedloom(*SWEEP, "--quiet").output
    assert len(summaries()) == 2
    assert kept.items() <= summaries().items()


def test_a_run_that_fails_is_a_result(fedloom: Fedloom) -> None:
    words = ("sweep", "digits", *SMALL, "local.lr=0.1,1e30", "--quiet")
    text = fedloom(*words).output
    assert "local.lr=1e30 failed:" in text
    assert "best by the validation split: local.lr=0.1" in text
    assert fedloom(*words).output == text, "it is not tried again"


def test_the_papers_way_is_labelled(fedloom: Fedloom) -> None:
    text = fedloom(*SWEEP, "--by", "test", "--quiet", "--out", "here").output
    assert "best by the test set (the papers' way: too good, by the choice itself)" in text
    assert len(summaries("here")) == 2


def test_what_would_be_refused_later_is_refused_before_anything_runs(fedloom: Fedloom) -> None:
    tried = ("algorithm=fedavg,fafed", "submodel=heterofl", "submodel.capacities=[0.5,1]")
    said = fedloom("sweep", "digits", *SMALL, *tried, code=2).output
    assert "error: algorithm=fafed: HeteroFL and FAFED: " in said
    assert said.strip().endswith("nothing was run")
    assert not summaries()


def test_a_sweep_goes_on_in_the_engine_it_began_with(
    fedloom: Fedloom, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = Experiment._rounds
    with monkeypatch.context() as patch:
        patch.setattr(Experiment, "_rounds", interrupted)
        CliRunner().invoke(cli, [*SWEEP, "--quiet", "engine=vectorised:4"], prog_name="fedloom")
    assert Experiment._rounds is rounds
    assert "best by" in fedloom(*SWEEP, "--quiet", "engine=serial").output
    engines = {
        p: tomllib.loads(p.read_text())["engine"] for p in Path("runs").glob("*/*/config.toml")
    }
    assert sorted(engines.values()) == ["serial", "vectorised:4"]


def interrupted(*_: Any) -> Any:
    """A stop in the first round."""
    raise KeyboardInterrupt


def test_a_sweep_with_other_fixed_settings_is_refused_in_its_folder(fedloom: Fedloom) -> None:
    fedloom(*SWEEP, "--quiet")
    said = fedloom(*SWEEP, "local.batch=7", "--quiet", code=2).output
    assert "'runs/sweep-digits' holds a sweep with other settings (local.batch=7 differs)" in said
    assert said.count("\n") == 1 and len(summaries()) == 2
    fedloom(*SWEEP, "local.batch=7", "--quiet", "--out", "runs/other")
    assert fedloom(*SWEEP, "engine=serial", "seed=0", "--quiet").exit_code == 0  # the same runs


def test_a_sweep_says_what_it_would_cost_and_runs_nothing(fedloom: Fedloom) -> None:
    said = fedloom(*SWEEP, "seeds=3", "--dry-run", "--speed", "1e6").output
    assert said.splitlines()[1].split()[:2] == ["runs", "6"] and not Path("runs").exists()
    epochs = ("sweep", "digits", *SMALL[:1], *SMALL[2:], "local.epochs=1,5")
    more = fedloom(*epochs, "seeds=3", "--dry-run", "--speed", "1e6").output
    one, other = (float(re.search(r"operations +about (\S+)", t)[1]) for t in (said, more))
    assert other > 1.5 * one
