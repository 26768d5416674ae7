"""HeteroFL's loss: a client's cross-entropy without the classes that it does not have."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.hyper import hyper
from ..core.net import Net
from ..core.vector import Rec, Vec, rec
from .base import Batch, CrossEntropy, by_class, label_counts


def masked(z: Tensor, counts: Tensor, absent: str) -> Tensor:
    """Logits (B, C, ...) in which the classes that do not occur in counts n (C,) are constants: 0,
    or so low that their probability is zero ("out").

    >>> masked(torch.tensor([[1.0, 2.0]]), torch.tensor([3.0, 0.0]), "zero")
    tensor([[1., 0.]])
    """
    n = F.pad(counts, (0, z.shape[1] - counts.shape[0])).view(-1, *[1] * (z.ndim - 2))
    return torch.where(n > 0, z, 0.0 if absent == "zero" else torch.finfo(z.dtype).min / 4)


class MaskedCrossEntropy(CrossEntropy):
    """HeteroFL's masked cross-entropy (Diao, Ding and Tarokh, ICLR 2021, section 3.3).

    Logits of classes that the client does not have are constants, so that their rows of the
    classifier get no gradient. absent "zero": they are 0, as in the released code, so that such a
    class still takes e^0 of the softmax; "out": they take nothing. Evaluation takes the raw logits.

    client: counts (n_c, one number per class)
    Differs from the released code: there the accuracy on a client's own test set has masked logits
    too, which helps this method alone.
    Reference: https://github.com/diaoenmao/HeteroFL
    """

    absent: Literal["zero", "out"] = hyper(
        "zero", "what becomes of the logits of absent classes", "zero in HeteroFL's code"
    )

    def init(self, info: Rec) -> Rec:
        return rec(counts=label_counts(info, "masked_cross_entropy"))

    def loss(self, net: Net, x: Vec, batch: Batch, ref: Vec, mem: Rec) -> Tensor:
        z = by_class(net(x, batch[0]), batch[1])
        return self.score(masked(z, mem.counts, self.absent), batch)
