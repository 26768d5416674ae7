"""Width slices that move from round to round, so that every channel is trained."""

from __future__ import annotations

import torch
from torch import Tensor

from .heterofl import HeteroFL


class FedRolex(HeteroFL):
    """FedRolex (Alam et al., NeurIPS 2022, Algorithm 1): a window of channels that rolls.

    In round j a client keeps the channels {(j + p) mod n : p = 0, ..., ceil(sqrt(capacity) n) - 1}
    of a hidden layer of n: HeteroFL's window, one channel further every round. In n rounds every
    channel is kept equally often. All clients of a round start at the same channel, so smaller
    windows lie in larger ones. With exact GroupNorm the window moves by whole groups.

    Differs from the paper: it rounds the width down. Differs from the released code: there the
    window moves to lower channels, the mirror image.
    Reference: https://github.com/AIoT-MLSys-Lab/FedRolex

    >>> FedRolex().chosen(5, 2, 4)
    tensor([0, 4])
    """

    fixed = False

    def chosen(self, units: int, keep: int, round: int) -> Tensor:
        return ((torch.arange(keep) + round) % units).sort().values
