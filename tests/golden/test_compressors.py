"""Section 10.3 of the specification on compression: the other compressors, three rounds.

What travels as float32 (QSGD's norms) holds to 1e-7, all else to 1e-15.
"""

from __future__ import annotations

import pytest
import torch

from fedloom.compression.codecs import QSGD, Sign, Threshold, make_codec
from six_values import near, rounds

U = [
    [0.1, 0.9, 0.5, 0.3, 0.7, 0.2],
    [0.6, 0.4, 0.8, 0.05, 0.55, 0.95],
    [0.25, 0.35, 0.65, 0.15, 0.85, 0.45],
]
COARSE = 1e-7  # a norm travels as float32


@pytest.fixture
def fixed_noise(monkeypatch):
    """QSGD draws these numbers in round 0, 1, 2; behind a choice of three, those at its places."""
    kept = {3: [[1, 4, 5], [1, 2, 5], [0, 2, 3]], 6: [range(6)] * 3}
    calls = iter(range(3))

    def uniform(self, n):
        t = next(calls)
        return torch.tensor([U[t][j] for j in kept[n][t]], dtype=torch.float64)

    monkeypatch.setattr("fedloom.compression.codecs.buckets.Noise.uniform", uniform)


def test_scaled_signs_with_feedback():
    sent, e = rounds(Sign())
    scales = [0.6083333333333333, 0.44166666666666665, 0.30000000000000004]
    near(sent.abs(), torch.tensor(scales, dtype=torch.float64)[:, None].expand(3, 6))
    near(
        e[2],
        [
            -0.1166666666666667,
            -0.2000000000000001,
            -0.6499999999999999,
            -0.016666666666666663,
            0.2666666666666667,
            0.050000000000000155,
        ],
    )
    x = [
        0.4666666666666667,
        -0.7499999999999998,
        0.7499999999999998,
        0.4666666666666667,
        -0.4666666666666667,
        0.7499999999999998,
    ]
    near(sent.sum(0), x)


def test_a_hard_threshold_with_feedback():
    sent, e = rounds(Threshold(tau=0.5))
    assert [s.nonzero()[:, 0].tolist() for s in sent] == [[1, 4, 5], [2, 4], [2]]
    near(e[2], [0.35, 0.25, 0, 0.45, -0.1, -0.1])
    near(sent.sum(0), [0, -1.2, 0.1, 0, -0.1, 0.9])


@pytest.mark.usefixtures("fixed_noise")
def test_shrunk_levels_with_feedback():
    codec = QSGD(levels=4, bucket=0, shrink=True)
    sent, e = rounds(codec)
    norms = [1.7557049866079437, 0.9345947376132063, 0.6258888058009555]
    levels = [[2, -2, 1, 0, -1, 2], [-2, -2, 1, 0, 1, 2], [1, 0, -2, 3, 0, -1]]
    for found, norm, level in zip(sent, norms, levels, strict=True):
        near(found * 4 * 1.375 / norm, level, atol=1e-6)
    expected = [
        -0.062383509780078214,
        0.028290808807690943,
        -0.1615494750216799,
        0.10860610592675157,
        -0.050707227455502296,
        -0.06449284411660806,
    ]
    near(e[2], expected, COARSE)


@pytest.mark.usefixtures("fixed_noise")
def test_the_three_largest_in_levels_with_feedback():
    codec = make_codec("topk:0.5|qsgd:4,0,shrink=true")
    sent, e = rounds(codec)
    norms = [1.6552945357246849, 0.864507152291869, 0.7238232031344275]
    supports, levels = [[1, 4, 5], [1, 2, 5], [0, 2, 3]], [[-2, -1, 2], [-2, 3, 1], [2, -2, 3]]
    for found, norm, held, level in zip(sent, norms, supports, levels, strict=True):
        assert found.nonzero()[:, 0].tolist() == held
        near(found[held] * 4 * (1 + 3 / 16) / norm, level, atol=1e-6)
    expected = [
        0.04523233552234629,
        0.11096913179644377,
        -0.1412368527593164,
        -0.007151496716480521,
        0.14848306015256527,
        -0.07896762605078708,
    ]
    near(e[2], expected, COARSE)


def test_the_three_largest_as_signs_with_feedback():
    sent, e = rounds(make_codec("topk:0.5|sign"))
    supports = [[1, 4, 5], [2, 4, 5], [2, 3, 5]]
    magnitudes = [0.9333333333333332, 0.5499999999999999, 0.5277777777777778]
    for found, held, magnitude in zip(sent, supports, magnitudes, strict=True):
        assert found.nonzero()[:, 0].tolist() == held
        near(found[held].abs(), [magnitude] * 3)
    expected = [
        0.35,
        -0.01666666666666672,
        0.07777777777777772,
        -0.07777777777777778,
        0.18333333333333332,
        -0.15555555555555534,
    ]
    near(e[2], expected)
