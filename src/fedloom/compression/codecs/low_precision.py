"""Low precision: two bytes a value, rounded to the nearest, or one byte, rounded at random."""

from __future__ import annotations

import struct
from typing import ClassVar

import torch
from torch import Tensor

from ...core.hyper import hyper
from ...core.layout import Layout
from ...core.vector import Rec, Vec, rec
from ...errors import DataError
from . import buckets
from .base import Codec, Plain, checked, expect
from .buckets import LARGEST, Noise, Piece, by_bucket, pieces, work

_BUCKET = struct.Struct("<I")
_STEPS = 127
_LARGEST_STEP = LARGEST / (_STEPS + 2**-16)  # below what overflows times 127, as float32 too


class _Half(Plain):
    """Send every value in a type of two bytes."""

    half: ClassVar[torch.dtype]

    def encode(self, p: Vec, state: Rec, layout: Layout, draw: torch.Generator) -> tuple[Rec, Rec]:
        p, kind = checked(p, layout, on_device=True), self.half
        largest = min(torch.finfo(each).max for each in (kind, p.dtype))
        value = p.new_empty(len(p), dtype=kind)
        parts = (torch.split(v, buckets.CHUNK) for v in (value, p))
        for out, part in zip(*parts, strict=True):
            inside = part if p.dtype == kind else part.clamp(-largest, largest)
            out.copy_(_odd(inside) if p.dtype == torch.float64 else inside)
        return rec(size=torch.tensor([len(p)]), value=value), state


def _odd(p: Tensor) -> Tensor:
    """float64 -> float32, inexact values to the neighbour whose last bit is 1. Rounded to two bytes
    they are as if rounded once: of the nearest float32 a half-way case may be another (Boldo &
    Melquiond, IEEE TC 2008).
    """
    near = p.float()
    back = near.double()
    cut = near.view(torch.int32) - (back.abs() > p.abs()).int()  # towards 0
    return (cut | (back != p).int()).view(torch.float32)


class FP16(_Half):
    """Send every value as IEEE half, rounded to the nearest, ties to even.

    11 significant bits. Values beyond 65,504 become 65,504, values below 6e-8 zero; error feedback
    makes up for both.
    On the wire: header, values.

    >>> codec, layout = FP16(), Layout(("w",), ((2,),))
    >>> message, _ = codec.encode(torch.tensor([1.0, 1e9]), rec(), layout, torch.Generator())
    >>> codec.decode(message, layout, torch.float32)
    tensor([1.0000e+00, 6.5504e+04])
    """

    code = 10
    half = torch.float16
    wire = {"value": half}


class BF16(_Half):
    """Send every value as bfloat16, rounded to the nearest, ties to even.

    8 significant bits and the range of float32; larger values become the largest one.
    On the wire: header, values.

    >>> codec, layout = BF16(), Layout(("w",), ((2,),))
    >>> message, _ = codec.encode(torch.tensor([1.0, 3.14159]), rec(), layout, torch.Generator())
    >>> codec.decode(message, layout, torch.float32)
    tensor([1.0000, 3.1406])
    """

    code = 11
    half = torch.bfloat16
    wire = {"value": half}


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
    wire = {"scale": torch.float32, "symbol": torch.int8}
    counted = "symbol"
    bucket: int = hyper(
        512,
        "values that share a scale",
        low=0,
        high=2**32 - 1,
        source="512, as QSGD; 0 = whole vector",
    )

    def omega(self, d: int) -> float | None:
        return min(self.bucket or d, d) / (4 * _STEPS**2)

    def unfit(self, d: int) -> str:
        why = super().unfit(d)
        return f"{why}: use smaller buckets" if why else ""

    def encode(self, p: Vec, state: Rec, layout: Layout, draw: torch.Generator) -> tuple[Rec, Rec]:
        p, noise = checked(p, layout), Noise(draw)
        parts = list(pieces([len(p)], self.bucket))
        scale = _steps(p, parts, buckets.count([len(p)], self.bucket))
        each = torch.where(scale > 0, scale, 1.0)
        symbol = torch.empty(len(p), dtype=torch.int8)
        for piece in parts:
            span = slice(piece.at, piece.at + piece.n)
            views = by_bucket(piece, each, p[span], noise.uniform(piece.n), symbol[span])
            for step, part, u, symbols in views:
                z = part.to(work(p)).div(step).add_(u)
                symbols.copy_(z.floor_().clamp_(-_STEPS, _STEPS))
        return rec(size=torch.tensor([len(p)]), scale=scale, symbol=symbol), state

    def decode(self, message: Rec, layout: Layout, dtype: torch.dtype | None = None) -> Vec:
        expect(message, layout)
        out = torch.empty(layout.d, dtype=dtype or torch.float32)
        for piece in pieces([layout.d], self.bucket):
            span = slice(piece.at, piece.at + piece.n)
            values = message.symbol[span].to(work(out))
            for step, part in by_bucket(piece, message.scale, values):
                part.mul_(step)
            out[span] = values
        return out

    def parameters(self) -> bytes:
        return _BUCKET.pack(self.bucket)

    def lengths(self, k: int, layout: Layout) -> dict[str, int]:
        return {"scale": buckets.count([layout.d], self.bucket), "symbol": layout.d}


def _steps(p: Vec, parts: list[Piece], number: int) -> Tensor:
    """max|p| / 127 of every bucket, float32 rounded up, so that no value is beyond 127 steps."""
    largest = torch.zeros(number, dtype=work(p))
    for start, n, size, span in parts:
        part = p[start : start + n].abs().to(work(p))
        if span.stop - span.start > 1:
            part = torch.nn.functional.pad(part, (0, -n % size)).view(-1, size)
        largest[span] = torch.maximum(largest[span], part.view(span.stop - span.start, -1).amax(1))
    exact = largest.double() / _STEPS
    if number and float(exact.max()) * _STEPS > LARGEST:
        raise DataError(
            f"Int8 sends steps as float32; the largest value, {float(largest.max()):.3g}, is beyond"
            f" {LARGEST:.3g}"
        )
    return buckets.round_up(exact).clamp_max(_LARGEST_STEP)
