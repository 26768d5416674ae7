"""Top-k sparsification: the largest magnitudes, with their places."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..algorithm import hyper
from ..layout import Layout
from ..vector import Rec, Vec, rec
from . import indices
from .base import HEADER_BYTES, Codec, Header, Reader, checked, expect, raw

__all__ = ["TopK"]

_SMALL = 1 << 17  # below this many values a sample does not pay
_STRIDE = 97  # one value in so many is looked at first; a prime, as layers are rarely of its width


class TopK(Codec):
    """Keep the k = max(1, round(ratio n)) largest |p_j| of the n coordinates, unscaled.

    Of equal magnitudes those with the lowest index are kept. ||C(p) - p||^2 <= (1 - k/d) ||p||^2.
    On the wire: header, indices in the cheapest of several codings (codecs/indices.py), values.
    ratio 1 sends everything, bit for bit.
    Source: CFedAvg's `comp` is the dropped share, 1 - ratio; Stich et al., NeurIPS 2018.

    >>> from fedloom.rng import generator
    >>> codec, layout = TopK(ratio=0.4), Layout(("w",), ((5,),))
    >>> p = torch.tensor([0.5, -3.0, 1.0, 3.0, 2.0])
    >>> message, _ = codec.encode(p, codec.init(layout, 0), layout, generator(0, "codec"))
    >>> codec.decode(message, layout)
    tensor([ 0., -3.,  0.,  3.,  0.])
    """

    code = 1
    ratio: float = hyper(0.01, low=0, open_low=True, high=1, source="CFedAvg: 0.1 and 0.01")
    scope: str = hyper(
        "global", choices=("global", "layer"), source="the largest of the whole model, as FedCAMS"
    )

    def encode(self, p: Vec, state: Rec, layout: Layout, draw: torch.Generator) -> tuple[Rec, Rec]:
        p = checked(p, layout)
        found, at = [], 0
        for part in torch.split(p, layout.sizes if self.scope == "layer" else [len(p)]):
            n = len(part)
            found.append(largest(part, min(n, max(1, round(self.ratio * n)))) + at)
            at += n
        index = torch.cat(found)
        value = p.clone() if len(index) == len(p) else p[index]
        return rec(size=torch.tensor([len(p)]), index=index, value=value), state

    def decode(self, message: Rec, layout: Layout, dtype: torch.dtype | None = None) -> Vec:
        expect(message, layout)
        value: Tensor = message.value.to(dtype or message.value.dtype)
        if len(value) == layout.d:
            return value
        return value.new_zeros(layout.d).index_put_((message.index,), value)

    def pack(self, message: Rec) -> bytes:
        d, index = int(message.size), message.index.numpy()
        chosen = indices.plan(index, d)
        header = Header(self.code, message.value.dtype, int(chosen.coding), d, len(index))
        return b"".join((header.bytes(), indices.write(index, d, chosen), raw(message.value)))

    def unpack(self, raw: bytes, layout: Layout | None = None) -> Rec:
        reader = Reader(raw, self, layout)
        _, dtype, coding, d, k = reader.header
        block = reader.block(reader.left - k * dtype.itemsize)
        index = indices.read(block, coding, d, k)
        value = reader.values(k)
        return rec(size=torch.tensor([d]), index=torch.from_numpy(index), value=value)

    def nbytes(self, message: Rec) -> int:
        block = indices.plan(message.index.numpy(), int(message.size)).nbytes
        return HEADER_BYTES + block + int(message.value.nbytes)


def largest(p: Vec, k: int) -> Tensor:
    """The indices (k,) of the k largest |p_j|, increasing; of equal ones the lowest indices.

    Exact. A selection, not a sort: at eleven million values a stable sort costs two seconds.
    """
    if k >= len(p):
        return torch.arange(len(p))
    if p.dtype in (torch.float16, torch.bfloat16):
        p = p.float()  # exact, and what numpy can select from
    size = p.abs()
    candidates = _candidates(size, k)
    if candidates is not None:
        size = size[candidates]
    least = float(np.partition(size.numpy(), len(size) - k)[len(size) - k])
    kept = size > least
    ties = (size == least).nonzero()[:, 0]
    kept[ties[: k - int(kept.count_nonzero())]] = True
    return kept.nonzero()[:, 0] if candidates is None else candidates[kept]


def _candidates(size: Vec, k: int) -> Tensor | None:
    """Indices, increasing, that surely hold the k largest of non-negative values; None: all.

    They are what lies above a bound from a sample; if the bound was too high, all are candidates.
    """
    rank = round(1.2 * k / _STRIDE) + 64
    if len(size) < _SMALL or rank >= len(size) // _STRIDE:
        return None
    sample = size[::_STRIDE].numpy()
    bound = float(np.partition(sample, len(sample) - rank)[len(sample) - rank])
    found = (size >= bound).nonzero()[:, 0]
    return found if k <= len(found) <= len(size) // 2 else None
