"""Records as bytes and as files: what comes back has the same bits."""

import errno
import gc
import io
import json
import os
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

from fedloom.core import wire
from fedloom.core.vector import as_bytes, leaves, rec, tree
from fedloom.engines import shared_memory
from fedloom.engines.shared_memory import Board, load, packed, unpacked
from fedloom.storage.records import densify, disk_errors, freeze, sparsify, thaw, write_tensors
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
records = st.dictionaries(
    names,
    st.recursive(
        tensors | st.floats(allow_nan=False),
        lambda inner: st.dictionaries(names, inner, max_size=2).map(lambda d: rec(**d)),
        max_leaves=4,
    ),
    max_size=4,
).map(lambda d: rec(**d))


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
