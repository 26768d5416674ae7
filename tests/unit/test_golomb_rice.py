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
    found = [(h << r) + int(f"0{b}", 2) for h, b in zip(high, low, strict=True)]
    whole = -(-(at + k * r) // 8) == len(block)
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
)
def test_any_bytes_are_read_as_by_hand_or_refused(block, r, k, most):
    expected = by_hand(block, r, k, most)
    if expected is None:
        with pytest.raises(WireError, match="message's index block"):
            rice.read(array(block), r, k, most)
    else:
        assert rice.read(array(block), r, k, most).tolist() == expected


@pytest.mark.parametrize("r", [0, 1, 3, 8, 9, 17, 31])
def test_long_codes_are_read_and_the_largest_gap_is_named(r):
    numbers = np.random.default_rng(r).geometric(0.6 / (1 << r), 700) - 1
    numbers[[3, 500]] = 300 << r
    block, most = array(rice.write(numbers, r)), int(numbers.max()) + 1
    assert np.array_equal(rice.read(block, r, len(numbers), most), numbers)
    with pytest.raises(WireError, match=f"the gap {most}, beyond {most - 1}"):
        rice.read(block, r, len(numbers), most - 1)


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


def test_claims_that_the_bytes_cannot_hold_cost_no_memory():
    d = 2**31
    for r, k in ((0, 2**30), (5, 2**20), (31, 799_000)):
        block = array(bytes([r]) + bytes(100_000))

        def attempt(block=block, k=k, r=r):
            with pytest.raises(WireError, match=f"{k} codes of {1 + r} bits .* do not fit"):
                indices.read(block, Coding.RICE, d, k)

        assert peak_of(attempt) < 200_000
