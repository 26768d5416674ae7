"""Codecs that send some coordinates: top-k, a threshold, random ones; and sets of indices."""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...core.hyper import NonNegative, PositiveShare, hyper
from ...core.layout import Layout
from ...core.rng import generator
from ...core.vector import Rec, Vec, rec
from ...errors import WireError
from . import index_coding as indices
from .base import Bytes, Codec, checked, expect
from .buckets import CHUNK

_SEED = struct.Struct("<q")
_SMALL = 1 << 17  # below this many values a sample does not pay
_CHUNK = 1 << 18  # values examined together: they stay in the processor's cache
_STRIDE = (
    97  # one value in this many is examined first; a prime, because few layers have such a width
)


class Sparse(Codec):
    """Send the coordinates that choose() takes, unscaled.

    On the wire: header, indices in the cheapest of several codings (index_coding.py), values.
    """

    chooses = True
    wire = {"value": None}
    on_device = True

    @abstractmethod
    def choose(self, p: Vec, layout: Layout, draw: torch.Generator) -> Tensor:
        """The indices (k,) to send of p (d,), increasing. draw: a new generator."""

    def encode(self, p: Vec, state: Rec, layout: Layout, draw: torch.Generator) -> tuple[Rec, Rec]:
        p = checked(p, layout, on_device=True)
        index = self.choose(p, layout, draw)
        value = p.clone() if len(index) == len(p) else p[index]
        return rec(size=torch.tensor([len(p)]), index=index, value=value), state

    def decode(self, message: Rec, layout: Layout, dtype: torch.dtype | None = None) -> Vec:
        expect(message, layout)
        value: Tensor = message.value.to(dtype or message.value.dtype)
        if len(value) == layout.d:
            return value
        return value.new_zeros(layout.d).index_put_((message.index,), value)

    def missing(self, p: Vec, message: Rec, layout: Layout) -> Vec:
        p[message.index] -= message.value.to(p)
        return p

    def where(self, message: Rec) -> tuple[int, bytes]:
        d, index = int(message.size), message.index.cpu().numpy()
        plan = indices.plan(index, d)
        return int(plan.coding), indices.write(index, d, plan)

    def there(self, coding: int, block: Bytes, d: int, k: int) -> Rec:
        indices.bound(block, d)
        index = torch.from_numpy(indices.read(block, coding, d, k))
        return rec(size=torch.tensor([d]), index=index)

    def lengths(self, k: int, layout: Layout) -> dict[str, int]:
        return {"value": min(k, layout.d)}

    def where_nbytes(self, message: Rec) -> int:
        return indices.plan(message.index.cpu().numpy(), int(message.size)).nbytes


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

    @property
    def exact(self) -> bool:
        return self.ratio == 1

    def most(self, d: int) -> int:
        return self._count(d) if self.scope == "global" else d


class Threshold(Sparse):
    """Keep every |p_j| > tau, unscaled; their number depends on p.

    With error feedback no residual is larger than tau. ||C(p) - p||^2 <= d tau^2, and there is no
    share of ||p||^2 that always arrives: of a small p nothing is sent.
    On the wire: header, indices, values, as of top-k.

    >>> codec, layout = Threshold(tau=1.0), Layout(("w",), ((4,),))
    >>> p = torch.tensor([0.5, -3.0, 1.0, 2.0])
    >>> message, _ = codec.encode(p, codec.init(layout, 0), layout, torch.Generator())
    >>> codec.decode(message, layout)
    tensor([ 0., -3.,  0.,  2.])
    """

    code = 5
    tau: NonNegative = hyper(
        0.01, "smallest magnitude that is sent", "none that fits every model: a typical |p_j|"
    )

    def choose(self, p: Vec, layout: Layout, draw: torch.Generator) -> Tensor:
        return (p.abs() > self.tau).nonzero().flatten()


class RandomDropping(Codec):
    """Keep each p_j with probability `ratio`, independently.

    The message holds the seed of the mask instead of indices: uniform[0, 1) < ratio in float32 for
    j = 0 .. d - 1, drawn from generator(seed, "dropping"). On the wire: header, seed, values in
    increasing order of their indices. ratio 1 sends everything, bit for bit.
    scaled=False is CFedAvg's operator: E||C(p) - p||^2 = (1 - ratio) ||p||^2, biased, made for
    error feedback. scaled=True sends p_j / ratio: unbiased with variance factor 1 / ratio - 1, for
    use without error feedback, which would grow with every round.
    Source: CFedAvg (Yang et al.), whose `comp` is the dropped share, 1 - ratio.

    >>> codec, layout = RandomDropping(ratio=0.5), Layout(("w",), ((4,),))
    >>> message, _ = codec.encode(torch.ones(4), codec.init(layout, 0), layout, generator(0, "a"))
    >>> codec.nbytes(message) == 12 + 8 + 4 * len(message.value)
    True
    """

    code = 2
    chooses = True
    wire = {"value": None}
    ratio: PositiveShare = hyper(0.1, "share of the values that is sent", "CFedAvg: 0.1 and 0.01")
    scaled: bool = hyper(
        False, "divide by the ratio: unbiased", "CFedAvg's Definition 1: not scaled"
    )

    @property
    def exact(self) -> bool:
        return self.ratio == 1

    def mask(self, seed: int, d: int) -> Tensor:
        """The kept coordinates of the message with this seed, as bools (d,)."""
        draw, mask = generator(seed, "dropping"), torch.empty(d, dtype=torch.bool)
        for part in torch.split(mask, CHUNK):  # the same numbers as in one go
            u = torch.rand(len(part), generator=draw, dtype=torch.float32)
            torch.lt(u, self.ratio, out=part)
        return mask

    def encode(self, p: Vec, state: Rec, layout: Layout, draw: torch.Generator) -> tuple[Rec, Rec]:
        p = checked(p, layout)
        seed = torch.tensor([draw.initial_seed()], dtype=torch.uint64).view(torch.int64)
        value = p[self.mask(int(seed), len(p))]
        if self.scaled:
            value = checked(value / self.ratio, Layout(("kept",), ((len(value),),)))
        return rec(size=torch.tensor([len(p)]), seed=seed, value=value), state

    def decode(self, message: Rec, layout: Layout, dtype: torch.dtype | None = None) -> Vec:
        expect(message, layout)
        value: Tensor = message.value.to(dtype or message.value.dtype)
        mask = self.mask(int(message.seed), layout.d)
        if (k := int(mask.count_nonzero())) != len(value):
            raise WireError(
                f"a RandomDropping message has {len(value)} values, but its seed keeps {k} of "
                f"{layout.d} at ratio {self.ratio:g}"
            )
        return value.new_zeros(layout.d).masked_scatter_(mask, value)

    def where(self, message: Rec) -> tuple[int, bytes]:
        return 0, _SEED.pack(int(message.seed))

    def there(self, coding: int, block: Bytes, d: int, k: int) -> Rec:
        if coding or len(block) != _SEED.size:
            raise WireError(
                f"a RandomDropping message has index coding {coding} and {len(block)} bytes of a "
                f"seed; it has coding 0 and {_SEED.size} bytes"
            )
        (seed,) = _SEED.unpack(block.tobytes())
        return rec(size=torch.tensor([d]), seed=torch.tensor([seed]))

    def lengths(self, k: int, layout: Layout) -> dict[str, int]:
        return {"value": min(k, layout.d)}

    def omega(self, d: int) -> float | None:
        return 1 / self.ratio - 1 if self.scaled else None

    def unfit(self, d: int) -> str:
        if not self.scaled or self.ratio == 1:
            return ""
        return "the scaled form is for use without feedback; take scaled=False"


# ------------------------------------------------------------------------------- the largest values
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
