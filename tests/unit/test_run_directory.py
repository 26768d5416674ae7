"""Checkpoints as folders whose manifest comes last."""

from __future__ import annotations

import hashlib
import os
import re

import pytest
import torch

import fedloom.storage.atomic
from fedloom.core.vector import rec
from fedloom.errors import CheckpointError, ConfigError
from fedloom.storage.atomic import checksum, concerns, reason, remedy, write_atomic
from fedloom.storage.client_state import ClientMemory
from fedloom.storage.identity import group_of
from fedloom.storage.run_directory import Checkpoint, RunDirectory, Snapshot
from tiny import same


def state(round):
    srv = rec(x=torch.full((3,), float(round)), own=rec(m=torch.arange(3.0)), t=0.5)
    return Snapshot(round, srv, torch.arange(2.0) + round, {"note": {"n": round}})


def row(version):
    return rec(alg=rec(c=torch.full((4,), float(version))), obj=rec(), last=1.0)


@pytest.fixture
def run(tmp_path):
    folder = RunDirectory(tmp_path / "run")
    folder.create()
    return folder


def saved(run, rounds, keep=2):
    memory = ClientMemory(run.memory_folder)
    for r in rounds:
        memory.put({r % 3: row(r)})
        run.append_round({"round": r})
        run.save(state(r), memory, keep)
    return memory


def loaded(run):
    memory = ClientMemory(run.memory_folder)
    return run.load(memory), memory


def test_a_new_run_removes_what_a_kill_in_the_first_moments_left(tmp_path):
    left = [tmp_path / ".partition.json.77.part", tmp_path / "checkpoints", tmp_path / ".lock"]
    left[0].touch(), left[1].mkdir(), left[2].touch()
    (other := tmp_path / "partition.json").touch()
    with RunDirectory(tmp_path).created():
        assert not left[0].exists() and other.exists()


def test_what_is_saved_is_loaded(run):
    saved(run, [1, 2])
    got, memory = loaded(run)
    assert got.round == 2 and same(got.srv, state(2).srv)
    assert torch.equal(got.buffers, state(2).buffers) and got.extra["note"] == {"n": 2}
    assert same(memory.get([2])[2], row(2)) and same(memory.get([1])[1], row(1))


def test_as_many_stay_as_are_asked_for(run):
    saved(run, range(1, 8), keep=3)
    assert sorted(p.name for p in run.checkpoints.iterdir()) == ["00000005", "00000006", "00000007"]
    live = {p.name for p in run.memory_folder.iterdir()}
    assert len(live) <= 5


def test_a_folder_without_a_manifest_does_not_count(run):
    saved(run, [1])
    half = run.checkpoints / "00000002"
    half.mkdir()
    (half / "state.safetensors").write_bytes(b"half")
    got, _ = loaded(run)
    assert got.round == 1
    run.rewind(got.extra["log"], got.round)
    assert not half.exists()
    assert loaded(RunDirectory(run.path.parent / "nothing"))[0] is None


def test_the_log_is_cut_back_to_the_checkpoint(run):
    saved(run, [1, 2])
    run.append_round({"round": 3})
    with open(run.rounds, "a") as f:
        f.write('{"round": 4, "lo')  # what a kill leaves
    got, _ = loaded(run)
    run.rewind(got.extra["log"], got.round)
    assert [r["round"] for r in run.read_rounds(got.extra["log"], 2)] == [1, 2]
    assert run.rounds.stat().st_size == got.extra["log"]
    run.rounds.unlink()
    run.rewind(0, 0)  # no log yet
    assert not run.rounds.exists() and not [*run.checkpoints.iterdir()]


def test_a_log_that_is_damaged_or_gone_is_said_before_anything_is_removed(run):
    saved(run, [1, 2])
    size = run.rounds.stat().st_size
    with pytest.raises(CheckpointError, match="has 2 rounds, and its checkpoint 3"):
        run.read_rounds(size, 3)
    raw = run.rounds.read_bytes()
    run.rounds.write_bytes(raw.replace(b'"round": 1', b'"round": x'))
    with pytest.raises(CheckpointError, match=r"line 1 of .* is damaged"):
        run.read_rounds(size, 2)
    run.rounds.unlink()
    with pytest.raises(CheckpointError, match=r"rounds.jsonl is gone"):
        loaded(run)
    assert len(list(run.checkpoints.glob("*/manifest.json"))) == 2


def test_an_atomic_write_leaves_the_old_file_or_the_new_one(tmp_path, monkeypatch):
    path = tmp_path / "f"
    write_atomic(path, "old")
    with monkeypatch.context() as patch:
        patch.setattr(
            fedloom.storage.atomic.os,
            "fsync",
            lambda handle: (_ for _ in ()).throw(OSError(28, "full")),
        )
        with pytest.raises(OSError):
            write_atomic(path, "new")
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["f"]
    write_atomic(path, lambda p: p.write_bytes(b"new"))
    assert path.read_bytes() == b"new"
    assert checksum(path) == "11507a0e2f5e69d5dfa40a62a1bd7b6ee57e6bcd85c67c9b8431b36fff21c437"


def test_json_that_cannot_be_read_is_an_error_of_one_line(run):
    run.write_json("a.json", {"b": [1.5, None]})
    assert run.read_object("a.json") == {"b": [1.5, None]}
    (run.path / "a.json").write_text("{")
    for name in ("a.json", "missing.json"):
        with pytest.raises(CheckpointError, match=name) as caught:
            run.read_object(name)
        assert "\n" not in str(caught.value)


def test_checkpoints_are_written_every_minute_and_two_are_kept():
    usual = Checkpoint()
    assert (usual.every_rounds, usual.every_seconds, usual.keep) == (None, 60.0, 2)
    assert Checkpoint(keep=1, every_rounds=1, every_seconds=0).keep == 1


def test_what_is_no_folder_is_not_free(tmp_path):
    (tmp_path / "run").touch()
    run = RunDirectory(tmp_path / "run")
    assert not run.free()
    with pytest.raises(ConfigError, match="exists and is not a folder; choose another"):
        run.create()
    for name in (".lock", "environment.json"):  # the lock is the first file of a run
        other = RunDirectory(tmp_path / name[1:])
        other.path.mkdir()
        (other.path / name).touch()
        assert other.free() == (name == ".lock")
    (other.path / ".lock").touch()
    assert other.free()
    other.checkpoints.mkdir()
    assert other.free()
    (other.checkpoints / "00000001").mkdir()
    assert not other.free()
    (tmp_path / "run").unlink()
    run.path.mkdir()
    (run.path / "config.toml").touch()
    with pytest.raises(
        ConfigError, match=r"go on with `fedloom run --resume .*run` if it is this run, or choose"
    ):
        run.create()
    (run.path / "config.toml").write_text("[")
    with pytest.raises(CheckpointError, match=r"run/config\.toml cannot be read: "):
        run.read_config()


def test_the_log_is_on_the_disk_before_the_checkpoint_is_valid(run, monkeypatch):
    forced, real = [], os.fsync

    def fsync(handle):
        forced.append(os.fstat(handle).st_ino)
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    memory = ClientMemory(run.memory_folder)
    run.save(state(1), memory, 2)  # no rounds yet
    run.append_round({"round": 1})
    run.save(state(2), memory, 2)
    log, manifest = (
        p.stat().st_ino for p in (run.rounds, run.checkpoints / "00000002/manifest.json")
    )
    assert forced.index(log) < forced.index(manifest)
    before = len(forced)
    run.save(state(2), memory, 2)  # it is there already
    assert len(forced) == before


def test_a_log_that_cannot_be_written_is_said(run):
    run.rounds.mkdir()
    with pytest.raises(
        CheckpointError, match=r"rounds.jsonl' cannot be written: Is a directory; .*resume"
    ):
        run.append_round({"round": 1})
    with pytest.raises(CheckpointError, match=r"rounds.jsonl' cannot be read: Is a"):
        run.read_rounds(10, 1)
    assert run.read_rounds(0, 0) == []


def test_system_errors_are_told_in_words():
    assert reason(OSError("odd")) == "odd" and reason(OSError()) == "OSError"
    assert reason(OSError(28, "full")) == "full" and reason(OSError(28, "full", "f")) == "full: 'f'"
    said = {28: "make room", 2: "put it back", 13: "change who", 5: "check the disk", 24: "close"}
    assert all(remedy(OSError(n, "")).startswith(text) for n, text in said.items())
    assert remedy(OSError(12, "")) == "free memory" and remedy(OSError()) == "mend that"


def test_an_error_concerns_a_folder_if_its_file_is_in_there(tmp_path):
    inside, beside = str(tmp_path / "a" / "b"), str(tmp_path.parent / "b")
    assert concerns(OSError(2, "", inside), tmp_path) and concerns(OSError(2, ""), tmp_path)
    assert not concerns(OSError(2, "", beside), tmp_path)
    assert not concerns(OSError(2, "", str(tmp_path)), tmp_path)


def test_a_checksum_is_of_as_many_bytes_as_are_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(fedloom.storage.atomic, "_CHUNK", 4)
    (tmp_path / "f").write_bytes(content := b"0123456789")
    digest = lambda part: hashlib.sha256(part).hexdigest()
    assert checksum(tmp_path / "f") == digest(content)
    for size in (0, 1, 4, 6, 8, 10, 12):
        assert checksum(tmp_path / "f", size) == digest(content[:size])


def test_a_folder_that_cannot_be_written_is_said(run):
    (run.path / ".lock").mkdir()
    with pytest.raises(CheckpointError, match="cannot be written"), run.locked():
        pass


def test_the_identity_of_a_group_is_its_method_and_eight_digits():
    config = {"algorithm": {"name": "fedavg"}, "checkpoint": {"keep": 2}, "rounds": 3}
    assert re.fullmatch("fedavg-[0-9a-f]{8}", group_of(config))
    assert group_of(config) == group_of({**config, "checkpoint": {"keep": 3}})
    assert group_of(config) != group_of({**config, "rounds": 4})
