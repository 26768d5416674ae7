"""Thresholds: values larger than tau are sent, as they are (hard) or by their signs (Strom)."""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from ...core.hyper import NonNegative, Positive, hyper
from ...core.layout import Layout
from ...core.vector import Rec, Vec, rec
from . import index_coding as indices
from .base import HEADER_BYTES, Codec, Header, Reader, checked, expect, packed_bits
from .sparse import Sparse

_TAU = struct.Struct("<d")


class Threshold(Sparse):
    """Keep every |p_j| > tau, unscaled; their number depends on p.

    With error feedback no residual is larger than tau. ||C(p) - p||^2 <= d tau^2, and there is no
    share of ||p||^2 that always arrives: of a small p nothing is sent.
    On the wire: header, indices, values, as of top-k.

    >>> codec, layout = Threshold(tau=1.0), Layout(("w",), ((4,),))
    >>> p = torch.tensor([0.5, -3.0, 1.0, 2.0])
    >>> message, _ = codec.encode(p, rec(), layout, torch.Generator())
    >>> codec.decode(message, layout)
    tensor([ 0., -3.,  0.,  2.])
    """

    code = 5
    tau: NonNegative = hyper(
        0.01, "smallest magnitude that is sent", "none that fits every model: a typical |p_j|"
    )

    def choose(self, p: Vec, layout: Layout, draw: torch.Generator) -> Tensor:
        return (p.abs() > self.tau).nonzero().flatten()

    def canonical(self, message: Rec, raw: bytes, dtype: torch.dtype) -> bool:
        large = bool((message.value.abs() > self.tau).all())
        return large and super().canonical(message, raw, dtype)


class Strom(Codec):
    """Send tau sign(p_j) for every |p_j| > tau: one bit beside its index.

    Made for error feedback, which keeps p_j - tau sign(p_j): it stays bounded if updates are
    smaller than tau in the mean.
    On the wire: header, tau f64, indices in the cheapest coding, signs (1: negative), least
    significant bit first.
    Source: Strom, Interspeech 2015, which spends 31 bits on an index.

    >>> codec, layout = Strom(tau=1.0), Layout(("w",), ((4,),))
    >>> p = torch.tensor([0.5, -3.0, 1.0, 2.0])
    >>> message, _ = codec.encode(p, rec(), layout, torch.Generator())
    >>> codec.decode(message, layout, torch.float32)
    tensor([ 0., -1.,  0.,  1.])
    """

    code = 6
    on_device = True
    tau: Positive = hyper(0.01, "smallest magnitude that is sent", "none that fits every model")

    def encode(self, p: Vec, state: Rec, layout: Layout, draw: torch.Generator) -> tuple[Rec, Rec]:
        p = checked(p, layout, there=True)
        index = (p.abs() > self.tau).nonzero().flatten()
        return rec(size=torch.tensor([len(p)]), index=index, negative=p[index] < 0), state

    def decode(self, message: Rec, layout: Layout, dtype: torch.dtype | None = None) -> Vec:
        expect(message, layout)
        out = torch.zeros(layout.d, dtype=dtype or torch.float32, device=message.index.device)
        sign = 1 - 2 * message.negative.to(out.dtype)
        return out.index_put_((message.index,), self.tau * sign)

    def pack(self, message: Rec) -> bytes:
        d, index = int(message.size), message.index.cpu().numpy()
        chosen = indices.plan(index, d)
        header = Header(self.code, torch.float32, int(chosen.coding), d, len(index)).bytes()
        block = indices.write(index, d, chosen)
        return b"".join((header, _TAU.pack(self.tau), block, packed_bits(message.negative)))

    def unpack(self, raw: bytes, layout: Layout | None = None) -> Rec:
        reader = Reader(raw, self, layout)
        _, _, coding, d, k = reader.header
        reader.agree(_TAU, "tau", self.tau)
        block = reader.block(reader.left - -(-k // 8))
        indices.bound(block, d)
        index = indices.read(block, coding, d, k)
        negative = reader.bits(k)
        reader.end()
        return rec(size=torch.tensor([d]), index=torch.from_numpy(index), negative=negative)

    def nbytes(self, message: Rec) -> int:
        d, index = int(message.size), message.index.cpu().numpy()
        return HEADER_BYTES + _TAU.size + indices.plan(index, d).nbytes + -(-len(index) // 8)
