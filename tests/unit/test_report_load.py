"""Reading run directories, whole and broken, and grouping them."""

import json

import numpy as np
import pytest
from report_fakes import BYTES_DOWN, BYTES_UP, SECONDS, fake_run, groups_at

from fedloom.errors import CheckpointError
from fedloom.report.curve_data import best, first_hit, group_curve, last, measured
from fedloom.report.runs import load_run

BOTH = BYTES_DOWN + BYTES_UP


def test_rows_have_running_sums_and_a_round_that_was_run_again_counts_once(tmp_path):
    folder = fake_run(tmp_path / "a", [0.1, 0.2, 0.3])
    run = load_run(folder)
    assert run.bytes.tolist() == [BOTH, 2 * BOTH, 3 * BOTH]
    assert np.allclose(run.seconds, run.rounds * SECONDS)
    assert (run.algorithm, run.label, run.seed, run.planned) == ("fedavg", "FedAvg", 0, 3)
    assert run.finished
    with (folder / "rounds.jsonl").open("a") as file:
        file.write(json.dumps({"round": 3, "test_accuracy": 0.9, "bytes_up": 1}) + "\n")
    again = load_run(folder)
    assert again.rounds.tolist() == [1, 2, 3]
    assert last(again, "test_accuracy") == 0.9 and again.bytes[-1] == 2 * BOTH + 1


@pytest.mark.parametrize(
    "end", [b"{", b'{"round": 3, "lr": 0', '{"round": 3, "note": "é'.encode()[:-1], b'{"round": 3']
)
def test_a_last_line_that_was_cut_is_ignored(tmp_path, end):
    folder = fake_run(tmp_path / "a", [0.1, 0.2], planned=3, summary=False)
    with (folder / "rounds.jsonl").open("ab") as file:
        file.write(end)
    run = load_run(folder)
    assert run.rounds.tolist() == [1, 2] and not run.finished


def test_rounds_without_evaluation_are_told_from_values_that_are_not_finite(tmp_path):
    run = load_run(fake_run(tmp_path / "a", [0.5, None, 0.7, None, float("nan"), None]))
    rows, values = measured(run, "test_accuracy")
    assert rows.tolist() == [0, 2, 4] and np.isnan(values[-1])
    assert np.isnan(last(run, "test_accuracy")) and best(run) == 0.7


@pytest.mark.parametrize(
    "content",
    ["missing", "file", {}, "[tool]\nx = 1\n", 'rounds = 3\n[algorithm]\nname = "fedavg"\n'],
)
def test_what_is_no_run_directory_is_refused_in_one_line(tmp_path, content):
    place = tmp_path / "x"
    if content == "file":
        place.write_text("x")
    elif content != "missing":
        place.mkdir()
        if content:
            (place / "config.toml").write_text(content)
    with pytest.raises(CheckpointError, match="is not a run directory") as caught:
        load_run(place)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("summary.json", '{"a": \n\n', "summary.json"),
        ("ledger.json", '{"a": \n\n', "ledger.json"),
        ("config.toml", '{"a": \n\n', "config.toml"),
        ("ledger.json", "[1]", "holds a list"),
        ("rounds.jsonl", '{"round": 1}\n{"round": 2, "tr\n{}\n', "read at line 2"),
    ],
)
def test_a_corrupt_file_is_named_in_one_line(tmp_path, file, content, said):
    folder = fake_run(tmp_path / "a", [0.1])
    (folder / file).write_text(content)
    with pytest.raises(CheckpointError, match=said) as caught:
        load_run(folder)
    assert "\n" not in str(caught.value)


def test_an_unfinished_run_has_its_name_and_the_metric_of_its_rows_or_no_row(tmp_path):
    parts = {"metric": ("rmse", False, ""), "summary": False, "config": 'label = "Mine"'}
    folder = fake_run(tmp_path / "a", [3.0], planned=9, **parts)
    run = load_run(folder)
    assert run.label == "Mine"
    assert (run.metric.name, run.metric.higher_is_better) == ("rmse", False)
    for file in folder.glob("*.json*"):
        file.unlink()
    (folder / "checkpoints").mkdir()
    begun = load_run(folder)
    assert (begun.rounds.size, begun.planned, begun.finished) == (0, 9, False)


def test_groups_keep_the_order_first_seen_and_take_in_unfinished_seeds(tmp_path):
    acg = {"algorithm": "fedacg", "label": "FedACG"}
    groups = groups_at(
        fake_run(tmp_path / "b0", [0.1], **acg),
        fake_run(tmp_path / "a0", [0.1]),
        fake_run(tmp_path / "b1", [0.1], **acg, seed=1),
        fake_run(tmp_path / "b2", [0.1], algorithm="fedacg", seed=2, summary=False),
    )
    assert [group.label for group in groups] == ["FedACG", "FedAvg"]
    assert [run.seed for run in groups[0].runs] == [0, 1, 2]
    assert [run.seed for run in groups[0].averaged_runs] == [0, 1]
    assert groups[0].state == "1 unfinished left out"


def test_a_seed_counts_once_its_longest_run(tmp_path):
    (group,) = groups_at(
        fake_run(tmp_path / "whole", [0.1, 0.4]),
        fake_run(tmp_path / "again", [0.1, 0.5]),
        fake_run(tmp_path / "begun", [0.9], planned=2, summary=False),
        fake_run(tmp_path / "other", [0.1, 0.6], seed=1),
    )
    assert [run.path.name for run in group.runs] == ["again", "other"]
    assert group.state == "2 of a seed already there left out"


@pytest.mark.parametrize("whole", [True, False])
def test_runs_that_differ_in_what_decides_no_number_are_one_group(tmp_path, whole):
    """Also where one of them has no summary."""
    a = fake_run(tmp_path / "a", [0.1])
    b = fake_run(tmp_path / "b", [0.2], config=FREE, seed=1, summary=whole)
    (group,) = groups_at(a, b)
    assert [run.seed for run in group.runs] == [0, 1] and group.label == "FedAvg"


FREE = 'device = "cpu"\nengine = "workers:2"\n[checkpoint]\nkeep = 3\n'


def test_groups_with_one_label_are_told_apart_by_their_settings(tmp_path):
    """And by nothing that decides no number."""
    lines = [f"weighting = 'u'\n{FREE}", f"weighting = 'v'\n{FREE}", "weighting = 'w'"]
    runs = [fake_run(tmp_path / line[13], [0.1], config=line) for line in lines]
    assert [g.label for g in groups_at(*runs)] == [f"FedAvg (weighting {x})" for x in "uvw"]


def test_a_mean_line_has_only_rounds_that_all_seeds_measured(tmp_path):
    (group,) = groups_at(
        fake_run(tmp_path / "a", [0.2, None, 0.6, 0.8], summary=False),
        fake_run(tmp_path / "b", [0.4, 0.5, 0.2], seed=1, planned=4, summary=False),
    )
    curve = group_curve(group, "test_accuracy", "bytes")
    assert curve.x.tolist() == [BOTH, 3 * BOTH]
    for line, values in (("mean", [0.3, 0.4]), ("low", [0.2, 0.2]), ("high", [0.4, 0.6])):
        assert np.allclose(getattr(curve, line), values)


def test_a_target_is_first_reached_on_the_ema_curve_or_from_above(tmp_path):
    run = load_run(fake_run(tmp_path / "a", [0.9, 0.9, 0.9, 0.1], ema=[0.1, 0.5, 0.6, 0.9]))
    hit = first_hit(run, 0.5)
    assert (hit.round, hit.bytes, hit.seconds) == (2, 2 * BOTH, 2 * SECONDS)
    assert hit.gradients == 2 * 50 and first_hit(run, 0.95) is None
    lower = load_run(fake_run(tmp_path / "b", [9.0, 5.0, 4.0], metric=("mse", False, "")))
    assert first_hit(lower, 5.0).round == 2 and best(lower) == 4.0
