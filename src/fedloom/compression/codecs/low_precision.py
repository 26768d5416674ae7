"""Codecs that shorten every value by itself: two bytes, nine bits, or a sign."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from ...core.hyper import hyper
from ...core.layout import Layout
from ...core.vector import Rec, Vec, rec
from ...errors import DataError
from .base import Codec, Plain, checked, expect
from .buckets import CHUNK, Noise, work

_BIAS = 127  # of a float32's exponent, which is what travels
_LARGEST = 2.0**127


class _Half(Plain):
    """Send every value in a type of two bytes."""

    half: ClassVar[torch.dtype]

    def encode(self, p: Vec, state: Rec, layout: Layout, draw: torch.Generator) -> tuple[Rec, Rec]:
        p, kind = checked(p, layout, on_device=True), self.half
        largest = min(torch.finfo(each).max for each in (kind, p.dtype))
        value = p.new_empty(len(p), dtype=kind)
        parts = (torch.split(v, CHUNK) for v in (value, p))
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


class Natural(Codec):
    """Send sign and exponent of each value, nine bits.

    2^a <= |p_j| < 2^(a+1) becomes 2^(a+1) with probability (|p_j| - 2^a) / 2^a, else 2^a: unbiased
    with w = 1/8. 0 stays 0, and what is smaller than float32's normal numbers becomes 0.
    On the wire: header, exponents + 127 in bytes (0: zero), signs (1: negative), most significant
    bit first.
    Source: Horvath et al., Natural compression, 2019.

    >>> codec, layout = Natural(), Layout(("w",), ((4,),))
    >>> message, _ = codec.encode(torch.tensor([4.0, -1, 0, 3]), rec(), layout, torch.Generator())
    >>> codec.decode(message, layout)[:3], codec.nbytes(message)
    (tensor([ 4., -1.,  0.]), 17)
    """

    code = 9
    wire = {"exponent": 8, "negative": 1}
    counted = "exponent"

    def encode(self, p: Vec, state: Rec, layout: Layout, draw: torch.Generator) -> tuple[Rec, Rec]:
        p, noise = checked(p, layout), Noise(draw)
        largest = max(abs(float(v)) for v in p.aminmax()) if len(p) else 0.0
        if largest > _LARGEST:
            raise DataError(
                f"Natural sends powers of two up to 2^127, got {largest:.3g}; lower "
                "local.lr or set local.clip"
            )
        parts = [_exponents(part, noise) for part in torch.split(p, CHUNK)] if len(p) else []
        exponent = torch.cat([torch.empty(0, dtype=torch.uint8), *parts])
        negative = (p < 0) & (exponent > 0)
        return rec(size=torch.tensor([len(p)]), exponent=exponent, negative=negative), state

    def decode(self, message: Rec, layout: Layout, dtype: torch.dtype | None = None) -> Vec:
        expect(message, layout)
        out = torch.empty(layout.d, dtype=dtype or torch.float32)
        parts = (torch.split(v, CHUNK) for v in (out, message.exponent, message.negative))
        for values, exponent, negative in zip(*parts, strict=True):
            bits = (exponent.to(torch.int32) << 23) | (negative.to(torch.int32) << 31)
            values.copy_(bits.view(torch.float32))
        return out

    def omega(self, d: int) -> float | None:
        return 1 / 8


def _exponents(p: Vec, noise: Noise) -> Tensor:
    """The exponents + 127 that |p_j| is rounded to, uint8 (n,); 0 for zero.

    A random number below 2^m added to the m bits of the mantissa carries into the exponent with the
    probability (|p_j| - 2^a) / 2^a, exactly.
    """
    kind: type[np.signedinteger[Any]]
    if p.dtype == torch.float64:
        mantissa, bias, whole, kind = 52, 1023, torch.int64, np.int64
    else:
        p, mantissa, bias, whole, kind = p.float(), 23, _BIAS, torch.int32, np.int32
    low = (1 << mantissa) - 1
    bits = p.abs().view(whole)
    normal = (bits >> mantissa) - bias + _BIAS >= 1
    carried = (bits + (noise.integers(len(p), kind) & low)) >> mantissa
    return torch.where(normal, carried - bias + _BIAS, 0).to(torch.uint8)


class Sign(Codec):
    """Send sign(p_j), one bit, and the mean magnitude ||p||_1 / d that the receiver gives them all.

    sign(0) is +1. ||C(p) - p||^2 = ||p||^2 - ||p||_1^2 / d <= (1 - 1/d) ||p||^2: biased, made for
    error feedback. scope "layer": one mean magnitude for each layer.
    On the wire: header, magnitudes (f64 of an f64 p, else f32), signs (1: negative), most
    significant bit first.
    Source: Karimireddy et al., ICML 2019; signSGD is Bernstein et al., ICML 2018.

    >>> codec, layout = Sign(), Layout(("w",), ((4,),))
    >>> message, _ = codec.encode(torch.tensor([1.0, -3, 0, 4]), rec(), layout, torch.Generator())
    >>> codec.decode(message, layout), codec.nbytes(message)
    (tensor([ 2., -2.,  2.,  2.]), 17)
    """

    code = 8
    wire = {"scale": None, "negative": 1}
    counted = "scale"
    on_device = True
    scope: Literal["global", "layer"] = hyper(
        "global", "one scale for the whole vector or for each layer", "FedCAMS: the whole model"
    )

    def _sizes(self, layout: Layout) -> list[int]:
        return layout.sizes if self.scope == "layer" else [layout.d]

    def encode(self, p: Vec, state: Rec, layout: Layout, draw: torch.Generator) -> tuple[Rec, Rec]:
        p = checked(p, layout, on_device=True)
        parts = torch.split(p, self._sizes(layout))
        scale = torch.stack(
            [part.abs().sum(dtype=torch.float64) / max(len(part), 1) for part in parts]
        ).to(work(p))
        return rec(size=torch.tensor([len(p)]), scale=scale, negative=p < 0), state

    def decode(self, message: Rec, layout: Layout, dtype: torch.dtype | None = None) -> Vec:
        expect(message, layout)
        sizes = self._sizes(layout)
        scale: Tensor = message.scale.to(dtype or message.scale.dtype)
        out = scale.new_empty(layout.d)
        for values, negative, one in zip(
            torch.split(out, sizes), torch.split(message.negative, sizes), scale, strict=True
        ):
            torch.where(negative, -one, one, out=values)
        return out

    def lengths(self, k: int, layout: Layout) -> dict[str, int]:
        return {"scale": len(self._sizes(layout)), "negative": layout.d}
