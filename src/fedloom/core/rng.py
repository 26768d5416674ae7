"""All randomness: a seed for every (seed, purpose, round, client, ...)."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

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


def seed_torch(seed: int, like: Tensor) -> None:
    """Seed the generators that layers such as F.dropout draw from."""
    torch.default_generator.manual_seed(seed)
    if like.is_cuda:
        torch.cuda.default_generators[like.get_device()].manual_seed(seed)
    elif like.is_mps:
        torch.mps.manual_seed(seed)


def seed_all(seed: int, like: Tensor) -> None:
    """Seed numpy's and Python's generators too."""
    seed_torch(seed, like)
    seed_others(seed)


@contextmanager
def own_draws(seed: int, like: Tensor) -> Iterator[None]:
    """Torch's generators begin at a seed inside, and are restored afterwards."""
    with torch.random.fork_rng(devices=[like.device] if like.is_cuda else []):
        seed_torch(seed, like)
        yield


def seed_others(seed: int) -> None:
    """Seed numpy's and Python's generators, from which a user's model or loss may draw."""
    np.random.seed(seed % 2**32)
    random.seed(seed)


def others_now() -> str:
    """Where numpy's and Python's generators are."""
    return repr((np.random.get_state(legacy=False), random.getstate()))


@contextmanager
def others_restored() -> Iterator[None]:
    """numpy's and Python's generators are afterwards where they were."""
    numpys, pythons = np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        np.random.set_state(numpys)
        random.setstate(pythons)


def substream(seed: int, step: int) -> int:
    """The seed of a step, from a key() of its client and round: a 63-bit walk by an odd constant.

    A hash for every step would cost more than the rest of the engine's bookkeeping.
    """
    return (seed + step * _STEP) & _LARGEST


def substreams(seeds: Sequence[int], steps: int) -> Tensor:
    """substream() of some clients' first steps, (clients, steps) int64.

    >>> substreams([7, 8], 3)[1, 2].item() == substream(8, 2)
    True
    """
    walk = torch.arange(steps) * _STEP  # wraps around, as the mask would have it
    return (torch.tensor(seeds, dtype=torch.int64)[:, None] + walk) & _LARGEST


def mixed(z: Tensor) -> Tensor:
    """Scramble the bits of int64 numbers (the finaliser of splitmix64; products wrap around)."""
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        z = (z ^ ((z >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return z ^ ((z >> 31) & ((1 << 33) - 1))


def hashed(seed: Tensor, n: int) -> Tensor:
    """n numbers of a 0-d int64 seed, (n,) int64 of any sign: plain arithmetic, so that under vmap
    every client gets those of its own seed.
    """
    return mixed(torch.arange(n, device=seed.device) + mixed(seed))


START, FINISH, ASK, _FIRST = range(4)  # where a client draws; its local steps follow


class Draws:
    """Uniform numbers of one client's round: a function of its seed, the place (START, FINISH, ASK,
    or step()), and how many calls there were at this place.

    seed: a key(), as an int or a 0-d int64 tensor. like: a tensor of the type and device of the
    numbers.

    >>> one, other = Draws(7, torch.zeros(2)), Draws(7, torch.zeros(2))
    >>> bool((one(3) == other(3)).all()), bool((one(3) == one(3)).any())
    (True, False)
    """

    __slots__ = ("_calls", "_like", "_place", "seed")

    def __init__(self, seed: int | Tensor, like: Tensor) -> None:
        self.seed, self._like, self._calls = seed, like, 0
        self._place: int | Tensor = START

    def at(self, place: int | Tensor) -> Draws:
        """Go to another place (0-d int64 if a tensor). Returns this object."""
        self._place, self._calls = place, 0
        return self

    def step(self, k: int | Tensor) -> Draws:
        """Go to local step k = 0, 1, ... Returns this object."""
        return self.at(_FIRST + k)

    def __call__(self, n: int) -> Tensor:
        """n numbers in [0, 1), (n,), with as many random bits as the type has digits."""
        self._calls += 1
        dtype, device = self._like.dtype, self._like.device
        seed = self.seed
        if not isinstance(seed, Tensor):
            seed = torch.full((), seed, dtype=torch.int64, device=device)
        # substream() in tensors: sums wrap around, and the mask makes the same of them
        seed = (seed + (self._place * _STEP & _LARGEST)) & _LARGEST
        digits = 1 - round(math.log2(torch.finfo(dtype).eps))
        whole = (hashed(seed + self._calls, n) >> (64 - digits)) & ((1 << digits) - 1)
        return whole.to(dtype) * 2.0**-digits
