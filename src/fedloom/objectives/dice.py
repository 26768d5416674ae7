"""The Dice loss, for a class of each pixel."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.hyper import NonNegative, hyper
from .base import Batch, CrossEntropy, Needs, by_class


def overlap(p: Tensor, labels: Tensor, mask: Tensor | None, smooth: float) -> Tensor:
    """The soft Dice coefficient of probabilities (B, C, ...) and labels (B, ...) by class (B, C).
    mask (B, ...): of the labels that count.

    >>> p = torch.tensor([[[1.0, 0.5], [0.0, 0.5]]])  # of two pixels, the second undecided
    >>> overlap(p, torch.tensor([[0, 1]]), None, smooth=0.0)
    tensor([[0.8889, 0.8000]])
    """
    classes = torch.arange(p.shape[1], device=p.device).view(-1, *[1] * (p.ndim - 2))
    true = (classes == labels.unsqueeze(1)).to(p)
    if mask is not None:
        p, true = p * mask.unsqueeze(1), true * mask.unsqueeze(1)
    p, true = (v.reshape(*v.shape[:2], -1) for v in (p, true))  # one label per example is (B,)
    both, sizes = (p * true).sum(2), (p.square() + true).sum(2)  # true^2 is true
    return (2 * both + smooth) / (sizes + smooth).clamp_min(torch.finfo(p.dtype).tiny)


class Dice(CrossEntropy):
    """The Dice loss of an example (Milletari, Navab and Ahmadi, V-Net, 3DV 2016, section 3).

    1 - the mean over the classes c of (2 sum p_c g_c + s) / (sum p_c^2 + sum g_c^2 + s), with sums
    over the pixels of the example that count, p the softmax of the logits (B, C, H, W), g_c 1 where
    the pixel is of class c and else 0, and s = smooth. To this cross_entropy times the
    cross-entropy of a pixel is added, as in nnU-Net. ignore: see CrossEntropy; an example without
    a pixel that counts has the loss 0 if smooth > 0.

    client: -
    Differs from the paper: it has one class and no s, without which a class that the example lacks
    would have no gradient.
    Reference: https://arxiv.org/abs/1606.04797, https://doi.org/10.1038/s41592-020-01008-z
    """

    needs = Needs.PIXELS

    smooth: NonNegative = hyper(1.0, "added to both parts of the fraction", "1 in usual codes")
    cross_entropy: NonNegative = hyper(0.0, "weight of the cross-entropy added", "1 in nnU-Net")

    def score(self, outputs: Tensor, batch: Batch) -> Tensor:
        targets = batch[1]
        z = by_class(outputs, targets)
        lost = 1 - overlap(z.softmax(1), targets, self.token_mask(targets), self.smooth).mean(1)
        if not self.cross_entropy:
            return lost
        return lost + self.cross_entropy * super().score(z, batch)
