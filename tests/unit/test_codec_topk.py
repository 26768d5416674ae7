"""Top-k: which coordinates are kept, and how much of a vector."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.compression.codecs import Dense, RandomDropping, TopK, topk
from fedloom.compression.codecs.topk import largest
from support.codec_cases import LAYOUT, TYPES, bits, encode, normal, through


def sorted_choice(p, k):
    """The k largest magnitudes by a stable sort: of equal ones the lowest index."""
    return p.abs().sort(descending=True, stable=True).indices[:k].sort().values


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=60), st.integers(1, 60))
def test_of_equal_magnitudes_the_lowest_index_is_kept(values, k):
    p = torch.tensor(values, dtype=torch.float32)
    k = min(k, len(p))
    assert torch.equal(largest(p, k), sorted_choice(p, k))


@pytest.mark.parametrize("k", [1, 40, 700])
def test_candidates_come_from_every_chunk(monkeypatch, k):
    monkeypatch.setattr(topk, "_SMALL", 20_000)
    monkeypatch.setattr(topk, "_CHUNK", 3_000)
    p = normal(20_000)
    found = topk._candidates(p, k)
    assert found is not None and k <= len(found) <= 10_000
    assert torch.equal(largest(p, k), sorted_choice(p, k))
    assert topk._candidates(p[:-1], k) is None and topk._candidates(p, 6_000) is None
    assert topk._candidates(torch.ones(20_000), k) is None  # the bound keeps them all


@pytest.mark.parametrize("k", [1, 3_000, 139_999])
def test_long_vectors_are_chosen_from_as_short_ones_are(k):
    d = 140_000
    cases = {
        "normal": normal(d, dtype=torch.float32),
        "coarse": (normal(d) * 2).round(),
        "equal": torch.ones(d),
        "zero": torch.zeros(d),
        "sampled ones are large": torch.where(torch.arange(d) % 97 == 0, 5.0, 1.0) + normal(d) / 9,
        "sampled ones are small": torch.where(torch.arange(d) % 97 == 0, 0.0, 1.0) + normal(d) / 9,
    }
    for name, p in cases.items():
        assert torch.equal(largest(p, k), sorted_choice(p, k)), name


def test_half_types_are_chosen_exactly():
    for dtype in (torch.float16, torch.bfloat16):
        p = normal(500, dtype=dtype)
        assert torch.equal(largest(p, 60), sorted_choice(p, 60))


def test_every_layer_keeps_its_own_share():
    codec, p = TopK(ratio=0.1, scope="layer"), normal()
    kept = [int((part != 0).sum()) for part in LAYOUT.pieces(through(codec, p))]
    assert kept == [max(1, round(0.1 * n)) for n in LAYOUT.sizes]
    assert (
        codec.most(20) == 20 and TopK(ratio=0.1).most(20) == 2
    )  # layers of one value each keep it


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(
    "codec", [Dense(), TopK(ratio=1.0), TopK(ratio=1.0, scope="layer"), RandomDropping(ratio=1.0)]
)
def test_ratio_one_is_no_compression_bit_for_bit(codec, dtype):
    p = normal(dtype=dtype)
    p[3] = -0.0
    raw = codec.pack(encode(codec, p))
    assert bits(codec.decode(codec.unpack(raw, LAYOUT), LAYOUT)) == bits(p)
