"""One seed for every purpose and place, the same on every machine."""

from __future__ import annotations

import hashlib

import torch

from fedloom.core.rng import generator, key, substream


def test_a_key_is_the_documented_hash():
    raw = hashlib.blake2b(repr((3, "batches", 2, 7)).encode(), digest_size=8).digest()
    assert key(3, "batches", 2, 7) == int.from_bytes(raw, "little") >> 1


def test_keys_differ_in_every_part():
    places = [
        (seed, purpose, round, client)
        for seed in range(3)
        for purpose in ("batches", "step", "cohort")
        for round in range(12)
        for client in range(12)
    ]
    keys = [key(*place) for place in places]
    assert len(set(keys)) == len(keys)
    assert all(0 <= k < 2**63 for k in keys)
    assert key(0, "a", 1, 23) != key(0, "a", 12, 3) and key(0, "a", 1) != key(0, "a", "1")


def test_steps_have_seeds_of_their_own():
    seeds = {
        substream(key(0, "step", r, i), k) for r in range(5) for i in range(20) for k in range(50)
    }
    assert len(seeds) == 5 * 20 * 50 and all(0 <= s < 2**63 for s in seeds)


def test_generators_are_fresh_and_leave_torchs_alone():
    torch.manual_seed(1)
    want = torch.rand(3)
    torch.manual_seed(1)
    a, b = (torch.rand(5, generator=generator(0, "x", 1)) for _ in range(2))
    assert torch.equal(a, b) and torch.equal(torch.rand(3), want)
    assert not torch.equal(a, torch.rand(5, generator=generator(0, "y", 1)))
