"""MOON: features stay close to the received model's and away from the last local model's."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.hyper import NonNegative, Positive, hyper
from ..core.net import Net
from ..core.vector import Rec, Vec, rec
from .base import Batch, CrossEntropy


def contrast(h: Tensor, h_ref: Tensor, h_prev: Tensor, tau: float) -> Tensor:
    """-log(e^(cos(h, h_ref)/tau) / (e^(cos(h, h_ref)/tau) + e^(cos(h, h_prev)/tau))): (B, F) thrice
    -> (B,). Source: Li, He & Song, CVPR 2021, equation 3.

    >>> h = torch.tensor([[1.0, 0.0]])
    >>> contrast(h, h, h, tau=0.5)
    tensor([0.6931])
    """
    return F.softplus((F.cosine_similarity(h, h_prev) - F.cosine_similarity(h, h_ref)) / tau)


class MOON(CrossEntropy):
    """MOON (Li, He & Song, CVPR 2021): CE + mu l_con, a contrast of three models' features.

    l_con = -log(e^(cos(h, h_ref)/tau) / (e^(cos(h, h_ref)/tau) + e^(cos(h, h_prev)/tau))), h what
    the last block gets under x, under the received model and under this client's previous one.

    client: prev (the client's last local model), seen (1 once there is one, else 0)
    Paper symbols: z -> h, w^t -> ref, w_i^(t-1) -> prev. The two other models run in evaluation
    mode, without gradient.
    Differs from the authors' code: no projection head (the features are the classifier's input);
    at a client's first participation the term is left out (theirs then contrasts with a random
    network), which has the gradient of prev = ref: zero.
    Reference: https://github.com/QinbinLi/MOON
    """

    mu: NonNegative = hyper(
        1.0,
        "weight of the contrastive term",
        "authors' code: {0.001, 0.01, 0.1, 1, 5, 10}, default 1",
    )
    tau: Positive = hyper(0.5, "temperature", "0.5 in Li et al.")

    def check(self, net: Net, inputs: Tensor) -> None:
        """Raise CompositionError if the net's blocks cannot give features."""
        net.check_blocks(self.name, inputs, trained=True)

    def init(self, info: Rec) -> Rec:
        return rec(prev=info.counts.new_zeros(info.d), seen=info.counts.new_zeros(()))

    def loss(self, net: Net, x: Vec, batch: Batch, ref: Vec, mem: Rec) -> Tensor:
        net.need_blocks(self.name, trained=True)
        h, z = net.both(x, batch[0])
        # ref, not zeros: any model is finite there, and 0 times its term is 0
        prev = torch.where(mem.seen > 0, mem.prev, ref)
        with torch.no_grad(), net.evaluating():
            h_ref, h_prev = (net.features(v, batch[0]) for v in (ref, prev))
        term: Tensor = mem.seen * contrast(h, h_ref, h_prev, self.tau)
        return self.score(z, batch) + self.mu * term

    def finish(self, x: Vec, ref: Vec, mem: Rec) -> Rec:
        return rec(prev=x, seen=torch.ones_like(mem.seen))
