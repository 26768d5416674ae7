"""Cutting into buckets, and random numbers, for codecs with one scale per bucket of coordinates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...core.vector import Vec

CHUNK = 1 << 17  # values computed together: they stay in the processor's cache
LARGEST = torch.finfo(torch.float32).max


class Piece(NamedTuple):
    """n values from `at` on: whole buckets of `size`, or a part of one; span: their range."""

    at: int
    n: int
    size: int
    span: slice


def count(sizes: Sequence[int], bucket: int) -> int:
    """Number of buckets; each layer of these sizes begins one. bucket 0: one per layer."""
    return sum(-(-n // _size(n, bucket)) for n in sizes)


def pieces(sizes: Sequence[int], bucket: int) -> Iterator[Piece]:
    """Cut layers of these sizes into pieces, a few hundred kilobytes each.

    >>> [(p.at, p.n, p.span) for p in pieces([5, 2], 4)]
    [(0, 5, slice(0, 2, None)), (5, 2, slice(2, 3, None))]
    """
    first, before = 0, 0  # coordinate and bucket at which the layer begins
    for length in sizes:
        size, start = _size(length, bucket), 0
        while start < length:
            room = CHUNK // size * size if size <= CHUNK else min(CHUNK, size - start % size)
            n = min(room, length - start)
            span = slice(before + start // size, before + (start + n - 1) // size + 1)
            yield Piece(first + start, n, size, span)
            start += n
        first, before = first + length, before + -(-length // size)


def _size(length: int, bucket: int) -> int:
    return max(1, min(bucket or length, length))


def by_bucket(piece: Piece, scale: Tensor, *vectors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The scales of a piece's buckets beside views of vectors (n,): (k, 1) and (k, size) of whole
    buckets, and (1,) and what is left of one.

    >>> [[tuple(t.shape) for t in views]
    ...  for piece in pieces([5], 2) for views in by_bucket(piece, torch.ones(3), torch.ones(5))]
    [[(2, 1), (2, 2)], [(1,), (1,)]]
    """
    scales = scale[piece.span]
    whole = piece.n - piece.n % piece.size if len(scales) > 1 else 0
    if whole:
        views = (vector[:whole].view(-1, piece.size) for vector in vectors)
        yield scales[: whole // piece.size, None], *views
    if whole < piece.n:
        yield scales[-1:], *(vector[whole:] for vector in vectors)


def work(p: Tensor) -> torch.dtype:
    """The type for computations: half types have too few digits for levels."""
    return torch.float64 if p.dtype == torch.float64 else torch.float32


def round_up(exact: Tensor) -> Tensor:
    """float64 -> float32, never below."""
    near = exact.float()
    above = torch.nextafter(near, torch.tensor(torch.inf))
    return torch.where(near.double() < exact, above, near).clamp_max(LARGEST)


class Noise:
    """Uniform numbers of a new generator, from its seed.

    float32 multiples of 2^-16, at the middle of each step, in (0, 1): a rounding has its
    probability to 2^-17. They take a third of the time of torch's own.

    >>> float(Noise(torch.Generator().manual_seed(1)).uniform(100).min()) > 0
    True
    """

    def __init__(self, draw: torch.Generator) -> None:
        self._bits = np.random.default_rng(draw.initial_seed())
        self._left = np.empty(0, np.uint8)  # of the last word: cuts change no number

    def integers(self, n: int, kind: type[np.signedinteger[Any]]) -> Tensor:
        """n whole numbers, every bit of the type at random."""
        size = n * np.dtype(kind).itemsize
        words = max(0, -(-(size - len(self._left)) // 8))
        raw = self._bits.integers(0, 2**64 - 1, words, dtype=np.uint64, endpoint=True)
        whole = raw.view(np.uint8)
        if len(self._left):
            whole = np.concatenate([self._left, whole])
        self._left = whole[size:]
        return torch.from_numpy(whole[:size].view(kind))

    def uniform(self, n: int) -> Vec:
        """n numbers in (0, 1)."""
        return self.integers(n, np.int16).float().add_(32768.5).mul_(2.0**-16)

    def fine(self, n: int) -> Vec:
        """n numbers in [0, 1) with all 53 bits of a float64."""
        return torch.from_numpy(self._bits.random(n))
