"""Random dropping: every coordinate is kept with the same probability, and no index travels."""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from ...core.hyper import PositiveShare, hyper
from ...core.layout import Layout
from ...core.rng import generator
from ...core.vector import Rec, Vec, rec
from ...errors import WireError
from .base import Bytes, Codec, checked, expect
from .buckets import CHUNK

_SEED = struct.Struct("<q")


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
    wire = {"value": None}
    chooses = True
    ratio: PositiveShare = hyper(0.1, "share of the values that is sent", "CFedAvg: 0.1 and 0.01")
    scaled: bool = hyper(
        False, "divide by the ratio: unbiased", "CFedAvg's Definition 1: not scaled"
    )

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

    def delta(self, d: int) -> float | None:
        return 1 - self.ratio if not self.scaled else super().delta(d)

    def unfit(self, d: int) -> str:
        if not self.scaled or self.ratio == 1:
            return ""
        return "the scaled form is for use without feedback; take scaled=False"
