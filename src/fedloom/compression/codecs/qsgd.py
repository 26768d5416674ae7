"""QSGD: random rounding to a few levels of each bucket's norm."""

from __future__ import annotations

import math
import struct
from typing import Literal

import torch
from torch import Tensor

from ...core.hyper import hyper
from ...core.layout import Layout
from ...core.vector import Rec, Vec, rec
from ...errors import DataError
from . import buckets
from .base import Codec, Kind, checked, expect
from .buckets import LARGEST, Noise, by_bucket, pieces, work

_PARAMETERS = struct.Struct("<HI")  # levels, bucket


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
    counted = "symbol"
    levels: int = hyper(
        127, "positive levels of a value", low=1, high=127, source="8 bit; FedPAQ, 4 bit: 7"
    )
    bucket: int = hyper(
        512,
        "values that share a norm",
        low=0,
        high=2**32 - 1,
        source="Alistarh et al.: 512; 0 = whole vector",
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

    def unfit(self, d: int) -> str:
        why = super().unfit(d)
        advice = "take more levels, smaller buckets, shrink = true, or feedback = forget"
        return f"{why}: {advice} (QSGD is unbiased)" if why else ""

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
        for piece in pieces(sizes, self.bucket):
            span = slice(piece.at, piece.at + piece.n)
            views = by_bucket(piece, scale, p[span], noise.uniform(piece.n), symbol[span])
            for each, part, u, symbols in views:
                symbols.copy_(quantise(part, each, u, self.levels))
        return rec(size=torch.tensor([len(p)]), norm=norm, symbol=symbol), state

    def decode(self, message: Rec, layout: Layout, dtype: torch.dtype | None = None) -> Vec:
        expect(message, layout)
        sizes, norm = self._sizes(layout), message.norm
        out = torch.empty(layout.d, dtype=dtype or torch.float32)
        kind = work(out)
        for piece in pieces(sizes, self.bucket):
            span = slice(piece.at, piece.at + piece.n)
            values = out[span] if out.dtype == kind else torch.empty(piece.n, dtype=kind)
            values.copy_(message.symbol[span]).sub_(self.levels).div_(self.levels)
            for each, part in by_bucket(piece, norm, values):
                part.mul_(each)
            if out.dtype != kind:
                out[span] = values
            if self.shrink:
                out[span] /= 1 + self._excess(piece.size)
        return out

    def parameters(self) -> bytes:
        return _PARAMETERS.pack(self.levels, self.bucket)

    def lengths(self, k: int, layout: Layout) -> dict[str, int]:
        return {"norm": buckets.count(self._sizes(layout), self.bucket), "symbol": layout.d}


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
        low=1,
        high=127,
        source="FedPAQ does not say which in Table 6: 4 bit",
    )
    scope: Literal["global", "layer"] = hyper(
        "layer",
        "buckets of the whole vector or of each layer",
        "a norm per layer and bucket; FedPAQ: global",
    )


# ------------------------------------------------------------------------------------- arithmetic
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
    squares = torch.zeros(buckets.count(sizes, bucket), dtype=torch.float64)
    for start, n, size, span in pieces(sizes, bucket):
        part = p[start : start + n]
        if span.stop - span.start == 1:
            squares[span] += part.double().square().sum()
            continue
        whole = n - n % size
        grouped = torch.linalg.vector_norm(part[:whole].view(-1, size), dim=1, dtype=torch.float64)
        squares[span.start : span.start + len(grouped)] += grouped.square_()
        if n > whole:
            squares[span.stop - 1] += part[whole:].double().square().sum()
    exact = squares.sqrt_()
    if len(exact) and exact.max() > LARGEST:
        raise DataError(
            f"QSGD sends norms as float32, up to {LARGEST:.3g}, got {float(exact.max()):.3g}"
        )
    return buckets.round_up(exact)
