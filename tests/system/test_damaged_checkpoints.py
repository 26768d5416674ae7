"""Checkpoints that are damaged, of another run, or never came about."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from crash_script import agree, experiment

import fedloom.storage.atomic
from fedloom import Checkpoint
from fedloom.errors import CheckpointError


def checkpoints(run):
    """Of the round before and of the last one."""
    return sorted((run / "checkpoints").iterdir())


def truncate(path):
    os.truncate(path, path.stat().st_size // 2)


def flip(path):
    raw = bytearray(path.read_bytes())
    raw[-5] ^= 255
    path.write_bytes(raw)


FILES = ["state.safetensors", "memory.json", "manifest.json"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink])
def test_a_damaged_checkpoint_is_passed_over(name, damage, whole, run, caplog):
    _, new = checkpoints(run)
    damage(new / name)
    agree(experiment(rounds=10).resume(run), whole)
    if (name, damage) != ("manifest.json", Path.unlink):  # without one it never was a checkpoint
        assert f"{new.name} is damaged" in caplog.text


@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink])
def test_damaged_client_memory_is_passed_over(damage, whole, run, caplog):
    old, new = checkpoints(run)
    own = lambda folder: {
        s[0] for s in json.loads((folder / "memory.json").read_text())["segments"]
    }
    only_new = own(new) - own(old)
    assert only_new
    for name in only_new:
        damage(run / "memory" / name)
    agree(experiment(rounds=10).resume(run), whole)
    assert f"{new.name} is damaged" in caplog.text


def test_an_older_checkpoint_that_is_damaged_is_let_go(whole, run, caplog):
    old, _ = checkpoints(run)
    truncate(old / "memory.json")
    saving = Checkpoint(every_rounds=2, every_seconds=None, keep=4)
    agree(experiment(rounds=10, checkpoint=saving).resume(run), whole)
    assert not old.exists() and f"{old.name} is damaged" in caplog.text


@pytest.mark.parametrize("damage", [truncate, flip])
def test_nothing_whole_is_one_clear_error(damage, run):
    for folder in checkpoints(run):
        damage(folder / "state.safetensors")
    with pytest.raises(CheckpointError, match=r"no checkpoint of .* can be read") as caught:
        experiment(rounds=10).resume(run)
    assert "\n" not in str(caught.value)


def test_another_configuration_is_refused(tmp_path):
    from fedloom import Local
    from fedloom.algorithms import FedACG
    from tiny import clusters, mlp

    experiment(rounds=2).run(tmp_path / "run")
    others = {
        "algorithm": FedACG(),
        "seed": 6,
        "cohort": 3,
        "local": Local(epochs=1, batch=4, lr=0.051),
        "data": clusters(seed=8),
        "data ": clusters(sizes=(1, 3, 5, 8, 11, 3, 12)),
        "model": mlp(seed=6),
        "weighting": "uniform",
        "sampling": "bernoulli",
        "nonfinite": "skip",
    }
    missed = []
    for name, value in others.items():
        try:
            experiment(**{name.strip(): value, "rounds": 2}).resume(tmp_path / "run")
            missed.append(name)
        except CheckpointError as error:
            assert re.search("another configuration.*differ", str(error))
    assert not missed
    assert len(experiment(rounds=3).resume(tmp_path / "run").history) == 3
    with pytest.raises(CheckpointError, match="not a run directory"):
        experiment().resume(tmp_path)


@pytest.mark.parametrize("first", ["partition.json", "fingerprint.json", "config.toml"])
def test_a_run_killed_before_it_could_be_resumed_can_be_started_again(first, tmp_path, monkeypatch):
    write = fedloom.storage.atomic.os.replace

    def killed(a, b):
        if Path(b).name == first:
            raise KeyboardInterrupt
        write(a, b)

    monkeypatch.setattr(fedloom.storage.atomic.os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        experiment(rounds=1).run(tmp_path / "run")
    with pytest.raises(CheckpointError, match="not a run directory"):
        experiment(rounds=1).resume(tmp_path / "run")
    monkeypatch.undo()
    assert len(experiment(rounds=1).run(tmp_path / "run").history) == 1
