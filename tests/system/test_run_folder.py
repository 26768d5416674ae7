"""A run writes, cuts and deletes what it made itself, in a folder that is its own alone."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from crash_script import agree, experiment

import fedloom.experiment.experiment
import fedloom.storage.atomic
from fedloom.errors import CheckpointError, ConfigError
from fedloom.storage.run_directory import RunDirectory


def content(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# ------------------------------------------------------------------------------ what others made
def test_what_others_put_into_a_run_folder_stays(run, whole):
    newest = run / "checkpoints" / "00000006"
    mine = [
        run / "checkpoints" / "zz" / "notes.txt",
        run / "checkpoints" / "00000009.bak" / "notes.txt",
        run / "checkpoints" / "notes.txt",
        newest / "notes.txt",
        run / "checkpoints" / "00000008" / "notes.txt",
        run / "memory" / "mine.safetensors",
        run / "papers" / ".draft.tex.1.part",
        run / "half.part",
    ]
    shutil.copytree(newest, run / "checkpoints" / "best")
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    best = content(run / "checkpoints" / "best")
    agree(experiment(rounds=10).resume(run), whole)
    assert [path for path in mine if path.read_text() != "mine"] == []
    assert content(run / "checkpoints" / "best") == best
    assert not (newest / "manifest.json").exists()  # it is an old one by now, and let go


def test_a_copied_checkpoint_is_not_gone_on_from(run, whole):
    """It sorts behind all that are named by their rounds."""
    done = []
    shutil.move(run / "checkpoints" / "00000004", run / "checkpoints" / "best")
    on_round = [lambda row: done.append(row["round"])]
    agree(experiment(rounds=10, on_round=on_round).resume(run), whole)
    assert done == [7, 8, 9, 10]


OWN = ["rounds.jsonl", "checkpoints", "memory", ".lock", "checkpoints/00000006"]
OWN += [f"checkpoints/00000006/{name}" for name in ("manifest.json", "state.safetensors")]


@pytest.mark.parametrize("name", OWN)
def test_a_link_is_refused_and_what_it_leads_to_stays(name, run, tmp_path):
    home = tmp_path / "home"
    shutil.move(run / name, home)
    (run / name).symlink_to(home)
    before = content(tmp_path)
    with pytest.raises(CheckpointError, match=rf"{name}' is a link.*put a copy") as caught:
        experiment(rounds=10).resume(run)
    assert "\n" not in str(caught.value) and content(tmp_path) == before


def test_a_folder_with_something_in_it_is_no_place_for_a_run(tmp_path):
    for name in ("environment.json", "checkpoints/best/notes.txt", ".x.1.part/notes", "notes"):
        folder = tmp_path / name.replace("/", "-")
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("mine")
        with pytest.raises(ConfigError, match="exists and is not empty; choose another folder"):
            experiment(rounds=1).run(folder)
        assert content(folder) == {Path(name): b"mine"}


def test_a_run_whose_checkpoints_are_gone_does_not_begin_again(whole, tmp_path):
    """Its rounds would be cut away."""
    run = Path(shutil.copytree(whole.path, tmp_path / "run"))
    rows = (run / "rounds.jsonl").read_bytes()
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(CheckpointError, match="its checkpoints are gone; put back"):
        experiment(rounds=10).resume(run)
    (run / "checkpoints").mkdir()  # emptied, to save room
    with pytest.raises(CheckpointError, match="its checkpoints are gone; put back"):
        experiment(rounds=10).resume(run)
    assert (run / "rounds.jsonl").read_bytes() == rows


# ------------------------------------------------------------------------------- one run at a time
def test_of_two_that_begin_at_once_the_second_writes_nothing(tmp_path, monkeypatch):
    describe, seen = fedloom.experiment.experiment.describe, []

    def slowly(*arguments):
        monkeypatch.setattr(fedloom.experiment.experiment, "describe", describe)
        before = content(tmp_path)
        with pytest.raises(ConfigError, match="is being run by another process") as caught:
            experiment(rounds=2, seed=6).run(tmp_path / "run")
        assert f"process {os.getpid()} on" in str(caught.value)
        assert content(tmp_path) == before
        seen.append(RunDirectory(tmp_path / "run").holder())
        describe(*arguments)

    monkeypatch.setattr(fedloom.experiment.experiment, "describe", slowly)
    one = experiment(rounds=2).run(tmp_path / "run")
    agree(experiment(rounds=2).resume(tmp_path / "run"), one)
    assert len(seen) == 1 and seen[0] is not None
    assert RunDirectory(tmp_path / "run").holder() is None


def test_nobody_resumes_what_is_running(tmp_path):
    def resume(row):
        before = content(tmp_path)
        with pytest.raises(ConfigError, match="is being run by another process"):
            experiment(rounds=4).resume(tmp_path / "run")
        assert content(tmp_path) == before

    experiment(rounds=2, on_round=[resume]).run(tmp_path / "run")


def test_a_run_whose_folder_was_taken_leaves_the_new_one_alone(tmp_path):
    """Somebody removes a folder, and begins again there, while the first run still goes on."""

    def begin_again(row):
        if row["round"] == 2:
            shutil.rmtree(tmp_path / "run")
            experiment(rounds=3, seed=6).run(tmp_path / "run")

    with pytest.raises(CheckpointError, match="another run has begun there"):
        experiment(rounds=4, on_round=[begin_again]).run(tmp_path / "run")
    wanted = experiment(rounds=3, seed=6, resident_bytes=None).run()
    agree(experiment(rounds=3, seed=6).resume(tmp_path / "run"), wanted)


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
