"""The common part of codecs that send some coordinates: indices and values."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from ...core.layout import Layout
from ...core.vector import Rec, Vec, rec
from . import index_coding as indices
from .base import Bytes, Codec, checked, expect


class Sparse(Codec):
    """Send the coordinates that choose() takes, unscaled.

    On the wire: header, indices in the cheapest of several codings (index_coding.py), values.
    """

    wire = {"value": None}
    chooses = True
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

    def where_nbytes(self, message: Rec) -> int:
        return indices.plan(message.index.cpu().numpy(), int(message.size)).nbytes

    def lengths(self, k: int, layout: Layout) -> dict[str, int]:
        return {"value": min(k, layout.d)}
