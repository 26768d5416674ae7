"""FjORD's loss: the narrower part of a step learns from all that the client holds."""

from __future__ import annotations

from torch import Tensor

from ..core.hyper import Positive, Share, hyper
from ..core.net import Net
from ..core.vector import Rec, Vec
from .base import Batch, CrossEntropy, Needs, by_class, divergence


class OrderedDistillation(CrossEntropy):
    """FjORD's self-distillation (Horvath et al., NeurIPS 2021, section 3.2).

    L = CE(z, y) + (1 - alpha) CE(z_p, y) + alpha T^2 KL(softmax(z / T) || softmax(z_p / T)), with z
    of all that the client holds, which gets no gradient from KL, and z_p of the narrower part that
    its step has drawn. With alpha = T = 1, which the paper found best, KL has the gradient of the
    cross-entropy against softmax(z) in the released code. Goes with submodel = fjord.

    client: -
    The paper prints no T^2; at its T = 1 there is no difference.
    Reference: https://github.com/adap/flower/tree/main/baselines/fjord
    """

    needs = Needs.DRAWN_PARTS

    alpha: Share = hyper(1.0, "weight of the distillation", "FjORD, section 4: 1 is best")
    tau: Positive = hyper(1.0, "temperature", "FjORD, section 4: 1 is best")

    def loss(self, net: Net, x: Vec, batch: Batch, ref: Vec, mem: Rec) -> Tensor:
        inputs, targets = batch
        z, z_p = (by_class(v, targets) for v in (net.full(x, inputs), net(x, inputs)))
        log_q = (z.detach() / self.tau).log_softmax(1)
        log_p = (z_p / self.tau).log_softmax(1)
        kl = self.tau**2 * divergence(log_q, log_p, self.token_mask(targets))
        part = self.score(z_p, batch)
        return self.score(z, batch) + (1 - self.alpha) * part + self.alpha * kl
