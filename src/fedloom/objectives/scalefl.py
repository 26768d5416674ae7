"""ScaleFL's loss: all exits learn the labels, and the earlier ones also from the last one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..core.hyper import NonNegative, NonNegativeInt, Positive, hyper
from ..core.net import Net, logits_of
from ..core.vector import Rec, Vec, rec
from ..errors import CompositionError
from .base import Batch, CrossEntropy, Needs, by_class, example_mean


class SelfDistillation(CrossEntropy):
    """ScaleFL's loss (Ilhan, Su and Liu, CVPR 2023, Eq. 4) over the exits 1, ..., h of a net.

    L = [h CE(z_h, y) + sum_{j<h} j (CE(z_j, y) + beta T^2 KL(q || p_j))] / (h (h + 1) / 2), with
    q = softmax(z_h / T), p_j = softmax(z_j / T), z_h the deepest exit of the client's net, which is
    the teacher and gets no gradient from KL. One exit alone: its cross-entropy. Needs a model with
    exits.

    after: the round from which KL counts. code: as in the released code, KL is also divided by the
    number of classes, and the teacher gets a gradient. There beta is 0 by default, and KL counts
    after a quarter of the T rounds only: after = floor(T / 4) + 1, so 201 of 800.

    client: on (one number, whether KL counts in this round; nothing if it always does)
    Reference: https://github.com/git-disl/scale-fl
    """

    needs = Needs.EXITS

    beta: NonNegative = hyper(
        0.05, "weight of the distillation", "0.05 in ScaleFL's README for texts; 0 in its code"
    )
    tau: Positive = hyper(3.0, "temperature", "3 in ScaleFL's code")
    after: NonNegativeInt = hyper(
        0, "round from which it distils", "floor(T / 4) + 1 of T rounds in ScaleFL's code"
    )
    code: bool = hyper(False, "scale the terms as the authors' code does", "ScaleFL's code")

    def check(self, net: Net, inputs: Any) -> None:
        """Raise CompositionError if the model has one exit only."""
        if not getattr(net.module, "exits", ()):
            raise CompositionError(
                f"self_distillation and {type(net.module).__name__}: the model has one exit; take "
                "model.exits = true where a model has it, or build a fedloom.models.MultiExit"
            )

    def init(self, info: Rec) -> Rec:
        return rec(on=info.counts.new_zeros(())) if self.after else rec()

    def begin(self, mem: Rec, info: Rec) -> Rec:
        if not self.after:
            return mem
        return mem._replace(on=torch.full_like(mem.on, info.round >= self.after))

    def loss(self, net: Net, x: Vec, batch: Batch, ref: Vec, mem: Rec) -> Tensor:
        answers, targets = net.raw(x, batch[0]), batch[1]
        z = by_class(logits_of(answers), targets)
        earlier = getattr(answers, "earlier", ())
        h, total = len(earlier) + 1, self.score(z, batch)
        teacher = z if self.code else z.detach()
        log_q, total = (teacher / self.tau).log_softmax(1), h * total
        beta = self.beta * mem.on if self.after else self.beta
        for j, out in enumerate(earlier, start=1):
            z_j = by_class(out, targets)
            log_p = (z_j / self.tau).log_softmax(1)
            each = (log_q.exp() * (log_q - log_p)).sum(1)
            kl = example_mean(each / z.shape[1] if self.code else each, self.token_mask(targets))
            total = total + j * (self.score(z_j, batch) + beta * self.tau**2 * kl)
        return total / (h * (h + 1) / 2)
