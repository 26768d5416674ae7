"""FedDecorr: the features of a batch should not be correlated."""

from __future__ import annotations

from torch import Tensor

from ..core.hyper import NonNegative, hyper
from ..core.net import Net
from ..core.vector import Rec, Vec
from .base import Batch, CrossEntropy

EPS = 1e-8  # added to each variance, as in the authors' code


def decorrelation(h: Tensor) -> Tensor:
    """Mean over i != j of (Z^T Z)_ij^2, over B, Z the standardised features (B, F) -> scalar.

    It is ((B - 1)^2 / B) times the mean squared correlation; 0 for one example or one feature.

    >>> import torch
    >>> decorrelation(torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64))
    tensor(0.5000, dtype=torch.float64)
    """
    n, f = h.shape
    centred = h - h.mean(0)
    z = centred / (EPS + centred.square().sum(0) / max(n - 1, 1)).sqrt()
    # Z Z^T and Z^T Z have the same sum of squares; the smaller one is computed
    gram = z @ z.T if n < f else z.T @ z
    off_diagonal = gram.square().sum() - z.square().sum(0).square().sum()
    return off_diagonal / (max(f * (f - 1), 1) * n)


class FedDecorr(CrossEntropy):
    """FedDecorr (Shi et al., ICLR 2023): CE + beta l_dec, so that features do not collapse.

    l_dec = mean over i != j of (Z^T Z)_ij^2 over the batch's size B; Z (B, F) what the last block
    gets, minus its mean over the batch, divided by sqrt(1e-8 + unbiased variance). Gradients flow
    through mean and variance. It is the loss of a whole batch: none is padded, and the term grows
    with B.

    client: -
    Differs from the paper: ||K||_F^2 / F^2 there, with the diagonal and without the factor
    (B - 1)^2 / B; here as in the authors' code, with FedACG's weight 0.01 (theirs is 0.1).
    Reference: https://github.com/bytedance/FedDecorr
    """

    beta: NonNegative = hyper(
        0.01, "weight of the decorrelation", "0.01 in FedACG's code, 0.1 in the authors'"
    )

    def check(self, net: Net, inputs: Tensor) -> None:
        """Raise CompositionError if the net's blocks cannot give features."""
        net.check_blocks(self.name, inputs, trained=True)

    def loss(self, net: Net, x: Vec, batch: Batch, ref: Vec, mem: Rec) -> Tensor:
        net.need_blocks(self.name, trained=True)
        h, z = net.both(x, batch[0])
        return self.mean_score(z, batch) + self.beta * decorrelation(h)
