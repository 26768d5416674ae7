"""Client memory: versions on disk that a checkpoint's index commits."""

from __future__ import annotations

import json
import random

import pytest
import torch

import fedloom.storage.atomic
from fedloom.core.vector import rec
from fedloom.errors import CheckpointError
from fedloom.storage import client_state
from fedloom.storage.client_state import ClientMemory
from tiny import same


def row(i, version=0, d=50):
    draw = torch.Generator().manual_seed(1000 * version + i)
    alg = rec(c=torch.randn(d, generator=draw), own=rec(m=torch.randn(d, generator=draw)))
    return rec(alg=alg, obj=rec(), last=float(version))


def commit(memory):
    """What a checkpoint does: flush, then remember the index as JSON."""
    memory.flush()
    return json.loads(json.dumps(memory.index()))


def again(folder, index, **options):
    memory = ClientMemory(folder, **options)
    memory.restore(index)
    return memory


def test_of_a_part_of_the_model_only_that_is_kept(tmp_path):
    whole = torch.zeros(6400)
    whole[:100] = torch.randn(100, generator=torch.Generator().manual_seed(1))
    rows = {i: rec(alg=rec(c=whole * (i + 1)), last=2.0) for i in range(4)}
    kept = 4 * 100 + 6400 // 8 + 2 * 8  # values, places, their number and the round
    memory = ClientMemory(tmp_path, resident_bytes=2 * kept, parts=True)
    memory.put(rows)
    assert len(memory._rows) == 2 and memory._bytes == 2 * kept
    other = again(tmp_path, commit(memory), parts=True)
    for one in (memory, other):
        got = one.get(range(4))
        assert all(same(got[i], rows[i]) for i in rows) and one.last([3]) == {3: 2}
    assert sum(p.stat().st_size for p in tmp_path.iterdir()) < 4 * whole.nbytes / 4


def test_the_last_participation_is_known_without_a_row(tmp_path, monkeypatch):
    memory = ClientMemory(tmp_path)
    memory.put({i: row(i, version=i) for i in range(3)})
    index = memory.save()
    assert memory.last([2, 0, 9]) == {2: 2, 0: 0, 9: None}
    assert again(tmp_path, index).index() == index
    other = again(tmp_path, index)
    monkeypatch.setattr(other, "_read", None)
    assert other.last([1, 2]) == {1: 1, 2: 2}
    other.drop([2])
    assert other.last([2]) == {2: None}


def test_processes_that_share_a_folder_write_segments_of_their_own(tmp_path):
    one, two = (ClientMemory(tmp_path, prefix=f"r{r}-") for r in (0, 1))
    one.put({0: row(0)})
    two.put({1: row(1)})
    indexes = one.save(), two.save()
    assert {p.name[:3] for p in tmp_path.iterdir()} == {"r0-", "r1-"}
    one.discard([])
    assert [p.name[:3] for p in tmp_path.iterdir()] == ["r0-"]
    assert same(again(tmp_path, indexes[0]).get([0])[0], row(0))


def test_a_flush_writes_only_what_changed(tmp_path):
    memory = ClientMemory(tmp_path)
    memory.put({i: row(i) for i in range(20)})
    commit(memory)
    first = {p.name: p.stat().st_size for p in tmp_path.iterdir()}
    memory.put({3: row(3, 1), 7: row(7, 1)})
    commit(memory)
    (new,) = [p for p in tmp_path.iterdir() if p.name not in first]
    per_row = 2 * 50 * 4
    assert new.stat().st_size < 2 * per_row + 800 < sum(first.values())
    assert {n: (tmp_path / n).stat().st_size for n in first} == first
    before = sorted(tmp_path.iterdir())
    commit(memory)  # nothing changed: nothing is written
    assert sorted(tmp_path.iterdir()) == before


def test_an_old_index_stays_good_until_it_is_discarded(tmp_path):
    memory, kept = ClientMemory(tmp_path), {}
    for version in range(6):
        memory.put({i: row(i, version) for i in range(version % 3, 6)})
        kept[version] = commit(memory)
    for version, index in kept.items():
        old = again(tmp_path, index).get(range(6))
        for i in old:
            newest = max(v for v in range(version + 1) if i >= v % 3)
            assert same(old[i], row(i, newest))
    memory.discard([kept[5]])
    assert {p.name for p in tmp_path.iterdir()} == {s[0] for s in kept[5]["segments"]}
    assert all(
        same(r, memory.get([i])[i]) for i, r in again(tmp_path, kept[5]).get(range(6)).items()
    )
    with pytest.raises(CheckpointError, match="is missing"):
        again(tmp_path, kept[0])


def test_disk_use_stays_bounded(tmp_path):
    memory, draw, most = ClientMemory(tmp_path, resident_bytes=0), random.Random(1), 0.0
    newest, kept, size = {}, [], 0
    for version in range(150):
        chosen = range(4 * version, 4 * version + 4) if version < 25 else draw.sample(range(100), 4)
        newest |= dict.fromkeys(chosen, version)
        memory.put({i: row(i, version, d=500) for i in chosen})
        kept = [*kept[-1:], commit(memory)]
        memory.discard(kept)
        used = sum(p.stat().st_size for p in tmp_path.iterdir())
        size = size or used / 4
        most = max(most, used / len(newest) / size)
    assert 1.25 < most < 1.5  # with the two checkpoints that a run keeps
    assert memory._bytes == 0 and len(memory) == 100
    assert all(same(r, row(i, newest[i], d=500)) for i, r in memory.get(range(100)).items())


def test_the_emptiest_segment_moves_on_first(tmp_path):
    memory = ClientMemory(tmp_path)
    for clients in (range(8), range(8, 16)):
        memory.put({i: row(i) for i in clients})
        memory.flush()
    memory.put({i: row(i, 1) for i in (0, 1, 8, 9, 10)})  # 21 rows of 16, and 20 may stay
    index = commit(memory)
    assert [(name[7], n) for name, n, _ in index["segments"]] == [("0", 8), ("2", 10)]


def test_what_no_checkpoint_needs_is_deleted_at_once(tmp_path):
    def names():
        return sorted(path.name[7] for path in tmp_path.iterdir())

    memory = ClientMemory(tmp_path)
    memory.put({i: row(i) for i in range(4)})
    index = commit(memory)
    for version in (1, 2, 3):
        memory.put({i: row(i, version) for i in range(4)})
        memory.flush()
        assert names() == ["0", str(version)]  # 0 is the checkpoint's
    assert same(again(tmp_path, index).get([3])[3], row(3))
    memory.discard([memory.index()])
    assert names() == ["3"]


def test_with_a_bound_changed_rows_are_written_before_they_are_many(tmp_path, monkeypatch):
    monkeypatch.setattr(client_state, "AT_ONCE", 3 * SIZE)
    memory = ClientMemory(tmp_path, 10**6)
    memory.put({i: row(i) for i in range(3)})
    assert not [*tmp_path.iterdir()]
    memory.put({3: row(3)})
    assert len([*tmp_path.iterdir()]) == 1 and memory._bytes == 4 * SIZE
    memory.put({4: row(4)})
    assert len([*tmp_path.iterdir()]) == 1


SIZE = 2 * 50 * 4 + 8  # bytes of a row: two vectors and a number


def test_the_least_recently_used_rows_leave_memory_first(tmp_path):
    memory = ClientMemory(tmp_path, 3 * SIZE)
    memory.put({i: row(i) for i in range(3)})
    assert [*memory._rows] == [0, 1, 2] and memory._bytes == 3 * SIZE and not [*tmp_path.iterdir()]
    memory.get([0])
    memory.put({3: row(3)})
    assert [*memory._rows] == [2, 0, 3] and memory._bytes == 3 * SIZE
    memory.put({2: row(2, 1)})  # a new version of it
    assert [*memory._rows] == [0, 3, 2] and memory._bytes == 3 * SIZE
    assert same(memory.get([1])[1], row(1)) and [*memory._rows] == [0, 3, 2, 1]  # read from disk
    memory.put({4: row(4), 5: row(5)})
    assert [*memory._rows] == [1, 4, 5] and memory._bytes == 3 * SIZE
    memory.drop([1, 5, 0, 77])
    assert [*memory._rows] == [4] and memory._bytes == SIZE and len(memory) == 3
    assert memory.get([0, 1, 5]) == {} and same(memory.get([2])[2], row(2, 1))
    memory.put({6: row(6)})
    memory.drop([6])  # before it was written
    memory.restore(commit(memory))
    assert memory._bytes == 0 == len(memory._rows)
    memory.put({i: row(i, 2) for i in range(3)})
    assert len(memory._rows) == 3 and memory._bytes == 3 * SIZE  # exactly the bound
    less = ClientMemory(tmp_path / "less", 3 * SIZE - 1)
    less.put({i: row(i) for i in range(3)})
    assert [*less._rows] == [1, 2]
    free = ClientMemory()
    free.put({1: row(1)})
    free.drop([1])
    assert len(free) == 0 and free.get([1]) == {}


@pytest.mark.parametrize(("again", "left"), [(3, 2), (4, 1), (12, 1), (1, 2)])
def test_the_rows_left_in_an_old_segment_move_on(again, left, tmp_path):
    memory = ClientMemory(tmp_path)
    memory.put({i: row(i) for i in range(12)})
    memory.flush()
    memory.put({i: row(i, 1) for i in range(again)})
    index = commit(memory)
    names = ["00000000.safetensors", "00000001.safetensors"][-left:]
    assert [name for name, _, _ in index["segments"]] == names
    moved = again if left == 2 else 12
    assert index["segments"][-1][1] == moved and index["next"] == 2
    assert index["clients"] == [*range(12)]
    assert index["segment_of"] == [left - 1] * moved + [0] * (12 - moved)
    (tmp_path / "notes.safetensors").touch()
    memory.discard([index])
    assert {p.name for p in tmp_path.iterdir()} == {*names, "notes.safetensors"}
    memory.restore(index)
    back = memory.get(range(12))
    assert all(same(back[i], row(i, int(i < again))) for i in range(12))


def test_a_full_disk_changes_nothing(tmp_path, monkeypatch):
    memory = ClientMemory(tmp_path)
    memory.put({i: row(i) for i in range(4)})
    index = commit(memory)
    memory.put({1: row(1, 1)})

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(fedloom.storage.atomic.os, "replace", full)
        with pytest.raises(OSError):
            memory.flush()
        bounded = again(tmp_path, index, resident_bytes=0)
        with pytest.raises(CheckpointError, match=r"No space left.*make room"):
            bounded.put({1: row(1, 1)})
    assert memory.index() == index and len(list(tmp_path.iterdir())) == 1
    assert same(memory.get([1])[1], row(1, 1))
    assert same(again(tmp_path, commit(memory)).get([1])[1], row(1, 1))


@pytest.mark.parametrize("damage", ["truncate", "flip", "header"])
def test_a_damaged_segment_is_noticed(damage, tmp_path):
    memory = ClientMemory(tmp_path)
    memory.put({0: row(0), 1: row(1)})
    index = commit(memory)
    (path,) = tmp_path.iterdir()
    raw = bytearray(path.read_bytes())
    at = raw.index(b"50") if damage == "header" else -9
    raw[at:] = b"" if damage == "truncate" else bytes([raw[at] ^ 1]) + raw[at:][1:]
    path.write_bytes(raw)
    with pytest.raises(CheckpointError, match=path.name):
        again(tmp_path, index)


@pytest.mark.parametrize("error", [ValueError, KeyError, OSError])
def test_a_row_that_cannot_be_read_is_said_in_one_line(error, tmp_path, monkeypatch):
    memory = ClientMemory(tmp_path, 0)
    memory.put({1: row(1)})

    def broken(*arguments, **options):
        raise error("what is there is nothing")

    monkeypatch.setattr("fedloom.storage.client_state.safe_open", broken)
    with pytest.raises(CheckpointError, match="what is there is nothing") as caught:
        memory.get([1])
    assert "\n" not in str(caught.value)
