"""`fedloom sweep --trials`: a search by Optuna. `nox -s test-trackers` has the library."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedloom.cli.__main__ import cli
from fedloom.errors import ConfigError
from fedloom.experiment.experiment import Experiment
from fedloom.study import Search, Sweep, state_of
from fedloom.study.sweep import Range

SMALL = ["rounds=4", "local.steps=1", "cohort=2", "data.clients=8", "evaluate.every=1"]
SPACE = ["local.lr=0.001..1:log", "local.batch=4..16", "algorithm=fedavg,fedavgm"]


def test_ranges_and_lists_are_told_apart():
    space = [*SPACE, "local.clip=1..10.5"]
    sweep = Sweep("digits", [*SMALL, *space, "weight_decay=1"], by="test", search=True)
    assert sweep.common == (*SMALL, "local.weight_decay=1")
    assert [*sweep.values] == ["local.lr", "local.batch", "algorithm", "local.clip"]
    assert sweep.values["algorithm"] == ["fedavg", "fedavgm"]
    assert sweep.ranges == {
        "local.lr": Range(0.001, 1.0, False, True),
        "local.batch": Range(4.0, 16.0, True, False),
        "local.clip": Range(1.0, 10.5, False, False),
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rounds=2"], "nothing to try: give a setting a range"),
        (["local.lr=1..0.1"], "a range goes up"),
        (["local.lr=0..1:log"], "begins above 0"),
        (["local.lr=0.1..1:cube"], "a range goes up, as"),
        (["local.lr=a..b"], "a range is two numbers"),
        (["local.lr=0.1,0.1"], "there twice"),
        (["local.lr=0.1,1", "local.lr=1..2"], "tried twice"),
        (["seed=0..4"], "the seed is nothing to choose"),
    ],
)
def test_what_is_no_range_is_said(words, said):
    with pytest.raises(ConfigError, match=said):
        Sweep("digits", words, search=True)


def test_without_optuna_it_is_said_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"pip install .*\[optuna\]"):
        Search(Sweep("digits", SPACE, search=True), 3)


# ------------------------------------------------------------------------------------- with optuna
def sweep(*more):
    words = ["sweep", "digits", *SMALL, *SPACE, "--quiet", *more]
    return CliRunner().invoke(cli, words, prog_name="fedloom")


def said_by(done):
    """What a sweep says, without the warnings of runs that learn nothing in four rounds."""
    return "\n".join(x for x in done.output.splitlines() if not x.startswith("warning: "))


def folders(where):
    return sorted(p.parent.name for p in Path(where).glob("*/config.toml"))


@pytest.fixture
def optuna(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return pytest.importorskip("optuna")


@pytest.mark.filterwarnings("ignore")
def test_a_stopped_search_tries_what_it_would_have(optuna, monkeypatch):
    done = sweep("--trials", "4", "--out", "whole")
    assert done.exit_code == 0, done.output
    assert "best by the validation split: local.lr=" in done.output
    assert len(folders("whole")) == 4 and Path("whole/best.toml").is_file()
    again = sweep("--trials", "4", "--out", "whole")
    assert said_by(again) == said_by(done), "nothing is left to do"

    rounds, calls = Experiment._rounds, []

    def stop(self, *given):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return rounds(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Experiment, "_rounds", stop)
        assert sweep("--trials", "4", "--out", "again").exit_code == 130
    again = sweep("--trials", "4", "--out", "again")
    assert said_by(again) == said_by(done).replace("whole", "again")
    assert folders("again") == folders("whole")


@pytest.mark.filterwarnings("ignore")
def test_what_is_worse_than_the_median_is_stopped(optuna):
    words = ["rounds=4", "local.steps=40", "data.clients=8", "local.lr=1e-4..0.5:log"]
    search = Search(Sweep("digits", [*words, "evaluate.every=1"], out="s", search=True), 8)
    said = []
    trials = search.run(False, lambda number, choice, state: said.append(state))
    assert len(said) == 8 and set(said) == {"finished", "pruned"}
    pruned = [t for t in trials if state_of(t.folder) == "pruned"]
    assert len(pruned) == said.count("pruned")
    assert not (pruned[0].folder / "summary.json").exists()
    assert "worse than the median" in (pruned[0].folder / "pruned.txt").read_text()
