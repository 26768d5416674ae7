"""What was changed since it was written is said, and never gone on from."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from crash_script import agree, experiment

from fedloom.errors import CheckpointError
from fedloom.report import load_run
from fedloom.storage.atomic import checksum
from fedloom.storage.run_directory import RunDirectory
from fedloom.study import state_of
from tiny import clusters, weights

# -------------------------------------------------------------------------------- the log of rounds


@pytest.mark.parametrize("name", ["config.toml", "summary.json", "manifest.json", "memory.json"])
def test_files_that_are_nested_too_deep_are_one_line(name, run):
    opened = "a = " + "[" * 100_000 if name == "config.toml" else "[" * 100_000
    files = [*run.rglob(name)] or [run / name]
    for file in files:
        file.write_text(opened)
    calls = {
        "config.toml": [lambda: load_run(run), RunDirectory(run).read_config],
        "summary.json": [lambda: load_run(run), lambda: state_of(run)],
    }
    for call in calls.get(name, [lambda: experiment(rounds=10).resume(run)]):
        with pytest.raises(CheckpointError) as caught:
            call()
        assert "\n" not in str(caught.value) and name in str(caught.value)


def test_the_checksum_is_of_the_log_whenever_it_is_saved(tmp_path):
    """Also after a stop, which cuts the log, and with rows that no checkpoint has."""

    def stop(row):
        if row["round"] == 5:
            raise KeyError

    with pytest.raises(KeyError):
        experiment(rounds=9, on_round=[stop]).run(tmp_path / "run")
    with open(tmp_path / "run" / "rounds.jsonl", "a") as f:
        f.write('{"round": 6, "tr')  # what a kill leaves
    assert load_run(tmp_path / "run").rounds.tolist() == [1, 2, 3, 4, 5]
    experiment(rounds=9).resume(tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints").glob("*/manifest.json"):
        said = json.loads(path.read_text())
        log = tmp_path / "run" / "rounds.jsonl"
        assert said["log_sha256"] == checksum(log, said["log_bytes"])


# ---------------------------------------------------------------------------- data and environment
def test_every_changed_input_is_another_run(tmp_path):
    data = clusters(sizes=(1, 300, 300, 200))

    def resumed(**changes):
        return experiment(rounds=1, data=replace(data, **changes)).resume(tmp_path / "run")

    experiment(rounds=1, data=data).run(tmp_path / "run")
    for name in ("inputs", "test_inputs"):
        array = getattr(data, name)
        for row in (0, 1, 2, len(array) - 2, len(array) - 1):
            other = array.clone()
            other[row, -1] += 1e-3
            with pytest.raises(CheckpointError, match="samples differ"):
                resumed(**{name: other})
    with pytest.raises(CheckpointError, match="samples differ"):
        resumed(inputs=data.inputs.flip(0))
    resumed(inputs=data.inputs.t().contiguous().t())  # the same, laid out otherwise


def test_a_large_array_is_hashed_piece_by_piece(monkeypatch):
    from fedloom.experiment import provenance as describe

    x = torch.arange(7 * 5 * 3.0).view(7, 5, 3)
    arrays = [x, x.transpose(0, 2), torch.empty(0, 4), torch.empty(4, 0), torch.tensor(3)]
    once = describe._content(arrays)
    for size in (1, 60, 130):
        monkeypatch.setattr(describe, "_PIECE", size)
        assert describe._content(arrays) == once


def test_a_fingerprint_that_is_none_is_said(run):
    (run / "fingerprint.json").write_text("[]")
    (run / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"fingerprint.json' cannot be read"):
        experiment(rounds=10).resume(run)


@pytest.mark.parametrize("name", ["fedloom", "torch"])
def test_another_version_is_said_and_written_down(name, run, whole, caplog):
    path = run / "environment.json"
    now = json.loads(path.read_text())
    path.write_text(json.dumps(now | {name: "0.0.7"}))
    (run / "manifest.json").unlink()
    experiment(rounds=8).resume(run)
    assert f"was run with {name} 0.0.7 until round 6 and goes on with {name} {now[name]}" in (
        caplog.text
    )
    caplog.clear()
    assert weights(experiment(rounds=10).resume(run).model) == weights(whole.model)
    assert not caplog.text
    assert json.loads(path.read_text())["earlier"] == f"{name} 0.0.7 until round 6"


def test_versions_that_are_not_known_are_said(run, whole, caplog):
    (run / "environment.json").write_text("{")
    agree(experiment(rounds=10).resume(run), whole)
    assert "which versions made the rounds until now is not known" in caplog.text
