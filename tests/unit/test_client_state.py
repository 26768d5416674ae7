"""Client memory: versions on disk that a checkpoint's index commits."""

import json
import random

import pytest
import torch

import fedloom.storage.world
from fedloom.core.vector import rec
from fedloom.errors import CheckpointError
from fedloom.storage import client_state
from fedloom.storage.client_state import ClientMemory
from tiny import same

SIZE = 2 * 50 * 4 + 8  # bytes of a row: two vectors and a number


def row(i, version=0, d=50):
    draw = torch.Generator().manual_seed(1000 * version + i)
    alg = rec(c=torch.randn(d, generator=draw), own=rec(m=torch.randn(d, generator=draw)))
    return rec(alg=alg, obj=rec(), last=float(version))


def put(memory, clients, version=0):
    memory.put({i: row(i, version) for i in clients})


def commit(memory):
    """What a checkpoint does: flush, then remember the index as JSON."""
    memory.flush()
    return json.loads(json.dumps(memory.index()))


def again(folder, index, **options):
    memory = ClientMemory(folder, **options)
    memory.restore(index)
    return memory


@pytest.fixture
def memory(tmp_path):
    return ClientMemory(tmp_path)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_of_a_part_of_the_model_only_that_is_kept(tmp_path):
    whole = torch.zeros(6400)
    whole[:100] = torch.randn(100, generator=torch.Generator().manual_seed(1))
    rows = {i: rec(alg=rec(c=whole * (i + 1)), last=2.0) for i in range(4)}
    kept = 4 * 100 + 6400 // 8 + 2 * 8  # values, places, their number and the round
    memory = ClientMemory(tmp_path, resident_bytes=2 * kept, parts=True)
    memory.put(rows)
    assert len(memory._rows) == 2 and memory._bytes == 2 * kept
    for one in (memory, again(tmp_path, commit(memory), parts=True)):
        stored = one.get(range(4))
        assert all(same(stored[i], rows[i]) for i in rows) and one.last([3]) == {3: 2}
    assert sum(p.stat().st_size for p in tmp_path.iterdir()) < 4 * whole.nbytes / 4


def test_the_last_participation_is_known_without_a_row(tmp_path, memory, monkeypatch):
    memory.put({i: row(i, version=i) for i in range(3)})
    index = memory.save()
    assert memory.last([2, 0, 9]) == {2: 2, 0: 0, 9: None}
    other = again(tmp_path, index)
    assert other.index() == index
    monkeypatch.setattr(other, "_read", None)
    assert other.last([1, 2]) == {1: 1, 2: 2}
    other.drop([2])
    assert other.last([2]) == {2: None}


def test_processes_that_share_a_folder_write_segments_of_their_own(tmp_path):
    one, two = (ClientMemory(tmp_path, prefix=f"r{r}-") for r in (0, 1))
    put(one, [0])
    put(two, [1])
    index, _ = one.save(), two.save()
    assert [name[:3] for name in names(tmp_path)] == ["r0-", "r1-"]
    one.discard([])
    assert [name[:3] for name in names(tmp_path)] == ["r0-"]
    assert same(again(tmp_path, index).get([0])[0], row(0))


def test_a_flush_writes_only_what_changed(tmp_path, memory):
    put(memory, range(20))
    commit(memory)
    (first,) = tmp_path.iterdir()
    content = first.read_bytes()
    put(memory, (3, 7), 1)
    for _ in range(2):  # the second time nothing changed: nothing is written
        commit(memory)
        (new,) = (p for p in tmp_path.iterdir() if p != first)
    assert new.stat().st_size < 2 * (SIZE - 8) + 800 < len(content)
    assert first.read_bytes() == content


def test_an_old_index_stays_good_until_it_is_discarded(tmp_path, memory):
    kept = {}
    for version in range(6):
        put(memory, range(version % 3, 6), version)
        kept[version] = commit(memory)
    for version, index in kept.items():
        for i, old in again(tmp_path, index).get(range(6)).items():
            newest = max(v for v in range(version + 1) if i >= v % 3)
            assert same(old, row(i, newest))
    memory.discard([kept[5]])
    assert names(tmp_path) == sorted(s[0] for s in kept[5]["segments"])
    last = again(tmp_path, kept[5]).get(range(6))
    assert all(same(r, memory.get([i])[i]) for i, r in last.items())
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


def test_the_emptiest_segment_moves_on_first(memory):
    for clients in (range(8), range(8, 16)):
        put(memory, clients)
        memory.flush()
    put(memory, (0, 1, 8, 9, 10), 1)  # 21 rows of 16, and 20 may stay
    index = commit(memory)
    assert [(name[7], n) for name, n, _ in index["segments"]] == [("0", 8), ("2", 10)]


@pytest.mark.parametrize(("changed", "left"), [(3, 2), (4, 1), (12, 1), (1, 2)])
def test_the_rows_left_in_an_old_segment_move_on(changed, left, tmp_path, memory):
    put(memory, range(12))
    memory.flush()
    put(memory, range(changed), 1)
    index = commit(memory)
    segments = ["00000000.safetensors", "00000001.safetensors"][-left:]
    assert [name for name, _, _ in index["segments"]] == segments
    moved = changed if left == 2 else 12
    assert index["segments"][-1][1] == moved and index["next"] == 2
    assert index["clients"] == [*range(12)]
    assert index["segment_of"] == [left - 1] * moved + [0] * (12 - moved)
    (tmp_path / "notes.safetensors").touch()
    memory.discard([index])
    assert names(tmp_path) == [*segments, "notes.safetensors"]
    memory.restore(index)
    back = memory.get(range(12))
    assert all(same(back[i], row(i, int(i < changed))) for i in range(12))


def test_what_no_checkpoint_needs_is_deleted_at_once(tmp_path, memory):
    put(memory, range(4))
    index = commit(memory)
    for version in (1, 2, 3):
        put(memory, range(4), version)
        memory.flush()
        assert [name[7] for name in names(tmp_path)] == ["0", str(version)]  # 0: the checkpoint's
    assert same(again(tmp_path, index).get([3])[3], row(3))
    memory.discard([memory.index()])
    assert [name[7] for name in names(tmp_path)] == ["3"]


def test_with_a_bound_changed_rows_are_written_before_they_are_many(tmp_path, monkeypatch):
    monkeypatch.setattr(client_state, "AT_ONCE", 3 * SIZE)
    memory = ClientMemory(tmp_path, 10**6)
    for clients, files in (([0, 1, 2], 0), ([3], 1), ([4], 1)):
        put(memory, clients)
        assert len(names(tmp_path)) == files and memory._bytes == (clients[-1] + 1) * SIZE


def test_the_least_recently_used_rows_leave_memory_first(tmp_path):
    memory = ClientMemory(tmp_path, 3 * SIZE)
    held = lambda *clients: [*memory._rows] == [*clients] and memory._bytes == len(clients) * SIZE
    put(memory, range(3))
    assert held(0, 1, 2) and not names(tmp_path)
    memory.get([0])
    put(memory, [3])
    assert held(2, 0, 3)
    put(memory, [2], 1)  # a new version of it
    assert held(0, 3, 2)
    assert same(memory.get([1])[1], row(1)) and [*memory._rows] == [0, 3, 2, 1]  # from disk
    put(memory, [4, 5])
    assert held(1, 4, 5)
    memory.drop([1, 5, 0, 77])
    assert held(4) and len(memory) == 3
    assert memory.get([0, 1, 5]) == {} and same(memory.get([2])[2], row(2, 1))
    put(memory, [6])
    memory.drop([6])  # before it was written
    memory.restore(commit(memory))
    assert held()
    put(memory, range(3), 2)
    assert held(0, 1, 2)  # exactly the bound


def test_a_bound_is_kept_to_the_byte_and_without_a_folder_there_is_none(tmp_path):
    less = ClientMemory(tmp_path, 3 * SIZE - 1)
    put(less, range(3))
    assert [*less._rows] == [1, 2]
    free = ClientMemory()
    put(free, [1])
    free.drop([1])
    assert len(free) == 0 and free.get([1]) == {}


def test_a_full_disk_changes_nothing(tmp_path, memory, monkeypatch):
    put(memory, range(4))
    index = commit(memory)
    put(memory, [1], 1)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(fedloom.storage.world, "replace", full)
        with pytest.raises(OSError):
            memory.flush()
        with pytest.raises(CheckpointError, match=r"No space left.*make room"):
            put(again(tmp_path, index, resident_bytes=0), [1], 1)
    assert memory.index() == index and len(names(tmp_path)) == 1
    assert same(again(tmp_path, commit(memory)).get([1])[1], row(1, 1))


@pytest.mark.parametrize("error", [ValueError, KeyError, OSError])
def test_a_row_that_cannot_be_read_is_said_in_one_line(error, tmp_path, monkeypatch):
    memory = ClientMemory(tmp_path, 0)
    put(memory, [1])

    def broken(*arguments, **options):
        raise error("what is there is nothing")

    monkeypatch.setattr("fedloom.storage.client_state.safe_open", broken)
    with pytest.raises(CheckpointError, match="what is there is nothing") as caught:
        memory.get([1])
    assert "\n" not in str(caught.value)
