"""Records as bytes and files, and clients' memory: what comes back has the same bits."""

import contextlib
import copy
import errno
import gc
import io
import json
import os
import random
import struct
import tempfile
import weakref
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

import fedloom.storage.world
from fedloom.core import wire
from fedloom.core.vector import as_bytes, leaves, rec, tree
from fedloom.engines import shared_memory
from fedloom.engines.shared_memory import Board, load, packed, unpacked
from fedloom.errors import CheckpointError
from fedloom.storage import client_state
from fedloom.storage.client_state import ClientMemory
from fedloom.storage.records import densify, disk_errors, freeze, sparsify, thaw, write_tensors
from support.refusals import refused
from tiny import same

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.uint8]


def tensor(shape, dtype, seed):
    draw = torch.randint(0, 256, (*shape, 8), generator=torch.Generator().manual_seed(seed))
    if dtype in (torch.bool, torch.uint8, torch.int64):
        return draw[..., 0].to(dtype)
    return draw.to(torch.uint8).view(torch.float64)[..., 0].to(dtype)  # with NaN, inf, subnormals


tensors = st.builds(
    tensor, st.lists(st.integers(0, 5), max_size=2), st.sampled_from(DTYPES), st.integers(0, 99)
)
names = st.text("abcxyz", min_size=1, max_size=2)
record_of = lambda inner, most=2: st.dictionaries(names, inner, max_size=most).map(
    lambda d: rec(**d)
)
leaf = tensors | st.floats(allow_nan=False)
records = record_of(st.recursive(leaf, record_of, max_leaves=4), 4)


def assert_aligned(record):
    assert all(t.data_ptr() % 64 == 0 for t in leaves(record) if isinstance(t, torch.Tensor))


@given(records)
def test_wire_disk_and_thinning_give_back_what_they_got(record):
    empty = tree(lambda v: torch.zeros_like(v) if isinstance(v, torch.Tensor) else 0.0, record)
    packet = wire.pack(record)
    assert same(wire.unpack(packet, empty), record)
    assert {name: len(raw) for name, raw in packet.items()} == wire.nbytes(record)
    shape, parts = freeze(record)
    back = thaw(json.loads(json.dumps(shape)), parts)
    assert same(back, record)
    assert_aligned(back)
    assert same(densify(sparsify(record)), record)


@settings(max_examples=30)
@given(records)
def test_a_process_gets_what_was_sent(record):
    with tempfile.TemporaryDirectory() as folder:
        back = unpacked(packed(record, Path(folder), "one"), Path(folder))
    assert same(back, record)
    assert_aligned(back)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_vector_of_zeros_is_kept_as_its_values_and_places(dtype):
    v = torch.zeros(6400, dtype=dtype)
    v[::64] = torch.tensor([1.0, -0.0, torch.nan, torch.inf], dtype=dtype).repeat(25)
    record = rec(c=v, dense=torch.ones(6400, dtype=dtype), last=3.0)
    small = sparsify(record)
    assert small.c.only.nbytes == 100 * v.itemsize and small.c.where.nbytes == 6400 // 8
    assert small.dense is record.dense and small.last == 3.0
    back = densify(small)
    assert torch.equal(as_bytes(back.c), as_bytes(v)) and back.dense is record.dense


@pytest.mark.parametrize("first", range(1, 9))
def test_what_is_mapped_from_a_file_begins_where_torchs_own_memory_does(first, tmp_path):
    record = rec(a=torch.arange(float(first)), x=torch.arange(50.0), c=torch.arange(30.0))
    shape, parts = freeze(record)
    write_tensors(tmp_path / "f", parts)
    back = thaw(shape, load_file(tmp_path / "f"))
    assert same(back, record)
    assert_aligned(back)


@pytest.fixture
def board():
    opened = Board()
    yield opened
    opened.close()


def large(n=3):
    return rec(c=torch.arange(20_000.0) * n, n=n)


def in_memory(board):
    return sorted(path.name for path in board.folder.iterdir())


def test_what_a_worker_sends_is_read_into_memory_of_this_process(board):
    row = board.take(packed(large(), board.folder, "result1"))
    assert same(row, large()) and in_memory(board) == []
    again = board.pack({7: row, 8: row})
    assert in_memory(board) == ["sent1"] and len(again.places) == 1 and len(again.body) < 1000
    assert same(unpacked(again, board.folder)[8], large())
    twice = board.take(packed(rec(a=row, b=row), board.folder, "result2"))
    assert twice.a.c is twice.b.c, "a tensor that a result holds twice is one"


def test_where_shared_memory_is_full_a_state_goes_as_bytes(board, monkeypatch):
    class Full(io.FileIO):
        def write(self, raw):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shared_memory, "open", Full, raising=False)
    with pytest.raises(OSError, match="No space"):
        board.post(large())
    for file in board.folder.iterdir():
        file.unlink()
    parcel = board.pack(large())
    assert parcel.places == [] and in_memory(board) == []
    assert same(unpacked(parcel, board.folder), large())


def test_what_was_packed_is_free_at_once(tmp_path):
    """Not when Python looks for cycles next: a worker's results are as large as models."""
    gc.disable()
    try:
        vector = torch.zeros(1 << 16)
        alive = weakref.ref(vector)
        packed(rec(v=vector), tmp_path, "one")
        del vector
        assert alive() is None
    finally:
        gc.enable()


def test_messages_are_little_endian_and_views_are_packed_as_they_are_seen():
    packet = wire.pack(rec(x=torch.tensor([1.0, -2.0]), t=0.5, n=3))
    assert packet["x"] == struct.pack("<2f", 1, -2) and packet["t"] == struct.pack("<d", 0.5)
    assert packet["n"] == struct.pack("<d", 3)
    x = torch.arange(12.0).view(3, 4)
    for view in (x[:, 1], x.t(), x[1:], x.expand(2, 3, 4), x[0, 0]):
        back = wire.unpack(wire.pack(rec(v=view)), rec(v=torch.zeros(view.shape)))
        assert torch.equal(back.v, view)
    with pytest.raises(TypeError, match=r"list at 'own.m'"):
        freeze(rec(own=rec(m=[1])))


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_board_holds_objects_for_other_processes(size):
    board = Board()
    x = torch.arange(float(size))
    scale = 3
    path = board.post((rec(x=x, y=x), lambda v: scale * v))
    record, f = load(path)
    assert torch.equal(record.x, x) and f(2) == 6
    assert record.x.data_ptr() % 64 == 0
    record.x[0] = 5  # a process that writes by mistake changes nobody else's
    assert float(load(path)[0].x[0]) == 0
    board.remove(path)
    assert list(board.folder.iterdir()) == []
    assert float(record.x[-1]) == size - 1  # who has loaded it keeps it
    board.close()
    assert not board.folder.exists()


def test_tensors_that_share_memory_are_written_apart(tmp_path):
    x = torch.arange(6.0)
    given = {"a": x, "b": x, "c": x[2:], "d": torch.empty(0), "e": torch.empty(0)}
    write_tensors(tmp_path / "f", given, {"note": "n"})
    back = load_file(tmp_path / "f")
    assert all(torch.equal(back[name], t) for name, t in given.items())
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_safetensors_trouble_with_the_disk_is_an_os_error(tmp_path):
    with pytest.raises(OSError) as caught, disk_errors():
        save_file({"a": torch.zeros(1)}, tmp_path / "nowhere" / "f")
    assert (caught.value.errno, caught.value.strerror) == (2, os.strerror(2))
    with pytest.raises(OSError) as caught, disk_errors():
        raise SafetensorError("something else")
    assert (caught.value.errno, caught.value.strerror) == (errno.EIO, "something else")


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


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def held(memory, clients=range(20)):
    """The clients whose rows no file is read for."""
    memory, rows = copy.deepcopy(memory), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_state, "safe_open", None)
        for i in clients:
            with contextlib.suppress(TypeError, CheckpointError):
                rows |= memory.get([i])
    return {*rows}


def test_of_a_part_of_the_model_only_that_is_kept(tmp_path):
    whole = torch.zeros(6400)
    whole[:100] = torch.randn(100, generator=torch.Generator().manual_seed(1))
    rows = {i: rec(alg=rec(c=whole * (i + 1)), last=2.0) for i in range(4)}
    kept = 4 * 100 + 6400 // 8 + 2 * 8  # values, places, their number and the round
    less, memory = (ClientMemory(tmp_path / n, 2 * kept - 1 + int(n), parts=True) for n in "01")
    less.put(rows)
    memory.put(rows)
    assert (len(held(less)), len(held(memory))) == (1, 2)
    for one in (memory, again(tmp_path / "1", commit(memory), parts=True)):
        stored = one.get(range(4))
        assert all(same(stored[i], rows[i]) for i in rows) and one.last([3]) == {3: 2}
    assert sum(p.stat().st_size for p in (tmp_path / "1").iterdir()) < 4 * whole.nbytes / 4


def test_the_last_participation_is_known_without_a_row(tmp_path, memory, monkeypatch):
    memory.put({i: row(i, version=i) for i in range(3)})
    index = memory.save()
    assert memory.last([2, 0, 9]) == {2: 2, 0: 0, 9: None}
    other = again(tmp_path, index)
    assert other.index() == index
    monkeypatch.setattr(client_state, "safe_open", None)
    assert other.last([1, 2]) == {1: 1, 2: 2}
    other.drop([2])
    assert other.last([2]) == {2: None}


def test_processes_that_share_a_folder_write_segments_of_their_own(tmp_path):
    one, two = (ClientMemory(tmp_path, prefix=f"r{r}-") for r in (0, 1))
    put(one, [0])
    put(two, [1])
    index, _ = one.save(), two.save()
    assert [name[:3] for name in names_in(tmp_path)] == ["r0-", "r1-"]
    one.discard([])
    assert [name[:3] for name in names_in(tmp_path)] == ["r0-"]
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
    assert names_in(tmp_path) == sorted(s[0] for s in kept[5]["segments"])
    last = again(tmp_path, kept[5]).get(range(6))
    assert all(same(r, memory.get([i])[i]) for i, r in last.items())
    refused(lambda: again(tmp_path, kept[0]), "is missing", kind=CheckpointError)


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
    assert not held(memory, range(100)) and len(memory) == 100
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
    assert names_in(tmp_path) == [*segments, "notes.safetensors"]
    memory.restore(index)
    back = memory.get(range(12))
    assert all(same(back[i], row(i, int(i < changed))) for i in range(12))


def test_what_no_checkpoint_needs_is_deleted_at_once(tmp_path, memory):
    put(memory, range(4))
    index = commit(memory)
    for version in (1, 2, 3):
        put(memory, range(4), version)
        memory.flush()
        assert [name[7] for name in names_in(tmp_path)] == [
            "0",
            str(version),
        ]  # 0: the checkpoint's
    assert same(again(tmp_path, index).get([3])[3], row(3))
    memory.discard([memory.index()])
    assert [name[7] for name in names_in(tmp_path)] == ["3"]


def test_with_a_bound_changed_rows_are_written_before_they_are_many(tmp_path, monkeypatch):
    monkeypatch.setattr(client_state, "AT_ONCE", 3 * SIZE)
    memory = ClientMemory(tmp_path, 10**6)
    for clients, files in (([0, 1, 2], 0), ([3], 1), ([4], 1)):
        put(memory, clients)
        assert len(names_in(tmp_path)) == files and held(memory) == {*range(clients[-1] + 1)}


def test_the_least_recently_used_rows_leave_memory_first(tmp_path):
    memory = ClientMemory(tmp_path, 3 * SIZE)
    put(memory, range(3))
    assert held(memory) == {0, 1, 2} and not names_in(tmp_path)  # exactly the bound
    memory.get([0])
    put(memory, [3])
    assert held(memory) == {0, 2, 3}
    put(memory, [2], 1)  # a new version of it
    put(memory, [4])
    assert held(memory) == {2, 3, 4}
    assert same(memory.get([1])[1], row(1))  # from disk
    put(memory, [4, 5])
    assert held(memory) == {1, 4, 5}
    memory.drop([1, 5, 0, 77])
    assert held(memory) == {4} and len(memory) == 3
    assert memory.get([0, 1, 5]) == {} and same(memory.get([2])[2], row(2, 1))
    put(memory, [6])
    memory.drop([6])  # before it was written
    memory.restore(commit(memory))
    assert not held(memory)
    put(memory, range(3), 2)
    assert held(memory) == {0, 1, 2}


def test_a_bound_is_kept_to_the_byte_and_without_a_folder_there_is_none(tmp_path):
    less = ClientMemory(tmp_path, 3 * SIZE - 1)
    put(less, range(3))
    assert held(less) == {1, 2}
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
    assert memory.index() == index and len(names_in(tmp_path)) == 1
    assert same(again(tmp_path, commit(memory)).get([1])[1], row(1, 1))


@pytest.mark.parametrize("error", [ValueError, KeyError, OSError])
def test_a_row_that_cannot_be_read_is_said_in_one_line(error, tmp_path, monkeypatch):
    memory = ClientMemory(tmp_path, 0)
    put(memory, [1])

    def broken(*arguments, **options):
        raise error("what is there is nothing")

    monkeypatch.setattr("fedloom.storage.client_state.safe_open", broken)
    refused(lambda: memory.get([1]), "what is there is nothing", kind=CheckpointError)
