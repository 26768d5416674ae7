"""Natural compression: a value is rounded to a power of two, at random."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.layout import Layout
from ...core.vector import Rec, Vec, rec
from ...errors import DataError
from .base import Codec, checked, expect
from .buckets import Noise

_CHUNK = 1 << 17
_BIAS = 127  # of a float32's exponent, which is what travels
_LARGEST = 2.0**127


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
        parts = [_exponents(part, noise) for part in torch.split(p, _CHUNK)] if len(p) else []
        exponent = torch.cat([torch.empty(0, dtype=torch.uint8), *parts])
        negative = (p < 0) & (exponent > 0)
        return rec(size=torch.tensor([len(p)]), exponent=exponent, negative=negative), state

    def decode(self, message: Rec, layout: Layout, dtype: torch.dtype | None = None) -> Vec:
        expect(message, layout)
        out = torch.empty(layout.d, dtype=dtype or torch.float32)
        parts = (torch.split(v, _CHUNK) for v in (out, message.exponent, message.negative))
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
