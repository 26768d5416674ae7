"""What several papers' files share."""

from __future__ import annotations

import torch

from ..algorithm import Job
from ..core.vector import Rec, Vec


def own_previous(msg: Rec, mem: Rec, job: Job) -> Vec:
    """The point of the client's last gradient if it took part in the last round; else the new x.

    The recursions over gradients (STEM, FAFED) have everybody take part; with x as its own previous
    point, a returning client's first correction is zero. x (d,), mem.prev (d,).
    """
    there = torch.as_tensor(job.last == job.round - 1, device=msg.x.device)
    return torch.where(there, mem.prev, msg.x)
