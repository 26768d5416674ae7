"""FedNTD: distillation from the received model over the classes that are not the true one."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..core.hyper import NonNegative, Positive, hyper
from ..core.net import Net
from ..core.vector import Rec, Vec
from ..errors import SettingError
from .base import Batch, CrossEntropy, by_class, example_mean


def not_true(z: Tensor, z_ref: Tensor, y: Tensor, tau: float, mask: Tensor | None = None) -> Tensor:
    """KL(softmax(z_ref / tau) || softmax(z / tau)) over the classes other than y -> (B,).

    z, z_ref: logits (B, C), or (B, C, T) for sequences; y: labels (B,) or (B, T). mask
    (B, T): of the tokens that count.

    >>> z, z_ref = torch.tensor([[0.0, 0.0, 9.0]]), torch.tensor([[0.0, 0.0, -7.0]])
    >>> not_true(z, z_ref, torch.tensor([2]), tau=1.0)
    tensor([0.])
    """
    classes = torch.arange(z.shape[1], device=z.device).view(-1, *[1] * (z.ndim - 2))
    wrong = classes != y.unsqueeze(1)
    lowest = torch.finfo(z.dtype).min / 4  # with -inf one class alone would give NaN
    log_p, log_q = (torch.where(wrong, v / tau, lowest).log_softmax(1) for v in (z_ref, z))
    each = (log_p.exp() * torch.where(wrong, log_p - log_q, 0.0)).sum(1)
    return example_mean(each, mask)


class FedNTD(CrossEntropy):
    """FedNTD (Lee et al., NeurIPS 2022): CE and a divergence from the received model's logits.

    form "fedacg": (1 - beta) CE + beta NTD, as in FedACG's code and tables;
    form "official": CE + beta tau^2 NTD, as in the paper and its authors' code (beta = 1);
    NTD = KL(softmax(z_ref / tau) || softmax(z / tau)), the true class left out of both. The
    received model runs in evaluation mode, without gradient.

    client: -
    Differs from the authors' code by default: form "fedacg" with beta = 0.3, which also scales
    the cross-entropy to 0.7.
    Reference: https://github.com/Lee-Gihun/FedNTD
    """

    beta: NonNegative = hyper(
        0.3, "weight of the distillation", "0.3 in FedACG's code, 1 in the authors' (official)"
    )
    tau: Positive = hyper(1.0, "temperature", "1 in both")
    form: Literal["fedacg", "official"] = hyper("fedacg", "whose formula", "FedACG's code")

    def __post_init__(self) -> None:
        if self.form == "fedacg" and self.beta > 1:
            remedy = "for a larger weight take form 'official'"
            raise SettingError("beta", self.beta, "in [0, 1] with form 'fedacg'", remedy, "FedNTD")

    def loss(self, net: Net, x: Vec, batch: Batch, ref: Vec, mem: Rec) -> Tensor:
        z = by_class(net(x, batch[0]), batch[1])
        with torch.no_grad(), net.evaluating():
            z_ref = by_class(net(ref, batch[0]), batch[1])
        ce = self.score(z, batch)
        ntd = not_true(z, z_ref, batch[1], self.tau, self.token_mask(batch[1]))
        if self.form == "official":
            return ce + self.beta * self.tau**2 * ntd
        return (1 - self.beta) * ce + self.beta * ntd
