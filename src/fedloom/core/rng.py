"""All randomness: a seed for every (seed, purpose, round, client, ...)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

_STEP, _LARGEST = 0x1E3779B97F4A7C15, 0x7FFFFFFFFFFFFFFF


def key(seed: int, purpose: str, *parts: int | str) -> int:
    """A 63-bit seed from the run's seed, the purpose of the numbers, and their place: round,
    client, step.

    The purpose is always the second part: otherwise a codec's noise and a dropout mask could share
    a seed.
    """
    text = repr((int(seed), purpose, *parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(seed: int, purpose: str, *parts: int | str) -> torch.Generator:
    """A fresh CPU generator for this purpose and place.

    >>> import torch
    >>> a, b = (torch.rand(2, generator=generator(0, "batches", 3, 7)) for _ in range(2))
    >>> bool((a == b).all())
    True
    """
    return torch.Generator().manual_seed(key(seed, purpose, *parts))


def substream(seed: int, step: int) -> int:
    """The seed of a step, from a key() of its client and round: a 63-bit walk by an odd constant.

    A hash for every step would cost more than the rest of the engine's bookkeeping.
    """
    return (seed + step * _STEP) & _LARGEST


def substreams(seeds: Sequence[int], steps: int) -> torch.Tensor:
    """substream() of some clients' first steps, (clients, steps) int64.

    >>> substreams([7, 8], 3)[1, 2].item() == substream(8, 2)
    True
    """
    walk = torch.arange(steps) * _STEP  # wraps around, as the mask would have it
    return (torch.tensor(seeds, dtype=torch.int64)[:, None] + walk) & _LARGEST
