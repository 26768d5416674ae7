"""Which folders are checkpoints, and whether they are as they were written."""

from __future__ import annotations

import hashlib
import json

import pytest

from fedloom.errors import CheckpointError
from fedloom.storage.manifest import (
    check_log,
    read_manifest,
    remove,
    round_folder,
    round_folders,
    write_manifest,
)
from fedloom.storage.seal import Seal

CONTENT = {
    "round": 12,
    "srv": {"fields": {"x": {"tensor": "x"}, "t": 0.1}},
    "log_bytes": 0,
    "extra": {"ledger": {"up": {"x": 3}}, "curve": {"target": None}},
}


@pytest.fixture
def folder(tmp_path):
    out = round_folder(tmp_path / "checkpoints", 12)
    out.mkdir(parents=True)
    write_manifest(out, CONTENT)
    return out


def test_a_flipped_bit_anywhere_is_seen_or_changes_nothing(folder):
    path, whole = folder / "manifest.json", read_manifest(folder)
    raw = path.read_bytes()
    assert whole == {"format": 3, **CONTENT}
    for at in range(len(raw)):
        for bit in (1, 4, 64):
            path.write_bytes(raw[:at] + bytes([raw[at] ^ bit]) + raw[at + 1 :])
            try:
                assert read_manifest(folder) == whole
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


def test_a_manifest_without_its_checksum_is_refused(folder):
    (folder / "manifest.json").write_text(json.dumps({"format": 3, **CONTENT}))
    with pytest.raises(CheckpointError, match="checksum"):
        read_manifest(folder)


def test_a_checksum_is_of_the_sorted_content(folder):
    path = folder / "manifest.json"
    found = json.loads(path.read_text())
    assert found["format"] == 3
    said = found.pop("checksum")
    assert said == hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({"checksum": said, **dict(reversed(found.items()))}))
    assert read_manifest(folder) == {"format": 3, **CONTENT}
    for kind in (0, "x", None):
        path.write_text(json.dumps({"format": kind, **CONTENT}))
        with pytest.raises(CheckpointError, match="does not have the checksum"):
            read_manifest(folder)


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (b"", "rounds.jsonl is gone"),
        (b"12", "rounds.jsonl is shorter than it was"),
        (b"123", None),
        (b"1234", None),
        (b"223", "rounds.jsonl does not have the checksum"),
    ],
)
def test_a_log_is_compared_with_what_it_was(tmp_path, log, said):
    path = tmp_path / "rounds.jsonl"
    wanted = {"log_bytes": 3, "log_sha256": hashlib.sha256(b"123").hexdigest()}
    if log:
        path.write_bytes(log)
    if said is None:
        check_log(wanted, path)
        check_log({"log_bytes": 3}, path)  # of format 1
    else:
        with pytest.raises(CheckpointError, match=said):
            check_log(wanted, path)
    check_log({"log_bytes": 0, "log_sha256": "of nothing"}, path)


def test_another_format_is_said(folder):
    write_manifest(folder, {**CONTENT, "format": 2})
    with pytest.raises(CheckpointError, match="format 2, of another version of fedloom"):
        read_manifest(folder)


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
    (folder / "state.safetensors").touch()
    (folder / ".state.safetensors.77.part").touch()
    (folder / "notes.txt").write_text("mine")
    remove(folder)
    assert [p.name for p in folder.iterdir()] == ["notes.txt"]
    (folder / "notes.txt").unlink()
    remove(folder)
    assert not folder.exists()


def test_a_log_is_checked_up_to_the_newest_whole_checkpoint(folder, monkeypatch):
    from fedloom.storage.atomic import checksum

    run = folder.parent.parent
    log = run / "rounds.jsonl"
    log.write_bytes(b'{"round": 1}\n')
    said = {"log_bytes": 13, "log_sha256": checksum(log)}
    write_manifest(folder, CONTENT | said)
    with open(log, "ab") as f:
        f.write(b'{"round": 2')
    check_log(said, log)
    Seal(run).check_log()
    log.write_bytes(b'{"round": 7}\n')
    with pytest.raises(CheckpointError, match=r"rounds.jsonl does not have the checksum") as caught:
        Seal(run).check_log()
    assert "put back the file" in str(caught.value) and "\n" not in str(caught.value)
    later = round_folder(folder.parent, 13)  # a damaged one says nothing
    later.mkdir()
    (later / "manifest.json").write_text("{")
    with pytest.raises(CheckpointError, match="checksum"):
        Seal(run).check_log()

    def unreadable(path, size):
        raise PermissionError(path)

    monkeypatch.setattr("fedloom.storage.manifest.checksum", unreadable)
    Seal(run).check_log()  # what reads the log for its rows says that
