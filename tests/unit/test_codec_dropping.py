"""Random dropping: its mask, and what it loses."""

from __future__ import annotations

import torch

from fedloom.compression.codecs import RandomDropping
from fedloom.core.rng import generator


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
