"""Sweeps and searches: what is run, what is skipped, and what is chosen by what."""

import json
import statistics
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from report_fakes import fake_run, write_rows

from fedloom.cli.__main__ import cli
from fedloom.errors import CheckpointError, ConfigError
from fedloom.study import Search, Sweep, best_of, results, state_of
from fedloom.study.sweep import Range, split_space, split_values
from support.refusals import refused
from support.stops import failing_in_run

GRID = ["algorithm=fedacg", "algorithm.lam=0.8,0.9", "local.lr=0.03,0.1,0.3", "rounds=2"]


def plan(*given, **more):
    return Sweep(*given, **more).grid()


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1", ["1"]),
        ("[1, 2], [3]", ["[1, 2]", "[3]"]),
        ('"a,b",c', ['"a,b"', "c"]),
        ("{a = 1, b = 2},none", ["{a = 1, b = 2}", "none"]),
        ("1,", ["1", ""]),
    ],
)
def test_commas_outside_of_brackets_and_quotes_separate_values(text, values):
    assert split_values(text) == values


def test_every_combination_of_several_values_and_seeds_is_a_run():
    shared, axes = split_space(GRID)
    assert shared == ["algorithm=fedacg", "rounds=2"]
    assert axes == {"algorithm.lam": ["0.8", "0.9"], "local.lr": ["0.03", "0.1", "0.3"]}
    trials = plan("digits", [*GRID, "seed=4"], 2)
    values = [trial.config.values for trial in trials]
    assert [(v["algorithm"]["lam"], v["local"]["lr"], v["seed"]) for v in values] == [
        (m, lr, s) for m in (0.8, 0.9) for lr in (0.03, 0.1, 0.3) for s in (4, 5)
    ]
    assert [trial.seed for trial in trials] == [4, 5] * 6
    assert len({t.folder for t in trials}) == len(trials)
    assert {t.folder.parent for t in trials} == {Path("runs/sweep-digits-fedacg")}
    assert plan("digits", GRID, out="here")[0].folder.parent == Path("here")


def test_a_folder_is_named_by_all_that_decides_the_numbers():
    folders = lambda *more: [t.folder.name for t in plan("digits", [*GRID, *more])]
    assert folders() == folders("engine=workers:2", "label=mine", "checkpoint.keep=3")
    for changed in ("rounds=3", "local.batch=7", "data.alpha=0.7"):
        assert not set(folders()) & set(folders(changed))


def test_an_option_of_the_methods_that_are_tried_may_be_shared():
    # the recipe's own method, FedAvg, has no beta
    trials = plan("digits", ["algorithm=fedavgm,fedacg", "algorithm.beta=0.5"])
    assert [t.config.values["algorithm"]["beta"] for t in trials] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("more", "by", "share"),
    [([], "validation", 0.1), (["evaluate.validation=0.3"], "validation", 0.3), ([], "test", 0.0)],
)
def test_a_validation_split_is_cut_unless_there_is_one_or_the_papers_way(more, by, share):
    trial = plan("digits", [*GRID, *more], by=by)[0]
    assert trial.config.values["evaluate"].get("validation", 0.0) == share


@pytest.mark.parametrize(
    ("words", "search", "said"),
    [
        (["local.lr=0.1"], False, "nothing to try"),
        (["local.lr=0.1,0.1"], False, "there twice"),
        (["local.lr=0.1,"], False, "empty"),
        (["local.lr=1,2", "local.lr=3,4"], False, "tried twice"),
        (["seed=0,1,2"], False, "give seeds=3"),
        (["local.lr=0.1,high"], False, "local.lr must be in (0, inf)"),
        (["algorithm=fedavg,fedacgg"], False, "did you mean 'fedacg'"),
        (["local.lr"], False, "expected key=value"),
        (["local.lr=0.1..1", "local.batch=1,2"], False, "give --trials too"),
        (["rounds=2"], True, "nothing to try: give a setting a range"),
        (["local.lr=1..0.1"], True, "a range goes up"),
        (["local.lr=0..1:log"], True, "begins above 0"),
        (["local.lr=0.1..1:cube"], True, "a range goes up, as"),
        (["local.lr=a..b"], True, "a range is two numbers"),
        (["local.lr=0.1,0.1"], True, "there twice"),
        (["local.lr=0.1,1", "local.lr=1..2"], True, "tried twice"),
        (["seed=0..4"], True, "the seed is nothing to choose"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(words, search, said):
    make = lambda: Sweep("digits", words, search=search)
    refused(make if search else lambda: make().grid(), said, kind=ConfigError)


def finish(folder, validation, test):
    """A finished run with these values, an evaluation a round; its moving average is 0."""
    fake_run(folder, test, ema=[0.0] * len(test))
    file = folder / "rounds.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    pairs = zip(rows, validation, strict=True)
    write_rows(file, [row | {"validation_accuracy": v} for row, v in pairs])


def test_the_choice_is_by_the_validation_split_and_never_by_the_test_set(tmp_path):
    trials = plan("digits", ["local.lr=0.03,0.1,0.3"], 2, tmp_path)
    values = {"0.03": (0.5, 0.9), "0.1": (0.7, 0.6), "0.3": (0.6, 0.7)}
    for trial in trials:
        validation, test = values[trial.choice["local.lr"]]
        finish(trial.folder, [validation + 0.02 * trial.seed], [test])
    rows = results(trials)
    best = best_of(rows, 2, "validation")
    assert best.choice == {"local.lr": "0.1"}
    spread = statistics.stdev([0.7, 0.72])
    assert best.of["validation"] == (pytest.approx(0.71), pytest.approx(spread))
    assert best_of(rows, 2, "test").choice == {"local.lr": "0.03"}
    assert best_of(rows, 2, "validation", higher=False).choice == {"local.lr": "0.03"}


def test_validation_and_test_are_the_same_measure(tmp_path):
    """Of thirty evaluations both columns are the mean of the last three; no moving average."""
    trials = plan("digits", ["local.lr=0.03,0.1"], 1, tmp_path)
    finish(trials[0].folder, [0.1] * 27 + [0.8, 0.85, 0.9], [0.2] * 27 + [0.5, 0.6, 0.7])
    finish(trials[1].folder, [0.86], [0.7])
    rows = results(trials)
    assert [row.value("validation") for row in rows] == pytest.approx([0.85, 0.86])
    assert [row.value("test") for row in rows] == pytest.approx([0.6, 0.7])


def test_only_combinations_with_every_seed_can_be_the_best(tmp_path):
    trials = plan("digits", ["local.lr=0.03,0.1,0.3"], 2, tmp_path)
    for trial, value in zip(trials, (0.5, 0.5, 0.9, None, None, 0.4), strict=True):
        if value is not None:
            finish(trial.folder, [value], [value])
    trials[4].folder.mkdir()
    (trials[4].folder / "failure.txt").write_text("client 3, round 1: its loss was nan\n")
    rows = results(trials)
    assert [row.seeds for row in rows] == [2, 1, 1]
    assert rows[2].failures == ("client 3, round 1: its loss was nan",)
    assert best_of(rows, 2, "validation").choice == {"local.lr": "0.03"}
    assert best_of(rows[1:], 2, "validation") is None


def test_the_state_of_a_folder(tmp_path):
    assert state_of(tmp_path / "nowhere") == "new"
    (tmp_path / "config.toml").touch()
    assert state_of(tmp_path) == "begun"
    finish(tmp_path / "done", [0.1], [0.2])
    assert state_of(tmp_path / "done") == "finished"
    (tmp_path / "done" / "summary.json").write_text("{")
    refused(lambda: state_of(tmp_path / "done"), "remove the folder", kind=CheckpointError)


SMALL = ["rounds=4", "local.steps=1", "cohort=2", "data.clients=8", "evaluate.every=1"]
SPACE = ["local.lr=0.001..1:log", "local.batch=4..16", "algorithm=fedavg,fedavgm"]


def test_ranges_and_lists_are_told_apart():
    space = [*SPACE, "local.clip=1..10.5"]
    swept = Sweep("digits", [*SMALL, *space, "local.weight_decay=1"], by="test", search=True)
    assert swept.common == (*SMALL, "local.weight_decay=1")
    assert [*swept.values] == ["local.lr", "local.batch", "algorithm", "local.clip"]
    assert swept.values["algorithm"] == ["fedavg", "fedavgm"]
    assert swept.ranges == {
        "local.lr": Range(0.001, 1.0, False, True),
        "local.batch": Range(4.0, 16.0, True, False),
        "local.clip": Range(1.0, 10.5, False, False),
    }


def test_without_optuna_it_is_said_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"pip install .*\[optuna\]"):
        Search(Sweep("digits", SPACE, search=True), 3)


def swept(*more):
    words = ["swept", "digits", *SMALL, *SPACE, "--quiet", *more]
    return CliRunner().invoke(cli, words, prog_name="fedloom")


def said_by(done):
    """What a swept says, without the warnings of runs that learn nothing in four rounds."""
    return "\n".join(x for x in done.output.splitlines() if not x.startswith("warning: "))


def folders_in(where):
    return sorted(p.parent.name for p in Path(where).glob("*/config.toml"))


@pytest.fixture
def optuna(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return pytest.importorskip("optuna")


@pytest.mark.filterwarnings("ignore")
def test_a_stopped_search_tries_what_it_would_have(optuna):
    done = swept("--trials", "4", "--out", "whole")
    assert done.exit_code == 0, done.output
    assert "best by the validation split: local.lr=" in done.output
    assert len(folders_in("whole")) == 4 and Path("whole/best.toml").is_file()
    again = swept("--trials", "4", "--out", "whole")
    assert said_by(again) == said_by(done), "nothing is left to do"
    with failing_in_run(3, KeyboardInterrupt):
        assert swept("--trials", "4", "--out", "again").exit_code == 130
    again = swept("--trials", "4", "--out", "again")
    assert said_by(again) == said_by(done).replace("whole", "again")
    assert folders_in("again") == folders_in("whole")
