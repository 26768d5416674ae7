"""FedMLB: the first local blocks must work with the last received ones."""

from __future__ import annotations

from torch import Tensor

from ..core.hyper import NonNegative, Positive, hyper
from ..core.net import Net
from ..core.vector import Rec, Vec
from .base import Batch, CrossEntropy, by_class, divergence


class FedMLB(CrossEntropy):
    """FedMLB (Kim et al., ICML 2022): CE + the mean over hybrid paths of lam1 CE_b + lam2 KL_b.

    Hybrid path b = 1..n-1 runs the blocks 1..b with x and the others with the received model; its
    logits are z_b. CE_b = CE(z_b, y), KL_b = KL(softmax(z_b / tau) || softmax(z / tau)), z the
    logits of x alone. Gradients pass through the received blocks into the local ones.

    client: -
    What the paper describes as a teacher gets a gradient too, as in the authors' code;
    stop_gradient holds softmax(z_b / tau) fixed in KL_b, an ablation. The local part of a path is
    run once for all of them; received blocks run in evaluation mode (dropout off, the statistics
    of batch norm left alone), and their parameters are constants. A model may have any number of
    blocks; the authors' ResNet-18 has six, hence their 1/5.
    Reference: https://github.com/jinkyu032/FedMLB
    """

    lam1: NonNegative = hyper(1.0, "weight of the paths' cross-entropy", "1 in their code")
    lam2: NonNegative = hyper(1.0, "weight of the paths' divergence", "1 in their code")
    tau: Positive = hyper(1.0, "temperature", "1 in their code")
    stop_gradient: bool = hyper(
        False, "no gradient through the hybrid paths in the divergence", "False in their code"
    )

    def check(self, net: Net, inputs: Tensor) -> None:
        """Raise CompositionError if the net cannot be run block by block."""
        net.check_blocks(self.name, inputs)

    def loss(self, net: Net, x: Vec, batch: Batch, ref: Vec, mem: Rec) -> Tensor:
        net.need_blocks(self.name)
        *hidden, z = net.stages(x, batch[0])
        z = by_class(z, batch[1])
        log_q, total = (z / self.tau).log_softmax(1), self.score(z, batch)
        with net.evaluating():
            for b, h in enumerate(hidden, start=1):
                z_b = by_class(net.path([ref] * (len(hidden) + 1 - b), h, start=b), batch[1])
                log_p = (z_b / self.tau).log_softmax(1)
                log_p = log_p.detach() if self.stop_gradient else log_p
                kl = divergence(log_p, log_q, self.token_mask(batch[1]))
                path = self.lam1 * self.score(z_b, batch) + self.lam2 * kl
                total = total + path / len(hidden)
        return total
