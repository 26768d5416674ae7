"""Top-k sparsification: the largest magnitudes, with their indices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...core.hyper import PositiveShare, hyper
from ...core.layout import Layout
from ...core.vector import Vec
from .sparse import Sparse

_SMALL = 1 << 17  # below this many values a sample does not pay
_CHUNK = 1 << 18  # values examined together: they stay in the processor's cache
_STRIDE = (
    97  # one value in this many is examined first; a prime, because few layers have such a width
)


class TopK(Sparse):
    """Keep the k = max(1, round(ratio n)) largest |p_j| of the n coordinates, unscaled.

    Of equal magnitudes those with the lowest index are kept. ||C(p) - p||^2 <= (1 - k/d) ||p||^2.
    On the wire: header, indices in the cheapest of several codings (index_coding.py), values.
    ratio 1 sends everything, bit for bit.
    Source: CFedAvg's `comp` is the dropped share, 1 - ratio; Stich et al., NeurIPS 2018.

    >>> from fedloom.core.rng import generator
    >>> codec, layout = TopK(ratio=0.4), Layout(("w",), ((5,),))
    >>> p = torch.tensor([0.5, -3.0, 1.0, 3.0, 2.0])
    >>> message, _ = codec.encode(p, codec.init(layout, 0), layout, generator(0, "codec"))
    >>> codec.decode(message, layout)
    tensor([ 0., -3.,  0.,  3.,  0.])
    """

    code = 1
    ratio: PositiveShare = hyper(0.01, "share of the values that is sent", "CFedAvg: 0.1 and 0.01")
    scope: Literal["global", "layer"] = hyper(
        "global",
        "the largest of the whole vector or of each layer",
        "the largest of the whole model, as FedCAMS",
    )

    def choose(self, p: Vec, layout: Layout, draw: torch.Generator) -> Tensor:
        if self.scope == "global":
            return largest(p, self._count(len(p)))
        indices, offset = [p.new_empty(0, dtype=torch.int64)], 0
        for part in torch.split(p, layout.sizes):
            if n := len(part):
                indices.append(largest(part, self._count(n)) + offset)
            offset += n
        return torch.cat(indices)

    def _count(self, n: int) -> int:
        return min(n, max(1, round(self.ratio * n)))

    def most(self, d: int) -> int:
        return self._count(d) if self.scope == "global" else d

    def delta(self, d: int) -> float | None:
        if self.scope == "layer":  # rounding leaves a layer two thirds of its share at least
            return 1 - 2 * self.ratio / 3
        return 1 - self._count(d) / max(d, 1)


def largest(p: Vec, k: int) -> Tensor:
    """The indices (k,) of the k largest |p_j|, increasing; of equal ones the lowest indices.

    Exact. A selection, not a sort: at eleven million values a stable sort costs two seconds.
    """
    if k >= len(p):
        return torch.arange(len(p), device=p.device)
    if p.device.type != "cpu":
        return _largest_on_device(p, k)
    candidates = _candidates(p, k)
    size = _size(p if candidates is None else p[candidates])
    least = float(np.partition(size.numpy(), len(size) - k)[len(size) - k])
    mask = size > least
    ties = (size == least).nonzero().flatten()
    mask[ties[: k - int(mask.count_nonzero())]] = True
    return mask.nonzero().flatten() if candidates is None else candidates[mask]


def _largest_on_device(p: Vec, k: int) -> Tensor:
    """The same on a GPU, where the host waits once, for the indices."""
    size = _size(p)
    least = size.topk(k, sorted=False).values.amin()
    mask, ties = size > least, size == least
    mask |= ties & (ties.cumsum(0) <= k - mask.sum())
    return mask.nonzero().flatten()


def _size(p: Vec) -> Tensor:
    """|p_j| in a type that numpy can select from; halves are exact in float32."""
    return (p.float() if p.dtype in (torch.float16, torch.bfloat16) else p).abs()


def _candidates(p: Vec, k: int) -> Tensor | None:
    """Indices, increasing, that include the k largest |p_j|; None: all.

    They lie above a bound from a sample; if the bound was too high, all are candidates.
    """
    rank = round(1.2 * k / _STRIDE) + 64
    if len(p) < _SMALL or rank >= len(p) // _STRIDE:
        return None
    sample = _size(p[::_STRIDE]).numpy()
    bound = float(np.partition(sample, len(sample) - rank)[len(sample) - rank])
    indices = torch.from_numpy(np.concatenate(list(_above(p, bound))))
    return indices if k <= len(indices) <= len(p) // 2 else None


def _above(p: Vec, bound: float) -> Iterator[npt.NDArray[np.int64]]:
    """The indices where |p_j| >= bound, piece by piece: numpy is three times as fast as torch."""
    for n, part in enumerate(torch.split(p, _CHUNK)):
        yield np.flatnonzero(_size(part).numpy() >= bound) + n * _CHUNK
