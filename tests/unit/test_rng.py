"""One seed for every purpose and place, the same on every machine."""

import hashlib

import torch

from fedloom.core.rng import generator, key, substream


def test_a_key_is_the_documented_hash_and_differs_in_every_part():
    raw = hashlib.blake2b(repr((3, "batches", 2, 7)).encode(), digest_size=8).digest()
    assert key(3, "batches", 2, 7) == int.from_bytes(raw, "little") >> 1
    keys = [
        key(seed, purpose, round, client)
        for seed in range(3)
        for purpose in ("batches", "step", "cohort")
        for round in range(12)
        for client in range(12)
    ]
    assert len(set(keys)) == len(keys) and all(0 <= k < 2**63 for k in keys)
    assert key(0, "a", 1, 23) != key(0, "a", 12, 3) and key(0, "a", 1) != key(0, "a", "1")


def test_steps_have_seeds_of_their_own():
    starts = [key(0, "step", round, client) for round in range(5) for client in range(20)]
    seeds = {substream(start, step) for start in starts for step in range(50)}
    assert len(seeds) == 5 * 20 * 50 and all(0 <= s < 2**63 for s in seeds)


def test_generators_are_fresh_and_leave_torchs_alone():
    before = torch.get_rng_state()
    a, b = (torch.rand(5, generator=generator(0, "x", 1)) for _ in range(2))
    assert torch.equal(a, b) and torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(a, torch.rand(5, generator=generator(0, "y", 1)))
