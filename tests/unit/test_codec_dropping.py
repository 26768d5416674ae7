"""Random dropping: its mask, and what it loses."""

from __future__ import annotations

import pytest
import torch

from fedloom.compression.codecs import (
    RandomDropping,
)
from fedloom.core.rng import generator
from support.codec_cases import (
    encode,
    flat,
    normal,
    through,
)


def test_the_mask_is_redrawn_from_the_seed():
    codec = RandomDropping(ratio=0.5)
    u = torch.rand(16, generator=generator(77, "dropping"), dtype=torch.float32)
    assert torch.equal(codec.mask(77, 16), u < 0.5)
    # pinned: messages of one release must be readable by the next
    assert codec.mask(77, 16).nonzero()[:, 0].tolist() == MASK


def test_a_long_mask_is_that_of_its_numbers_drawn_in_one_go():
    d = 300_001
    u = torch.rand(d, generator=generator(78, "dropping"), dtype=torch.float32)
    assert torch.equal(RandomDropping(ratio=0.25).mask(78, d), u < 0.25)


MASK = [0, 1, 2, 3, 4, 5, 10, 12, 14, 15]


@pytest.mark.parametrize("ratio", [0.1, 0.5])
def test_dropping_loses_one_minus_ratio_and_the_scaled_form_is_unbiased(ratio):
    d, n = 8, 10_000
    p, layout = normal(d).repeat(n), flat(d * n)  # coordinates are independent: n draws at once
    message = encode(RandomDropping(ratio=ratio), p, layout)
    plain = RandomDropping(ratio=ratio).decode(message, layout).view(n, d)
    scaled = through(RandomDropping(ratio=ratio, scaled=True), p, layout).view(n, d)
    p = p[:d]
    errors = (plain - p).square().sum(1)
    off = float(errors.mean() - (1 - ratio) * p.square().sum())
    assert abs(off) < 4 * float(errors.std()) / n**0.5
    kept = plain != 0
    assert torch.equal(plain, torch.where(kept, p, 0.0))
    assert torch.allclose(scaled, plain / ratio, rtol=1e-12)
    rates = kept.double().mean(0)
    assert bool(((rates - ratio).abs() < 4 * (ratio * (1 - ratio) / n) ** 0.5).all())
    assert RandomDropping(ratio=ratio, scaled=True).omega(d) == pytest.approx(1 / ratio - 1)
