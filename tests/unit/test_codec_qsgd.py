"""QSGD: levels, no bias, variance, and norms of buckets."""

from __future__ import annotations

import math
import struct

import pytest
import torch

from fedloom.compression.codecs import QSGD, PowerSGD, TopK
from fedloom.compression.codecs.qsgd import quantise
from fedloom.errors import DataError, WireError
from support.codec_cases import attempt, bits, encode, flat, normal


def test_levels_of_the_specification():
    g = [
        [0.5, -1.2, 0.3, 0.05, -0.7, 0.9],
        [-0.4, 0.1, 0.35, -0.05, 0.6, 0.2],
        [0.25, 0.15, -0.55, 0.45, -0.1, -0.3],
    ]
    u = [
        [0.1, 0.9, 0.5, 0.3, 0.7, 0.2],
        [0.6, 0.4, 0.8, 0.05, 0.55, 0.95],
        [0.25, 0.35, 0.65, 0.15, 0.85, 0.45],
    ]
    levels = [[2, -2, 1, 0, -1, 2], [-2, 1, 1, -1, 3, 1], [1, 1, -2, 3, 0, -1]]
    norms = [1.7557049866079437, 0.8336666000266534, 0.8306623862918076]
    for p, noise, expected, norm in zip(g, u, levels, norms, strict=True):
        p = torch.tensor(p, dtype=torch.float64)
        assert float(p.norm()) == pytest.approx(norm, rel=1e-15)
        symbol = quantise(p, p.norm()[None], torch.tensor(noise, dtype=torch.float64), 4)
        assert (symbol.int() - 4).tolist() == expected


def test_variance_factors_of_the_specification():
    assert QSGD(levels=127).omega(10**7) == pytest.approx(512 / (4 * 127**2))
    assert QSGD(levels=7, bucket=64).omega(10**7) == pytest.approx(64 / 196)
    assert QSGD(levels=7, bucket=0).omega(26_620) == pytest.approx(math.sqrt(26_620) / 7)
    assert QSGD(levels=7).omega(10) == pytest.approx(10 / 196)
    assert TopK().omega(10) is None and PowerSGD().omega(10) is None


def test_a_bucket_has_its_own_norm():
    p = torch.cat([torch.zeros(4), torch.tensor([3.0, 4.0, 0.0, 0.0]), torch.tensor([-2.0])])
    codec = QSGD(levels=5, bucket=4)
    message = encode(codec, p, flat(9))
    assert message.norm.tolist() == [0.0, 5.0, 2.0]
    assert message.symbol[:4].tolist() == [5] * 4  # the middle one stands for 0
    # 3, 4 and -2 are whole levels, so nothing is left to chance
    torch.testing.assert_close(codec.decode(message, flat(9)), p)


def test_norms_are_rounded_up():
    p = normal(4096)
    norm = encode(QSGD(bucket=16), p, flat(4096)).norm
    exact = p.view(-1, 16).norm(dim=1)
    assert bool((norm.double() >= exact).all())
    torch.testing.assert_close(norm.double(), exact, rtol=2e-7, atol=0)


def test_buckets_longer_than_a_chunk_and_chunks_of_many_buckets(monkeypatch):
    p = normal(1000)
    for bucket in (0, 300, 7, 1):
        message = encode(QSGD(bucket=bucket), p, flat(1000))
        size = bucket or 1000
        exact = torch.stack([part.norm() for part in p.split(size)])
        torch.testing.assert_close(message.norm.double(), exact, rtol=2e-7, atol=0)
        whole = QSGD(bucket=bucket).decode(message, flat(1000), torch.float64)
        monkeypatch.setattr("fedloom.compression.codecs.buckets.CHUNK", 64)
        again = encode(QSGD(bucket=bucket), p, flat(1000))
        assert bits(again.symbol) == bits(message.symbol)
        torch.testing.assert_close(again.norm, message.norm, rtol=2e-7, atol=0)
        piecewise = QSGD(bucket=bucket).decode(message, flat(1000), torch.float64)
        assert bits(piecewise) == bits(whole)
        assert float((whole - p).abs().max()) <= float(exact.max()) / 127 * (1 + 1e-6)
        monkeypatch.undo()


def test_symbols_follow_the_norms_and_another_runs_levels_are_refused():
    codec, layout = QSGD(levels=2, bucket=4), flat(5)  # 3 bits a value, two norms
    raw = codec.pack(encode(codec, torch.tensor([1.0, 0.0, 0.0, 0.0, -3.0]), layout))
    assert raw[18:26] == struct.pack("<2f", 1, 3) and raw[26:].hex() == "8920"  # 4 2 2 2 0, one bit
    attempt(codec, raw, layout)
    other = QSGD(levels=3, bucket=4)
    with pytest.raises(WireError, match="has the options 020004000000; those of this run"):
        attempt(other, raw, layout)


def test_a_norm_beyond_float32_is_refused():
    with pytest.raises(DataError, match="float32"):
        encode(QSGD(), torch.full((10,), 1e300, dtype=torch.float64), flat(10))
