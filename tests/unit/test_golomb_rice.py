"""Golomb-Rice codes against the definition, written as texts of noughts and ones."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.compression.codecs import golomb_rice as rice
from fedloom.compression.codecs import index_coding as indices
from fedloom.compression.codecs.index_coding import Coding
from fedloom.errors import WireError


def text(numbers, r):
    """The definition: n >> r ones, a zero, the r low bits of n."""
    low = lambda n: f"{n % (1 << r):0{r}b}" if r else ""
    return "".join("1" * (n >> r) + "0" + low(n) for n in numbers)


def bytes_of(bits):
    """Bits as a text, most significant first, padded with zeros."""
    padded = bits + "0" * (-len(bits) % 8)
    return bytes(int(padded[i : i + 8], 2) for i in range(0, len(padded), 8))


def by_hand(block, r, k, most):
    """Decode bit by bit; None for what no writer can have written."""
    bits, at, found = "".join(f"{byte:08b}" for byte in block), 0, []
    for _ in range(k):
        stop = bits.find("0", at)
        if stop < 0 or stop + 1 + r > len(bits):
            return None
        low = bits[stop + 1 : stop + 1 + r]
        found.append(((stop - at) << r) + (int(low, 2) if r else 0))
        at = stop + 1 + r
    whole = -(-at // 8) == len(block) and "1" not in bits[at:]
    return found if whole and all(n < most for n in found) else None


def array(block):
    return np.frombuffer(block, np.uint8)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(0, 300) | st.integers(0, 3), min_size=1, max_size=120), st.integers(0, 31)
)
def test_codes_are_those_of_the_definition(numbers, r):
    block = rice.write(np.array(numbers), r)
    assert block == bytes_of(text(numbers, r))
    assert rice.read(array(block), r, len(numbers), 301).tolist() == numbers


@pytest.mark.parametrize("chunk", [1, 3, 8])
@pytest.mark.parametrize("r", [0, 2, 9])
def test_codes_are_written_in_chunks(monkeypatch, chunk, r):
    monkeypatch.setattr(rice, "_CHUNK", chunk)
    monkeypatch.setattr(indices, "_CHUNK", chunk)
    numbers = np.random.default_rng(chunk).geometric(0.02, 100) - 1
    assert rice.write(numbers, r) == bytes_of(text(numbers.tolist(), r))
    assert rice.length(numbers)[1] == min(len(text(numbers.tolist(), n)) for n in range(20))
    index = np.cumsum(numbers + 1) - 1
    plan = indices.Plan(Coding.VARINT, 0, 0)
    block = indices.write(index, int(index[-1]) + 1, plan)
    seven = lambda n: [n & 0x7F | 0x80, *seven(n >> 7)] if n > 0x7F else [n]
    assert list(block) == [b for n in numbers.tolist() for b in seven(n)]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 20), min_size=1, max_size=30))
def test_the_parameter_is_the_one_of_least_length(numbers):
    lengths = [sum((n >> r) + 1 + r for n in numbers) for r in range(32)]
    best = min(range(32), key=lambda r: lengths[r])
    assert rice.length(np.array(numbers)) == (best, lengths[best])


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    st.binary(min_size=1, max_size=40) | st.lists(st.sampled_from([0, 255, 254, 127])).map(bytes),
    st.integers(0, 12),
    st.integers(1, 60),
    st.integers(1, 500),
    st.integers(1, 6),
)
def test_any_bytes_are_read_as_by_hand_or_refused(block, r, k, most, window):
    expected = by_hand(block, r, k, most)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rice, "_WINDOW", window)
        if expected is None:
            with pytest.raises(WireError, match="message's index block"):
                rice.read(array(block), r, k, most)
        else:
            assert rice.read(array(block), r, k, most).tolist() == expected


@pytest.mark.parametrize("r", [0, 1, 3, 8, 9, 17, 31])
@pytest.mark.parametrize("window", [1, 7, 64])
def test_windows_cut_codes_anywhere(monkeypatch, r, window):
    random = np.random.default_rng([r, window])
    numbers = random.geometric(0.6 / (1 << r), 700) - 1
    numbers[[3, 500]] = 300 << r  # unary parts longer than the window
    block = rice.write(numbers, r)
    monkeypatch.setattr(rice, "_WINDOW", window)
    most = int(numbers.max()) + 1
    assert np.array_equal(rice.read(array(block), r, len(numbers), most), numbers)
    with pytest.raises(WireError, match=f"the gap {most}, beyond {most - 1}"):
        rice.read(array(block), r, len(numbers), most - 1)


def test_streams_without_any_rhythm_to_find_are_read_too():
    # all codes of one length, of zeros only or of ones only: every bit might begin one
    for block, r, k in ((bytes(3000), 3, 6000), (bytes(3000), 0, 24_000)):
        assert not rice.read(array(block), r, k, 8).any()
    numbers = np.full(5000, 15)
    assert np.array_equal(rice.read(array(rice.write(numbers, 3)), 3, 5000, 16), numbers)


def peak_of(call):
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("ratio", [0.001, 0.01, 0.1, 0.25])
def test_reading_costs_the_set_and_no_more_than_a_window_beside(ratio):
    d = 4_000_000
    held = np.flatnonzero(np.random.default_rng(1).random(d) < ratio)
    plan = indices.plan(held, d)
    assert plan.coding == Coding.RICE
    block = array(indices.write(held, d, plan))
    peak = peak_of(lambda: indices.read(block, plan.coding, d, len(held)))
    assert peak < 8 * len(held) + 4_000_000


def test_claims_that_the_bytes_cannot_hold_cost_no_memory():
    d = 2**31
    for r, k in ((0, 2**30), (5, 2**20), (31, 799_000)):
        block = array(bytes([r]) + bytes(100_000))

        def attempt(block=block, k=k, r=r):
            with pytest.raises(WireError, match=f"{k} codes of {1 + r} bits .* do not fit"):
                indices.read(block, Coding.RICE, d, k)

        assert peak_of(attempt) < 200_000
