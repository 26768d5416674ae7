"""Codecs with one scale for each bucket of coordinates: QSGD, FedPAQ and int8."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...core.hyper import hyper
from ...core.layout import Layout
from ...core.vector import Rec, Vec, rec
from ...errors import DataError
from .base import Codec, Kind, checked, expect

CHUNK = 1 << 17  # values computed together: they stay in the processor's cache
LARGEST = torch.finfo(torch.float32).max
_QSGD = struct.Struct("<HI")  # levels, bucket
_BUCKET = struct.Struct("<I")
_STEPS = 127  # of int8
_LARGEST_STEP = LARGEST / (_STEPS + 2**-16)  # below what overflows times 127, as float32 too


class QSGD(Codec):
    """Send sign and level l_j of every |p_j| / ||p|| in steps of 1 / levels, rounded at random.

    l = floor(z) + [u < z - floor(z)] with z = levels |p_j| / ||p|| and u uniform, so that the
    receiver's ||p|| sign(p_j) l_j / levels is unbiased. The norm is that of each bucket of
    coordinates (0: of all), sent as float32 rounded up; only the bucket's share of a vector pays
    for its largest values. levels = 2^(w-1) - 1 uses w bits a value fully: 127 is 8 bit, 7 is 4.
    scope "layer": every layer begins a bucket, so that none shares a norm with its neighbour.
    shrink: send 1 / (1 + w) of it, w = min(b / levels^2, sqrt(b) / levels) for buckets of b:
    biased, and a contraction for any number of levels, as error feedback needs it.
    On the wire: header, levels u16, bucket u32, norms, symbols l + levels in w bits each, most
    significant first.
    Source: Alistarh et al., NeurIPS 2017; the bound is `omega`.

    >>> codec, layout = QSGD(levels=7, bucket=4), Layout(("w",), ((8,),))
    >>> message, _ = codec.encode(
    ...     torch.ones(8), codec.init(layout, 0), layout, torch.Generator().manual_seed(1)
    ... )
    >>> codec.nbytes(message) == 12 + 6 + 2 * 4 + 8 // 2
    True
    """

    code = 3
    advice = (
        "take more levels, smaller buckets, shrink = true, or feedback = forget (QSGD is unbiased)"
    )
    counted = "symbol"
    levels: int = hyper(
        127, "positive levels of a value", "8 bit; FedPAQ, 4 bit: 7", low=1, high=127
    )
    bucket: int = hyper(
        512,
        "values that share a norm",
        "Alistarh et al.: 512; 0 = whole vector",
        low=0,
        high=2**32 - 1,
    )
    scope: Literal["global", "layer"] = hyper(
        "global",
        "buckets of the whole vector or of each layer",
        "buckets of the whole model, or of each layer",
    )
    shrink: bool = hyper(
        False, "shrink by the variance bound: a contraction", "False: unbiased, as in the paper"
    )

    @property
    def width(self) -> int:
        """Bits that one value takes: those of the integers from 0 to 2 levels."""
        return (2 * self.levels).bit_length()

    @property
    def wire(self) -> dict[str, Kind]:  # type: ignore[override]
        """Norms, and a symbol in as many bits as it needs."""
        return {"norm": torch.float32, "symbol": self.width}

    def omega(self, d: int) -> float | None:
        """min(b / (4 s^2), sqrt(b) / s) with b the number of values that share a norm."""
        b = min(self.bucket or d, d)
        if self.shrink:
            return None
        return min(b / (4 * self.levels**2), math.sqrt(b) / self.levels)

    def _excess(self, b: int) -> float:
        """The paper's bound on w for b values that share a norm."""
        return min(b / self.levels**2, math.sqrt(b) / self.levels)

    def _sizes(self, layout: Layout) -> list[int]:
        return layout.sizes if self.scope == "layer" else [layout.d]

    def encode(self, p: Vec, state: Rec, layout: Layout, draw: torch.Generator) -> tuple[Rec, Rec]:
        p, sizes, noise = checked(p, layout), self._sizes(layout), Noise(draw)
        norm = _norms(p, sizes, self.bucket)
        scale = torch.where(norm > 0, norm, 1.0)
        symbol = torch.empty(len(p), dtype=torch.uint8)
        for each, part, symbols in by_bucket(sizes, self.bucket, scale, p, symbol):
            u = noise.uniform(part.numel()).view(part.shape)
            symbols.copy_(quantise(part, each, u, self.levels))
        return rec(size=torch.tensor([len(p)]), norm=norm, symbol=symbol), state

    def decode(self, message: Rec, layout: Layout, dtype: torch.dtype | None = None) -> Vec:
        expect(message, layout)
        _, norm, symbol = message
        sizes, out = self._sizes(layout), torch.empty(layout.d, dtype=dtype or torch.float32)
        for each, part, symbols in by_bucket(sizes, self.bucket, norm, out, symbol):
            values = symbols.to(work(out)).sub_(self.levels).div_(self.levels)
            part.copy_(values.mul_(each))
        if self.shrink:
            for at, n, size, _ in pieces(sizes, self.bucket):
                out[at : at + n] /= 1 + self._excess(size)
        return out

    def parameters(self) -> bytes:
        return _QSGD.pack(self.levels, self.bucket)

    def lengths(self, k: int, layout: Layout) -> dict[str, int]:
        return {"norm": count(self._sizes(layout), self.bucket), "symbol": layout.d}


class FedPAQ(QSGD):
    """FedPAQ's quantiser: QSGD of a client's whole move, unbiased, without error feedback.

    Differs from the paper, whose norm is that of the whole vector (bucket=0, scope="global"): one
    norm per bucket of a layer, without which nothing of a network of 11 million values is left.
    Source: Reisizadeh et al., AISTATS 2020; in FedACG's Table 6, which says no number of bits.

    >>> FedPAQ().width, FedPAQ().scope
    (4, 'layer')
    """

    code = 12
    feedback = "forget"
    levels: int = hyper(
        7,
        "positive levels of a value",
        "FedPAQ does not say which in Table 6: 4 bit",
        low=1,
        high=127,
    )
    scope: Literal["global", "layer"] = hyper(
        "layer",
        "buckets of the whole vector or of each layer",
        "a norm per layer and bucket; FedPAQ: global",
    )


class Int8(Codec):
    """Send every value in steps of its bucket's largest magnitude / 127, rounded at random.

    s = max|p| / 127, q_j = floor(p_j / s + u_j) with u uniform, and the receiver has s q_j:
    unbiased with w = b / (4 127^2) for buckets of b values. bucket 0: one for all.
    On the wire: header, bucket u32, steps s as float32 rounded up, q in bytes.

    >>> codec, layout = Int8(), Layout(("w",), ((3,),))
    >>> p = torch.tensor([127.0, -5, 0])
    >>> message, _ = codec.encode(p, rec(), layout, torch.Generator())
    >>> codec.decode(message, layout), codec.nbytes(message)
    (tensor([127.,  -5.,   0.]), 23)
    """

    code = 13
    advice = "use smaller buckets"
    wire = {"scale": torch.float32, "symbol": torch.int8}
    counted = "symbol"
    bucket: int = hyper(
        512, "values that share a scale", "512, as QSGD; 0 = whole vector", low=0, high=2**32 - 1
    )

    def omega(self, d: int) -> float | None:
        return min(self.bucket or d, d) / (4 * _STEPS**2)

    def encode(self, p: Vec, state: Rec, layout: Layout, draw: torch.Generator) -> tuple[Rec, Rec]:
        p, noise = checked(p, layout), Noise(draw)
        scale = _steps(p, self.bucket)
        each = torch.where(scale > 0, scale, 1.0)
        symbol = torch.empty(len(p), dtype=torch.int8)
        for step, part, symbols in by_bucket([len(p)], self.bucket, each, p, symbol):
            u = noise.uniform(part.numel()).view(part.shape)
            z = part.to(work(p)).div(step).add_(u)
            symbols.copy_(z.floor_().clamp_(-_STEPS, _STEPS))
        return rec(size=torch.tensor([len(p)]), scale=scale, symbol=symbol), state

    def decode(self, message: Rec, layout: Layout, dtype: torch.dtype | None = None) -> Vec:
        expect(message, layout)
        _, scale, symbol = message
        out = torch.empty(layout.d, dtype=dtype or torch.float32)
        for step, part, symbols in by_bucket([layout.d], self.bucket, scale, out, symbol):
            part.copy_(symbols.to(work(out)).mul_(step))
        return out

    def parameters(self) -> bytes:
        return _BUCKET.pack(self.bucket)

    def lengths(self, k: int, layout: Layout) -> dict[str, int]:
        return {"scale": count([layout.d], self.bucket), "symbol": layout.d}


# --------------------------------------------------------------------------------------- arithmetic
def quantise(p: Vec, norm: Tensor, u: Vec, levels: int) -> Tensor:
    """Signed levels plus `levels`, uint8 of p's shape. norm: one, or one per row, none of them 0;
    u in [0, 1).

    ceil(z - u) is floor(z) + [u < z - floor(z)] in one operation.
    """
    kind = work(p)
    p = p.to(kind)
    # the quotient first: levels / norm overflows for the smallest norms; it may round above 1
    z = p.abs().div_(norm.to(kind)).mul_(levels).sub_(u).ceil_().clamp_max_(levels)
    return z.copysign_(p).add_(levels).to(torch.uint8)


def _norms(p: Vec, sizes: list[int], bucket: int) -> Tensor:
    """The norm of every bucket, float32 rounded up: a norm that is too small would push the
    largest value beyond the last level, and make it biased.
    """
    squares = torch.zeros(count(sizes, bucket), dtype=torch.float64)
    for each, part in by_bucket(sizes, bucket, squares, p):
        if part.ndim == 1:
            each += part.double().square().sum()
        else:
            each += torch.linalg.vector_norm(part, dim=1, keepdim=True, dtype=each.dtype).square_()
    exact = squares.sqrt_()
    if len(exact) and exact.max() > LARGEST:
        raise DataError(
            f"QSGD sends norms as float32, up to {LARGEST:.3g}, got {float(exact.max()):.3g}"
        )
    return round_up(exact)


def _steps(p: Vec, bucket: int) -> Tensor:
    """max|p| / 127 of every bucket, float32 rounded up, so that no value is beyond 127 steps."""
    largest = torch.zeros(count([len(p)], bucket), dtype=work(p))
    for each, part in by_bucket([len(p)], bucket, largest, p):
        torch.maximum(each, part.abs().to(work(p)).amax(-1, keepdim=True), out=each)
    exact = largest.double() / _STEPS
    if len(exact) and float(exact.max()) * _STEPS > LARGEST:
        raise DataError(
            f"Int8 sends steps as float32; the largest value, {float(largest.max()):.3g}, is beyond"
            f" {LARGEST:.3g}"
        )
    return round_up(exact).clamp_max(_LARGEST_STEP)


def work(p: Tensor) -> torch.dtype:
    """The type for computations: half types have too few digits for levels."""
    return torch.float64 if p.dtype == torch.float64 else torch.float32


def round_up(exact: Tensor) -> Tensor:
    """float64 -> float32, never below."""
    near = exact.float()
    above = torch.nextafter(near, torch.tensor(torch.inf))
    return torch.where(near.double() < exact, above, near).clamp_max(LARGEST)


# ------------------------------------------------------------------------------------------- pieces
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


def by_bucket(
    sizes: Sequence[int], bucket: int, scale: Tensor, *vectors: Tensor
) -> Iterator[tuple[Tensor, ...]]:
    """Views of the buckets' scales beside those of vectors (d,), piece by piece: (k, 1) and (k,
    size) of whole buckets, and (1,) and what is left of one.

    >>> scale, vector = torch.ones(3), torch.ones(5)
    >>> [[tuple(t.shape) for t in views] for views in by_bucket([5], 2, scale, vector)]
    [[(2, 1), (2, 2)], [(1,), (1,)]]
    """
    for at, n, size, span in pieces(sizes, bucket):
        scales, parts = scale[span], [vector[at : at + n] for vector in vectors]
        whole = n - n % size if len(scales) > 1 else 0
        if whole:
            views = (part[:whole].view(-1, size) for part in parts)
            yield scales[: whole // size, None], *views
        if whole < n:
            yield scales[-1:], *(part[whole:] for part in parts)


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
