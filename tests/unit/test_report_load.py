"""Reading run directories, whole and broken, and grouping them."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import numpy as np
import pytest
from report_fakes import BYTES_DOWN, BYTES_UP, SECONDS, fake_run

import fedloom.report
from fedloom.errors import CheckpointError
from fedloom.report.curve_data import best, first_hit, group_curve, last, measured
from fedloom.report.runs import group_runs, load_run


def test_bytes_and_seconds_are_running_sums(tmp_path: Path) -> None:
    run = load_run(fake_run(tmp_path / "a", [0.1, 0.2, 0.3]))
    t = np.arange(1, 4)
    assert run.rounds.tolist() == [1, 2, 3]
    assert run.bytes.tolist() == (t * (BYTES_DOWN + BYTES_UP)).tolist()
    assert np.allclose(run.seconds, t * SECONDS)
    assert (run.algorithm, run.label, run.seed, run.planned) == ("fedavg", "FedAvg", 0, 3)
    assert run.finished


@pytest.mark.parametrize("keep", [1, 20, 200, -1])
def test_a_cut_last_line_is_ignored(tmp_path: Path, keep: int) -> None:
    folder = fake_run(tmp_path / "a", [0.1, 0.2, 0.3], summary=False)
    whole = (folder / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    cut = whole[2].rstrip(b"\n")[:keep]
    (folder / "rounds.jsonl").write_bytes(b"".join(whole[:2]) + cut)
    run = load_run(folder)
    assert run.rounds.tolist() == [1, 2]
    assert not run.finished


def test_a_last_line_cut_inside_a_letter_is_ignored(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "a", [0.1, 0.2], summary=False)
    with (folder / "rounds.jsonl").open("ab") as file:
        file.write('{"round": 3, "note": "é'.encode()[:-1])
    assert load_run(folder).rounds.tolist() == [1, 2]


def test_a_corrupt_line_in_the_middle_is_an_error_that_names_it(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "a", [0.1, 0.2, 0.3])
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_text(lines[0] + '{"round": 2, "tr\n' + lines[2])
    with pytest.raises(CheckpointError, match=r"rounds\.jsonl' cannot be read at line 2"):
        load_run(folder)


def test_a_round_that_was_run_again_counts_once_with_its_last_values(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "a", [0.1, 0.2, 0.3])
    with (folder / "rounds.jsonl").open("a") as file:
        file.write(json.dumps({"round": 3, "test_accuracy": 0.9, "bytes_up": 1}) + "\n")
    run = load_run(folder)
    assert run.rounds.tolist() == [1, 2, 3]
    assert last(run, "test_accuracy") == 0.9
    assert run.bytes[-1] == 2 * (BYTES_DOWN + BYTES_UP) + 1


def test_rounds_without_evaluation_are_told_from_values_that_are_not_finite(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "a", [0.5, None, 0.7, None, float("nan"), None])
    run = load_run(folder)
    rows, values = measured(run, "test_accuracy")
    assert rows.tolist() == [0, 2, 4]
    assert np.isnan(values[-1])
    assert np.isnan(last(run, "test_accuracy") or 0.0)
    assert best(run) == 0.7


@pytest.mark.parametrize("what", ["missing", "empty", "file", "other", "settings"])
def test_what_is_no_run_directory_is_refused_in_one_line(tmp_path: Path, what: str) -> None:
    place = tmp_path / "x"
    if what == "file":
        place.write_text("x")
    elif what != "missing":
        place.mkdir()
    if what == "other":
        (place / "config.toml").write_text("[tool]\nx = 1\n")
    if what == "settings":
        (place / "config.toml").write_text('rounds = 3\n[algorithm]\nname = "fedavg"\n')
    with pytest.raises(CheckpointError, match="is not a run directory") as caught:
        load_run(place)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("file", ["summary.json", "ledger.json", "config.toml"])
def test_a_corrupt_file_is_named_in_one_line(tmp_path: Path, file: str) -> None:
    folder = fake_run(tmp_path / "a", [0.1])
    (folder / file).write_text('{"a": \n\n')
    with pytest.raises(CheckpointError, match=file) as caught:
        load_run(folder)
    assert "\n" not in str(caught.value)


def test_a_json_file_that_is_no_object_is_refused(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "a", [0.1])
    (folder / "ledger.json").write_text("[1]")
    with pytest.raises(CheckpointError, match="holds a list"):
        load_run(folder)


def test_a_run_killed_at_the_start_has_no_rounds(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "a", [0.1], planned=9, summary=False)
    for file in folder.glob("*.json*"):
        file.unlink()
    (folder / "checkpoints").mkdir()
    run = load_run(folder)
    assert run.rounds.size == 0
    assert run.planned == 9
    assert not run.finished


def test_without_a_summary_the_metric_comes_from_the_rows(tmp_path: Path) -> None:
    named = 'label = "Mine"'
    made = fake_run(tmp_path / "a", [3.0], metric=("rmse", False, ""), summary=False, config=named)
    run = load_run(made)
    assert run.label == "Mine", "an unfinished run has the name that the finished one will have"
    assert (run.metric.name, run.metric.higher_is_better) == ("rmse", False)


def test_groups_keep_the_order_first_seen_and_take_in_unfinished_seeds(tmp_path: Path) -> None:
    paths = [
        fake_run(tmp_path / "b0", [0.1], algorithm="fedacg", label="FedACG"),
        fake_run(tmp_path / "a0", [0.1]),
        fake_run(tmp_path / "b1", [0.1], algorithm="fedacg", label="FedACG", seed=1),
        fake_run(tmp_path / "b2", [0.1], algorithm="fedacg", seed=2, summary=False),
    ]
    groups = group_runs(map(load_run, paths))
    assert [group.label for group in groups] == ["FedACG", "FedAvg"]
    assert [run.seed for run in groups[0].runs] == [0, 1, 2]
    assert [run.seed for run in groups[0].averaged_runs] == [0, 1]
    assert groups[0].state == "1 unfinished left out"


def test_runs_that_differ_in_what_decides_no_number_are_one_group(tmp_path: Path) -> None:
    """Also where one of them has no summary."""
    free = 'device = "cpu"\nengine = "workers:2"\n[checkpoint]\nkeep = 3\n'
    for whole in (True, False):
        a = fake_run(tmp_path / f"{whole}" / "a", [0.1])
        b = fake_run(tmp_path / f"{whole}" / "b", [0.2], config=free, seed=1, summary=whole)
        (group,) = group_runs(map(load_run, (a, b)))
        assert [run.seed for run in group.runs] == [0, 1]
        assert group.label == "FedAvg"
    more = [fake_run(tmp_path / x, [0.1], config=f"weighting = '{x}'\n{free}") for x in "uv"]
    more.append(fake_run(tmp_path / "w", [0.1], config="weighting = 'w'"))
    labels = [group.label for group in group_runs(map(load_run, more))]
    assert labels == [f"FedAvg (weighting {x})" for x in "uvw"], "nothing else tells them apart"


def test_groups_with_one_label_are_told_apart_by_their_settings(tmp_path: Path) -> None:
    lines = ["lr = 0.1", "lr = 0.2"]
    paths = [fake_run(tmp_path / line, [0.1], config=line) for line in lines]
    labels = [group.label for group in group_runs(map(load_run, paths))]
    assert labels == ["FedAvg (lr 0.1)", "FedAvg (lr 0.2)"]


def test_a_mean_line_has_only_rounds_that_all_seeds_measured(tmp_path: Path) -> None:
    a = fake_run(tmp_path / "a", [0.2, None, 0.6, 0.8], summary=False)
    b = fake_run(tmp_path / "b", [0.4, 0.5, 0.2], seed=1, planned=4, summary=False)
    (group,) = group_runs([load_run(a), load_run(b)])
    curve = group_curve(group, "test_accuracy", "bytes")
    assert curve is not None
    assert curve.x.tolist() == [1 * (BYTES_DOWN + BYTES_UP), 3 * (BYTES_DOWN + BYTES_UP)]
    assert np.allclose(curve.mean, [0.3, 0.4])
    assert np.allclose(curve.low, [0.2, 0.2])
    assert np.allclose(curve.high, [0.4, 0.6])


def test_a_target_is_first_reached_on_the_ema_curve(tmp_path: Path) -> None:
    run = load_run(fake_run(tmp_path / "a", [0.9, 0.9, 0.9, 0.1], ema=[0.1, 0.5, 0.6, 0.9]))
    hit = first_hit(run, 0.5)
    assert hit is not None
    assert (hit.round, hit.bytes, hit.seconds) == (2, 2 * (BYTES_DOWN + BYTES_UP), 2 * SECONDS)
    assert hit.gradients == 2 * 50
    assert first_hit(run, 0.95) is None


def test_a_lower_metric_reaches_its_target_from_above(tmp_path: Path) -> None:
    run = load_run(fake_run(tmp_path / "a", [9.0, 5.0, 4.0], metric=("mse", False, "")))
    hit = first_hit(run, 5.0)
    assert hit is not None
    assert hit.round == 2
    assert best(run) == 4.0


def test_nothing_heavy_is_imported_with_the_package() -> None:
    heavy = {"torch", "matplotlib", "jinja2", "pandas", "scipy"}
    for file in Path(fedloom.report.__file__).parent.glob("*.py"):
        for node in ast.parse(file.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not heavy & {name.split(".")[0] for name in names}, file.name


def test_a_seed_counts_once_its_longest_run(tmp_path: Path) -> None:
    paths = [
        fake_run(tmp_path / "whole", [0.1, 0.4]),
        fake_run(tmp_path / "again", [0.1, 0.5]),
        fake_run(tmp_path / "begun", [0.9], planned=2, summary=False),
        fake_run(tmp_path / "other", [0.1, 0.6], seed=1),
    ]
    (group,) = group_runs(map(load_run, paths))
    assert [run.path.name for run in group.runs] == ["again", "other"]
    assert group.state == "2 of a seed already there left out"
