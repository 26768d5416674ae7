"""Cox's partial likelihood, for times until an event that some examples were not watched until."""

from __future__ import annotations

from torch import Tensor

from ..core.net import Net
from ..core.vector import Rec, Vec
from ..errors import DataError
from .base import Batch, Needs, Objective


class Cox(Objective):
    """The negative log partial likelihood (Cox, 1972) of a batch, its mean over all examples.

    The model's output s (B,) or (B, 1) is the log of the risk; targets (B, 2) are the time and
    whether the event was seen then (1) or not (0, censored). In the order of falling times, l_i =
    event_i (log sum of exp(s_j) over j up to i, less s_i). Ties in time keep the order of the batch
    and have no correction, as in FLamby. A batch of one example has loss 0.
    Reference: https://doi.org/10.1111/j.2517-6161.1972.tb00899.x
    """

    needs = Needs.SURVIVAL

    def loss(self, net: Net, x: Vec, batch: Batch, ref: Vec, mem: Rec) -> Tensor:
        return self.score(net(x, batch[0]), batch)

    def score(self, outputs: Tensor, batch: Batch) -> Tensor:
        times, events = columns(outputs, batch[1])
        order = times.sort(descending=True, stable=True).indices
        s = outputs.reshape(-1)[order]
        return (events[order] * (s.logcumsumexp(0) - s)).mean()


def columns(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Targets (n, 2) -> times (n,) and events (n,), for outputs of one value each. Raises
    DataError.

    >>> import torch
    >>> columns(torch.zeros(2, 1), torch.tensor([[5.0, 1.0], [7.0, 0.0]]))
    (tensor([5., 7.]), tensor([1., 0.]))
    """
    if targets.ndim != 2 or targets.shape[1] != 2 or outputs.numel() != len(targets):
        raise DataError(
            f"survival needs targets of shape [n, 2], time and event, and one output of the model; "
            f"got {list(targets.shape)} and {list(outputs.shape)}; give both columns as targets, "
            "and a model with classes=1"
        )
    return targets[:, 0], targets[:, 1]
