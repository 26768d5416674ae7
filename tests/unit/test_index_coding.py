"""Sets of indices as bytes: every coding, Golomb-Rice codes by their definition, the shortest one,
and bytes that are no set.
"""

import math
import struct
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.compression.codecs import index_coding as indices
from fedloom.compression.codecs.index_coding import Coding, Plan
from fedloom.core.rng import generator
from fedloom.errors import WireError
from support.refusals import refused


def read(block, coding, d, k):
    return indices.read(np.frombuffer(bytes(block), np.uint8), coding, d, k)


@pytest.mark.parametrize(
    ("d", "held", "coding", "r", "block"),
    [
        (6, [1, 5], Coding.VARINT, 0, "0103"),
        (6, [1, 5], Coding.BITMAP, 0, "22"),
        (6, [1, 5], Coding.RICE, 1, "0158"),
        (6, [1, 4], Coding.VARINT, 0, "0102"),
        (6, [1, 4], Coding.BITMAP, 0, "12"),
        (6, [1, 4], Coding.RICE, 0, "00b0"),
        (1000, [3, 17, 18, 500, 999], Coding.VARINT, 0, "030d00e103f203"),
        (1000, [3, 17, 18, 500, 999], Coding.RICE, 6, "061fdfc19a043900"),
        (1000, [3, 17, 18, 500, 999], Coding.RICE, 7, "071dc0c680c3c8"),
    ],
)
def test_index_blocks_of_the_specification(d, held, coding, r, block):
    written = indices.write(np.array(held, np.int64), d, Plan(coding, r, 0))
    assert written.hex() == block
    assert read(written, coding, d, len(held)).tolist() == held


@st.composite
def sets(draw):
    d = draw(st.integers(1, 3000))
    share = draw(st.floats(0, 1))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    step = random.random(d) < share
    if draw(st.booleans()):  # clusters
        step &= np.sin(np.arange(d) / 20) > 0
    return d, np.flatnonzero(step)


@settings(max_examples=150)
@given(sets())
def test_every_coding_gives_the_set_again_and_the_shortest_is_taken(case):
    d, index = case
    k, plan, written = len(index), indices.plan(index, d), indices.write(index, d)
    assert len(written) == plan.nbytes
    assert np.array_equal(read(written, plan.coding, d, k), index)
    if k in (0, d):
        assert written == b""
        return
    less = np.diff(index, prepend=-1) - 1
    lengths = [int((less >> r).sum()) + k * (1 + r) for r in range(32)]
    best = min(range(32), key=lambda r: lengths[r])
    sizes = []
    for coding, r in ((Coding.BITMAP, 0), (Coding.VARINT, 0), (Coding.RICE, best)):
        block = indices.write(index, d, Plan(coding, r, 0))
        sizes.append(len(block))
        if coding != Coding.RICE or len(block) <= 1 + -(-d // 8):
            assert np.array_equal(read(block, coding, d, k), index)
    assert sizes[0] == -(-d // 8) and sizes[2] == 1 + -(-lengths[best] // 8)
    assert plan.nbytes == min(sizes)


@pytest.mark.parametrize("ratio", [0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.38, 0.45, 0.5])
def test_places_cost_five_percent_more_than_their_entropy_at_most(ratio):
    d = 582_026
    k = round(ratio * d)
    index = torch.randperm(d, generator=generator(0, "test"))[:k].sort().values.numpy()
    bound = math.lgamma(d + 1) - math.lgamma(k + 1) - math.lgamma(d - k + 1)
    assert indices.plan(index, d).nbytes <= 1.05 * bound / math.log(2) / 8


def test_a_varint_has_a_byte_for_every_seven_bits():
    edges = [0, 1, 127, 128, 2**14 - 1, 2**14, 2**21 - 1, 2**21, 2**28 - 1, 2**28, 2**32 - 2]
    for less in edges:
        block = indices.write(np.array([less]), 2**32 - 1, Plan(Coding.VARINT, 0, 0))
        size = indices.plan(np.array([less]), 2**32 - 1).nbytes
        assert len(block) == size == max(1, -(-less.bit_length() // 7))
        assert read(block, Coding.VARINT, 2**32 - 1, 1).tolist() == [less]


@pytest.mark.parametrize(
    ("coding", "block", "k", "says"),
    [
        (Coding.BITMAP, [0b11, 0b100], 3, ""),  # index 10
        (Coding.BITMAP, [0b11, 0], 1, ""),
        (Coding.VARINT, [3, 6], 2, ""),  # 3, 10
        (Coding.VARINT, [0x83, 0, 1], 2, "padding"),  # a padded 3
        (Coding.VARINT, [1, 0x81], 2, ""),
        (Coding.VARINT, [0x81] * 5 + [1], 1, "at most 5 bytes, got 6"),
        (Coding.VARINT, [0x81] * 6 + [1], 1, ""),
        (Coding.RICE, [0, 0b11111111, 0b11000000], 1, ""),  # index 10
        (Coding.RICE, [0, 0b10110000, 0], 2, ""),  # a byte too many
        (Coding.RICE, [0, 0b10111111], 2, ""),  # no end
        (Coding.RICE, [40, 0b10111111], 2, "at most 31"),
        (Coding.RICE, [32, 0], 1, "at most 31"),
        (Coding.RICE, [9, 0b00000000, 0b11000000, 0b00110000], 2, ""),  # beyond the bitmap
        (Coding.IMPLIED, [], 5, ""),
        (Coding.IMPLIED, [0], 0, ""),
        (Coding.VARINT, [], 0, ""),
        (Coding.VARINT, [], 11, ""),
        (1, struct.pack("<2I", 4, 5), 2, ""),  # a coding of before 0.3
        (7, [0], 1, ""),
    ],
)
def test_sets_that_cannot_be_are_refused(coding, block, k, says):
    refused(lambda: read(block, coding, 10, k), says, kind=WireError)


def text(numbers, r):
    """The definition: n >> r ones and a zero of each number, then the r low bits of each."""
    low = lambda n: f"{n % (1 << r):0{r}b}" if r else ""
    return "".join("1" * (n >> r) + "0" for n in numbers) + "".join(map(low, numbers))


def bytes_of(bits):
    """Bits as a text, most significant first, padded with zeros."""
    padded = bits + "0" * (-len(bits) % 8)
    return bytes(int(padded[i : i + 8], 2) for i in range(0, len(padded), 8))


def by_hand(block, r, k, most):
    """Decode bit by bit; None for what is no block of k such codes."""
    bits, at, high = "".join(f"{byte:08b}" for byte in block), 0, []
    for _ in range(k):
        stop = bits.find("0", at)
        if stop < 0:
            return None
        high.append(stop - at)
        at = stop + 1
    low = [bits[at + r * i : at + r * (i + 1)] for i in range(k)]
    numbers = [(h << r) + int(f"0{b}", 2) for h, b in zip(high, low, strict=True)]
    whole = -(-(at + k * r) // 8) == len(block)
    return numbers if whole and all(n < most for n in numbers) else None


def array(block):
    return np.frombuffer(block, np.uint8)


@settings(max_examples=200)
@given(
    st.lists(st.integers(0, 300) | st.integers(0, 3), min_size=1, max_size=120), st.integers(0, 31)
)
def test_codes_are_those_of_the_definition(numbers, r):
    block = indices.rice_write(np.array(numbers), r)
    assert block == bytes_of(text(numbers, r))
    assert indices.rice_read(array(block), r, len(numbers), 301).tolist() == numbers


@settings(max_examples=200)
@given(st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 20), min_size=1, max_size=30))
def test_the_parameter_is_the_one_of_least_length(numbers):
    lengths = [sum((n >> r) + 1 + r for n in numbers) for r in range(32)]
    best = min(range(32), key=lambda r: lengths[r])
    assert indices.rice_length(np.array(numbers)) == (best, lengths[best])


@settings(max_examples=400)
@given(
    st.binary(min_size=1, max_size=40) | st.lists(st.sampled_from([0, 255, 254, 127])).map(bytes),
    st.integers(0, 12),
    st.integers(1, 60),
    st.integers(1, 500),
)
def test_any_bytes_are_read_as_by_hand_or_refused(block, r, k, most):
    expected = by_hand(block, r, k, most)
    if expected is None:
        refused(lambda: indices.rice_read(array(block), r, k, most), "message's index block")
    else:
        assert indices.rice_read(array(block), r, k, most).tolist() == expected


@pytest.mark.parametrize("r", [0, 1, 3, 8, 9, 17, 31])
def test_long_codes_are_read_and_the_largest_gap_is_named(r):
    numbers = np.random.default_rng(r).geometric(0.6 / (1 << r), 700) - 1
    numbers[[3, 500]] = 300 << r
    block, most = array(indices.rice_write(numbers, r)), int(numbers.max()) + 1
    assert np.array_equal(indices.rice_read(block, r, len(numbers), most), numbers)
    less = lambda: indices.rice_read(block, r, len(numbers), most - 1)
    refused(less, f"the gap {most}, beyond {most - 1}", kind=WireError)


def peak_of(call):
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("ratio", [0.001, 0.01, 0.1, 0.25])
def test_reading_costs_the_set_a_few_times_and_the_bits_of_the_block(ratio):
    d = 4_000_000
    held = np.flatnonzero(np.random.default_rng(1).random(d) < ratio)
    plan = indices.plan(held, d)
    assert plan.coding == Coding.RICE
    block = array(indices.write(held, d, plan))
    peak = peak_of(lambda: indices.read(block, plan.coding, d, len(held)))
    assert peak < 32 * len(held) + 16 * len(block)
