"""FedLC: logits calibrated by how often each label occurs at the client."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.hyper import NonNegative, hyper
from ..core.net import Net
from ..core.vector import Rec, Vec, rec
from .base import Batch, CrossEntropy, by_class, label_counts


def calibrated(z: Tensor, counts: Tensor, tau: float) -> Tensor:
    """z_c - tau n_c^(-1/4) for logits (B, C, ...) and counts n (C,), or of the first classes.

    A class that does not occur gets a constant so low that its probability and its gradient are
    zero; minus infinity would make NaN of a padded example's loss.

    >>> z = calibrated(torch.zeros(1, 3), torch.tensor([16.0, 1.0, 0.0]), tau=1.0)
    >>> z[:, :2], z.softmax(1)[0, 2]
    (tensor([[-0.5000, -1.0000]]), tensor(0.))
    """
    n = F.pad(counts, (0, z.shape[1] - counts.shape[0])).view(-1, *[1] * (z.ndim - 2))
    lowest = torch.finfo(z.dtype).min / 4
    return torch.where(n > 0, z - tau * n.clamp_min(1).pow(-0.25), lowest)


class FedLC(CrossEntropy):
    """FedLC (Zhang et al., ICML 2022): cross-entropy of z_c - tau n_c^(-1/4).

    n_c is the client's number of examples of class c. Classes that it does not have drop out of
    the softmax. Evaluation takes the raw logits.

    client: counts (n_c, one number per class)
    Differs from the paper: its denominator leaves out the true class; here, as in FedACG's code
    and in FedDecorr's, it is the stable cross-entropy of the shifted logits.
    Reference: https://arxiv.org/abs/2209.00189, https://github.com/geehokim/FedACG
    """

    tau: NonNegative = hyper(
        1.0, "strength of the calibration by class counts", "1 in FedACG's code, 0.1 in FedDecorr's"
    )

    def init(self, info: Rec) -> Rec:
        return rec(counts=label_counts(info, "FedLC"))

    def loss(self, net: Net, x: Vec, batch: Batch, ref: Vec, mem: Rec) -> Tensor:
        z = by_class(net(x, batch[0]), batch[1])
        return self.score(calibrated(z, mem.counts, self.tau), batch)
