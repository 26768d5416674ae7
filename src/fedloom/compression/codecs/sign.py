"""signSGD with norm: every sign, and one magnitude."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ...core.hyper import hyper
from ...core.layout import Layout
from ...core.vector import Rec, Vec, rec
from .base import Codec, checked, expect
from .buckets import work


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
