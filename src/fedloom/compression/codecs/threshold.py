"""A hard threshold: values larger than tau are sent."""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.hyper import NonNegative, hyper
from ...core.layout import Layout
from ...core.vector import Vec
from .sparse import Sparse


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
