"""signSGD with norm: every sign, and one magnitude."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ...core.hyper import hyper
from ...core.layout import Layout
from ...core.vector import Rec, Vec, rec
from ...errors import WireError
from .base import HEADER_BYTES, Codec, Header, Reader, checked, expect, finite, packed_bits, raw
from .buckets import work


class Sign(Codec):
    """Send sign(p_j), one bit, and the mean magnitude ||p||_1 / d that the receiver gives them all.

    sign(0) is +1. ||C(p) - p||^2 = ||p||^2 - ||p||_1^2 / d <= (1 - 1/d) ||p||^2: biased, made for
    error feedback. scope "layer": one mean magnitude for each layer.
    On the wire: header, magnitudes (f64 of an f64 p, else f32), signs (1: negative), least
    significant bit first.
    Source: Karimireddy et al., ICML 2019; signSGD is Bernstein et al., ICML 2018.

    >>> codec, layout = Sign(), Layout(("w",), ((4,),))
    >>> message, _ = codec.encode(torch.tensor([1.0, -3, 0, 4]), rec(), layout, torch.Generator())
    >>> codec.decode(message, layout), codec.nbytes(message)
    (tensor([ 2., -2.,  2.,  2.]), 17)
    """

    code = 8
    on_device = True
    scope: Literal["global", "layer"] = hyper(
        "global", "one scale for the whole vector or for each layer", "FedCAMS: the whole model"
    )

    def _sizes(self, layout: Layout) -> list[int]:
        return layout.sizes if self.scope == "layer" else [layout.d]

    def encode(self, p: Vec, state: Rec, layout: Layout, draw: torch.Generator) -> tuple[Rec, Rec]:
        p = checked(p, layout, there=True)
        parts = torch.split(p, self._sizes(layout))
        scale = torch.stack(
            [part.abs().sum(dtype=torch.float64) / max(len(part), 1) for part in parts]
        ).to(work(p))
        return rec(size=torch.tensor([len(p)]), scale=scale, negative=p < 0), state

    def decode(self, message: Rec, layout: Layout, dtype: torch.dtype | None = None) -> Vec:
        expect(message, layout)
        sizes = self._sizes(layout)
        scale: Tensor = message.scale.to(dtype or message.scale.dtype)
        if len(scale) != len(sizes):
            raise WireError(f"a Sign message has {len(scale)} magnitudes; it takes {len(sizes)}")
        out = scale.new_empty(layout.d)
        for place, negative, one in zip(
            torch.split(out, sizes), torch.split(message.negative, sizes), scale, strict=True
        ):
            torch.where(negative, -one, one, out=place)
        return out

    def pack(self, message: Rec) -> bytes:
        d, scale = int(message.size), message.scale
        head = Header(self.code, scale.dtype, 0, d, len(scale)).bytes()
        return b"".join((head, raw(scale), packed_bits(message.negative)))

    def unpack(self, raw: bytes, layout: Layout | None = None) -> Rec:
        reader = Reader(raw, self, layout)
        _, dtype, coding, d, k = reader.header
        if coding or dtype.itemsize < 4 or k > reader.left:
            raise WireError(
                f"a Sign message has index coding {coding} and {k} magnitudes of {str(dtype)[6:]}; "
                "it has coding 0 and at most float32 or float64 ones that are there"
            )
        if layout is not None and k != (number := len(self._sizes(layout))):
            raise WireError(f"a Sign message has {k} magnitudes; it takes {number}")
        scale = reader.values(k)
        if not finite(scale) or bool(scale.signbit().any()):
            raise WireError("a Sign message has a magnitude that is negative or not finite")
        negative = reader.bits(d)
        reader.end()
        return rec(size=torch.tensor([d]), scale=scale, negative=negative)

    def canonical(self, message: Rec, raw: bytes, dtype: torch.dtype) -> bool:
        wide = message.scale.dtype == torch.float64
        return wide == (dtype == torch.float64) and super().canonical(message, raw, dtype)

    def nbytes(self, message: Rec) -> int:
        return HEADER_BYTES + int(message.scale.nbytes) + -(-int(message.size) // 8)

    def delta(self, d: int) -> float | None:
        return 1 - 1 / max(d, 1)
