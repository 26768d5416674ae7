"""The specification's three client updates of six values, and what a link makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedloom import FedAvg
from fedloom.compression.codecs import Codec
from fedloom.compression.error_feedback import Residual
from fedloom.compression.link import FieldCodec, Link
from fedloom.core.layout import Layout
from fedloom.core.vector import rec
from fedloom.submodels import whole

G = torch.tensor(
    [
        [0.5, -1.2, 0.3, 0.05, -0.7, 0.9],
        [-0.4, 0.1, 0.35, -0.05, 0.6, 0.2],
        [0.25, 0.15, -0.55, 0.45, -0.1, -0.3],
    ],
    dtype=torch.float64,
)
SIX = Layout(("x",), ((6,),))
RESIDUAL = Residual()


def near(found: Tensor, expected: Any, atol: float = 1e-15) -> None:
    """Assert that a tensor is as expected, to so much in each value."""
    expected = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


def link_of(codec: Codec, feedback: Any) -> Link:
    """FedAvg's link with this codec and error feedback."""
    return Link({"delta": FieldCodec(codec, feedback)}).settled(FedAvg())


def rounds(
    codec: Codec,
    feedback: Any = RESIDUAL,
    updates: Sequence[Tensor] | Tensor = G,
    layout: Layout = SIX,
) -> tuple[Tensor, Tensor]:
    """One client's updates, one after the other -> what the server read of each, its residuals."""
    link = link_of(codec, feedback)
    memory, read, kept = link.init(torch.zeros_like(updates[0]), layout, 0), [], []
    for t, g in enumerate(updates):
        up, _, memory = link.deliver(rec(delta=g, weight=1.0), memory, whole(layout), 0, t, 0)
        read.append(up.delta)
        kept.append(memory.delta.e)
    return torch.stack(read), torch.stack(kept)
