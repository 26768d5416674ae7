"""A run folder: its files, its log, its checkpoints and manifests, and what is said of damage."""

import hashlib
import json

import pytest
import torch

import fedloom.storage.atomic
from fedloom.core.vector import rec
from fedloom.errors import CheckpointError, ConfigError
from fedloom.storage.atomic import checksum, concerns, reason, remedy
from fedloom.storage.client_state import ClientMemory
from fedloom.storage.manifest import (
    altered,
    check_log,
    read_manifest,
    remove,
    round_folders,
    write_manifest,
)
from fedloom.storage.run_directory import RunDirectory, Snapshot
from support.refusals import refused

round_folder = lambda home, round: home / f"{round:08d}"
sha256 = lambda content: hashlib.sha256(content).hexdigest()


@pytest.fixture
def run(tmp_path):
    folder = RunDirectory(tmp_path / "run")
    with folder.locked(new=True):
        yield folder


def saved(run, rounds, keep=2):
    memory = ClientMemory(run.memory_folder)
    for t in rounds:
        memory.put({t % 3: rec(alg=rec(c=torch.full((4,), float(t))), obj=rec(), last=1.0)})
        run.append_round({"round": t})
        srv = rec(x=torch.full((3,), float(t)), own=rec(m=torch.arange(3.0)), t=0.5)
        run.save(Snapshot(t, srv, torch.zeros(2), {}), memory, keep)


def test_a_new_run_removes_what_a_kill_in_the_first_moments_left(tmp_path):
    left = [tmp_path / ".partition.json.77.part", tmp_path / "checkpoints", tmp_path / ".lock"]
    left[0].touch(), left[1].mkdir(), left[2].touch()
    (other := tmp_path / "partition.json").touch()
    with RunDirectory(tmp_path).locked(new=True):
        assert not left[0].exists() and other.exists()


def test_as_many_checkpoints_stay_as_are_wanted(run):
    saved(run, range(1, 8), keep=3)
    assert sorted(p.name for p in run.checkpoints.iterdir()) == ["00000005", "00000006", "00000007"]
    assert len([*run.memory_folder.iterdir()]) <= 5
    saved(run, [7])  # which is there already
    assert len([*run.checkpoints.iterdir()]) == 3


def test_a_folder_is_free_until_a_run_has_begun_in_it(tmp_path):
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


def test_what_is_no_free_folder_is_refused(tmp_path):
    run = RunDirectory(tmp_path / "run")
    run.path.touch()
    assert not run.free()
    begin = lambda: run.locked(new=True).__enter__()
    refused(begin, "exists and is not a folder; choose another", kind=ConfigError)
    run.path.unlink()
    run.path.mkdir()
    (run.path / "config.toml").write_text("[")
    refused(begin, "go on with `fedloom run --resume ... run` ... or choose", kind=ConfigError)
    refused(run.read_config, "run/config.toml cannot be read: ", kind=CheckpointError)
    (run.path / ".lock").mkdir()
    with pytest.raises(CheckpointError, match="cannot be written"), run.locked():
        pass


def test_json_that_cannot_be_read_is_an_error_of_one_line(run):
    run.write_json("a.json", {"b": [1.5, None]})
    assert run.read_object("a.json") == {"b": [1.5, None]}
    (run.path / "a.json").write_text("{")
    for name in ("a.json", "missing.json"):
        refused(lambda name=name: run.read_object(name), name, kind=CheckpointError)


def test_a_log_that_is_damaged_or_gone_is_said_before_anything_is_removed(run):
    saved(run, [1, 2])
    size = run.rounds.stat().st_size
    with pytest.raises(CheckpointError, match="has 2 rounds, and its checkpoint 3"):
        run.read_rounds(size, 3)
    raw = run.rounds.read_bytes()
    run.rounds.write_bytes(raw.replace(b'"round": 1', b'"round": x'))
    refused(lambda: run.read_rounds(size, 2), "line 1 of ... is damaged", kind=CheckpointError)
    run.rounds.unlink()
    with pytest.raises(CheckpointError, match=r"rounds.jsonl is gone"):
        run.load(ClientMemory(run.memory_folder))
    assert len(list(run.checkpoints.glob("*/manifest.json"))) == 2
    run.rewind(0, 0)  # no log yet
    assert not run.rounds.exists() and not [*run.checkpoints.iterdir()]


def test_a_log_that_cannot_be_written_or_read_is_said(run):
    run.rounds.mkdir()
    with pytest.raises(CheckpointError, match=r"cannot be written: Is a directory; .*resume"):
        run.append_round({"round": 1})
    with pytest.raises(CheckpointError, match=r"rounds.jsonl' cannot be read: Is a"):
        run.read_rounds(10, 1)
    assert run.read_rounds(0, 0) == []


def test_system_errors_are_told_in_words_with_a_cure():
    assert reason(OSError("odd")) == "odd" and reason(OSError()) == "OSError"
    assert reason(OSError(28, "full")) == "full" and reason(OSError(28, "full", "f")) == "full: 'f'"
    cures = {28: "make room", 2: "put it back", 13: "change who", 5: "check the disk", 24: "close"}
    cures[12] = "free memory"
    assert all(remedy(OSError(n, "")).startswith(text) for n, text in cures.items())
    assert remedy(OSError()) == "mend that"


def test_an_error_concerns_a_folder_if_its_file_is_in_there(tmp_path):
    inside, beside = str(tmp_path / "a" / "b"), str(tmp_path.parent / "b")
    assert concerns(OSError(2, "", inside), tmp_path) and concerns(OSError(2, ""), tmp_path)
    assert not concerns(OSError(2, "", beside), tmp_path)
    assert not concerns(OSError(2, "", str(tmp_path)), tmp_path)


def test_a_checksum_is_of_as_many_bytes_as_are_wanted(tmp_path, monkeypatch):
    monkeypatch.setattr(fedloom.storage.atomic, "_CHUNK", 4)
    (tmp_path / "f").write_bytes(content := b"0123456789")
    assert checksum(tmp_path / "f") == sha256(content)
    for size in (0, 1, 4, 6, 8, 10, 12):
        assert checksum(tmp_path / "f", size) == sha256(content[:size])


CONTENT = {
    "round": 12,
    "srv": {"fields": {"x": {"tensor": "x"}, "t": 0.1}},
    "log_bytes": 0,
    "extra": {"ledger": {"up": {"x": 3}}, "curve": {"target": None}},
}
WHOLE = {"format": 3, **CONTENT}


@pytest.fixture
def folder(tmp_path):
    out = round_folder(tmp_path / "checkpoints", 12)
    out.mkdir(parents=True)
    write_manifest(out, CONTENT)
    return out


def test_a_flipped_bit_anywhere_is_seen_or_changes_nothing(folder):
    path = folder / "manifest.json"
    raw = path.read_bytes()
    for at in range(len(raw)):
        for bit in (1, 4, 64):
            path.write_bytes(raw[:at] + bytes([raw[at] ^ bit]) + raw[at + 1 :])
            try:
                assert read_manifest(folder) == WHOLE
            except CheckpointError as error:
                assert "\n" not in str(error) and "manifest.json" in str(error)


def test_a_manifest_that_was_cut_or_moved_is_seen(folder):
    path = folder / "manifest.json"
    raw = path.read_bytes()
    for size in range(len(raw)):
        path.write_bytes(raw[:size])
        with pytest.raises(CheckpointError, match=r"manifest\.json"):
            read_manifest(folder)
    path.write_bytes(raw)
    for name in ("00000011", "00000013"):
        folder = folder.rename(folder.with_name(name))
        with pytest.raises(CheckpointError, match="is of round 12"):
            read_manifest(folder)


def test_a_checksum_is_of_the_sorted_content(folder):
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    said = content.pop("checksum")
    assert content == WHOLE and said == sha256(json.dumps(content, sort_keys=True).encode())
    path.write_text(json.dumps({"checksum": said, **dict(reversed(content.items()))}))
    assert read_manifest(folder) == WHOLE
    for kind in (3, 0, "x", None):
        path.write_text(json.dumps({"format": kind, **CONTENT}))
        with pytest.raises(CheckpointError, match="does not have the checksum"):
            read_manifest(folder)
    write_manifest(folder, {**CONTENT, "format": 2})
    with pytest.raises(CheckpointError, match="format 2, of another version of fedloom"):
        read_manifest(folder)


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (b"", "rounds.jsonl is gone"),
        (b"12", "rounds.jsonl is shorter than it was"),
        (b"123", ""),
        (b"1234", ""),
        (b"223", "rounds.jsonl does not have the checksum it was written with"),
    ],
)
def test_a_log_is_compared_with_what_it_was(tmp_path, log, said):
    path = tmp_path / "rounds.jsonl"
    if log:
        path.write_bytes(log)
    assert altered(path, 3, sha256(b"123")) == said and not altered(path, 0, "of nothing")


def test_a_log_is_checked_up_to_the_newest_whole_checkpoint(folder, monkeypatch):
    run = folder.parent.parent
    log = run / "rounds.jsonl"
    log.write_bytes(b'{"round": 1}\n')
    write_manifest(folder, CONTENT | {"log_bytes": 13, "log_sha256": checksum(log)})
    with open(log, "ab") as f:
        f.write(b'{"round": 2')
    check_log(run)
    log.write_bytes(b'{"round": 7}\n')
    with pytest.raises(CheckpointError, match=r"jsonl does not have the checksum.* put back the f"):
        check_log(run)
    later = round_folder(folder.parent, 13)  # a damaged one says nothing
    later.mkdir()
    (later / "manifest.json").write_text("{")
    refused(lambda: check_log(run), "checksum", kind=CheckpointError)

    def unreadable(path, size):
        raise PermissionError(path)

    monkeypatch.setattr("fedloom.storage.manifest.checksum", unreadable)
    check_log(run)  # what reads the log for its rows says that


def test_only_real_folders_with_the_names_of_rounds_count(folder):
    home = folder.parent
    for name in ("best", "0000001", "000000012", "00000014x", "\u0661" * 8):
        (home / name).mkdir()
        (home / name / "manifest.json").touch()
    (home / "00000015").symlink_to(folder)
    (home / "00000016").touch()
    late = round_folder(home, 123456789)
    late.mkdir()
    assert round_folders(home) == [folder] and round_folders(home, whole=False) == [folder, late]
    link = home.with_name("link")
    link.symlink_to(home)
    assert round_folders(link) == [] and round_folders(home / "nothing") == []


def test_only_what_a_checkpoint_is_made_of_is_deleted(folder):
    for name in ("state.safetensors", ".state.safetensors.77.part", "notes.txt"):
        (folder / name).touch()
    remove(folder)
    assert [p.name for p in folder.iterdir()] == ["notes.txt"]
    (folder / "notes.txt").unlink()
    remove(folder)
    assert not folder.exists()
