"""Sets of indices as bytes: every coding, the shortest one, and bytes that are no set."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.compression.codecs import index_coding as indices
from fedloom.compression.codecs.index_coding import Coding
from fedloom.errors import WireError

GOLDEN = [  # (d, set, coding, r, block)
    (6, [1, 5], Coding.VARINT, 0, "0103"),
    (6, [1, 5], Coding.BITMAP, 0, "22"),
    (6, [1, 5], Coding.RICE, 1, "0158"),
    (6, [1, 4], Coding.VARINT, 0, "0102"),
    (6, [1, 4], Coding.BITMAP, 0, "12"),
    (6, [1, 4], Coding.RICE, 0, "00b0"),
    (1000, [3, 17, 18, 500, 999], Coding.VARINT, 0, "030d00e103f203"),
    (1000, [3, 17, 18, 500, 999], Coding.RICE, 6, "061fdfc19a043900"),
    (1000, [3, 17, 18, 500, 999], Coding.RICE, 7, "071dc0c680c3c8"),
]


@pytest.mark.parametrize(("d", "held", "coding", "r", "block"), GOLDEN)
def test_index_blocks_of_the_specification(d, held, coding, r, block):
    index = np.array(held, np.int64)
    written = indices.write(index, d, indices.Plan(coding, r, 0))
    assert written.hex() == block
    read = indices.read(np.frombuffer(written, np.uint8), coding, d, len(held))
    assert read.tolist() == held


@st.composite
def sets(draw):
    d = draw(st.integers(1, 3000))
    share = draw(st.floats(0, 1))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    step = random.random(d) < share
    if draw(st.booleans()):  # clusters
        step &= np.sin(np.arange(d) / 20) > 0
    return d, np.flatnonzero(step)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(sets())
def test_every_coding_gives_the_set_again_and_the_shortest_is_taken(case):
    d, index = case
    k = len(index)
    plan = indices.plan(index, d)
    written = indices.write(index, d)
    assert len(written) == plan.nbytes
    assert np.array_equal(indices.read(np.frombuffer(written, np.uint8), plan.coding, d, k), index)
    if k in (0, d):
        assert written == b""
        return
    less = np.diff(index, prepend=-1) - 1
    lengths = [int((less >> r).sum()) + k * (1 + r) for r in range(32)]
    best = min(range(32), key=lambda r: lengths[r])
    options = {
        Coding.BITMAP: 0,
        Coding.VARINT: 0,
        Coding.RICE: best,
    }
    sizes = []
    for coding, r in options.items():
        block = indices.write(index, d, indices.Plan(coding, r, 0))
        sizes.append(len(block))
        if coding != Coding.RICE or len(block) <= 1 + -(-d // 8):
            again = indices.read(np.frombuffer(block, np.uint8), coding, d, k)
            assert np.array_equal(again, index)
    assert sizes[0] == -(-d // 8) and sizes[2] == 1 + -(-lengths[best] // 8)
    assert plan.nbytes == min(sizes)


def test_a_varint_has_a_byte_for_every_seven_bits():
    edges = [0, 1, 127, 128, 2**14 - 1, 2**14, 2**21 - 1, 2**21, 2**28 - 1, 2**28, 2**32 - 2]
    for less in edges:
        size = max(1, -(-less.bit_length() // 7))
        index = np.array([less])
        assert indices._varint_bytes(index) == size
        block = indices.write(index, 2**32 - 1, indices.Plan(Coding.VARINT, 0, 0))
        assert len(block) == size
        read = indices.read(np.frombuffer(block, np.uint8), Coding.VARINT, 2**32 - 1, 1)
        assert read.tolist() == [less]
    assert indices._varint_bytes(np.array(edges)) == sum(
        max(1, -(-n.bit_length() // 7)) for n in edges
    )
    for block, said in (([0x81] * 5 + [1], "at most 5 bytes, got 6"), ([0x83, 0], "padding")):
        with pytest.raises(WireError, match=said):
            indices.read(np.array(block, np.uint8), Coding.VARINT, 2**32 - 1, 1)


def test_a_rice_parameter_has_at_most_31_bits():
    block = np.frombuffer(bytes([32]) + bytes(5), np.uint8)
    with pytest.raises(WireError, match="at most 31"):
        indices.read(block, Coding.RICE, 2**32 - 1, 1)


@pytest.mark.parametrize(
    ("coding", "block", "k"),
    [
        (Coding.BITMAP, bytes([0b11, 0b100]), 3),  # index 10
        (Coding.BITMAP, bytes([0b11, 0]), 1),
        (Coding.VARINT, bytes([3, 6]), 2),  # 3, 10
        (Coding.VARINT, bytes([0x83, 0x00, 1]), 2),  # a padded 3
        (Coding.VARINT, bytes([1, 0x81]), 2),
        (Coding.VARINT, bytes([0x81] * 6 + [1]), 1),
        (Coding.RICE, bytes([0, 0b11111111, 0b11000000]), 1),  # index 10
        (Coding.RICE, bytes([0, 0b10110000, 0]), 2),  # a byte too many
        (Coding.RICE, bytes([0, 0b10111111]), 2),  # no end
        (Coding.RICE, bytes([40, 0b10111111]), 2),
        (Coding.RICE, bytes([9, 0b00000000, 0b11000000, 0b00110000]), 2),  # beyond the bitmap
        (Coding.IMPLIED, b"", 5),
        (Coding.IMPLIED, b"\0", 0),
        (Coding.VARINT, b"", 0),
        (Coding.VARINT, b"", 11),
        (1, struct.pack("<2I", 4, 5), 2),  # a coding of before 0.3
        (7, b"\0", 1),
    ],
)
def test_sets_that_cannot_be_are_refused(coding, block, k):
    with pytest.raises(WireError):
        indices.read(np.frombuffer(block, np.uint8), coding, 10, k)
