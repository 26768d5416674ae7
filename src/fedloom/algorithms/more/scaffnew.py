"""Scaffnew: ProxSkip, whose control variates learn from what each average changed."""

from __future__ import annotations

import torch

from ...algorithm import ACCUMULATED, Grad, Job, LocalSGD, Trait
from ...core.vector import Rec, Vec, rec, zeros
from ..base import took_part_last


class Scaffnew(LocalSGD):
    """Scaffnew (Mishchenko et al., ICML 2022, Algorithm 2): ProxSkip, step along g - h_i.

    server: x        client: h (h_i), x (its last point), lr_sum (rates of its last round)
    up: delta
    Paper symbols: gamma -> job.lr, p -> 1 / K_i, so that p / gamma -> 1 / lr_sum.
    Differs from the paper: a client averages after K_i steps, not with probability p after each.
    h_i moves by (x - x_i) / lr_sum (line 10) at the client's next round, where it learns the mean;
    if it missed a round, x is no longer that mean, and h_i stays. If nobody ever misses one it
    minimises sum p_i K_i f_i, p_i as weighting says; the paper's K_i are equal.
    Reference: https://arxiv.org/abs/2202.09357
    """

    # the h_i learn from x_i and the mean: they add up to 0 only if that is the mean of the x_i
    compressible_up = {"delta": ACCUMULATED}
    traits = frozenset({Trait.WHOLE_MODEL, Trait.READS_THE_MOVE, Trait.ONE_BROADCAST})

    def client_init(self, x: Vec) -> Rec:
        return rec(h=zeros(x), x=x, lr_sum=x.new_ones(()))

    def start(self, msg: Rec, mem: Rec, job: Job) -> tuple[Vec, Rec]:
        change = (msg.x - mem.x) / mem.lr_sum
        recent = took_part_last(job, msg.x)
        return msg.x, rec(h=torch.where(recent, mem.h + change, mem.h))  # line 10

    def direction(
        self, x: Vec, loc: Rec, msg: Rec, mem: Rec, grad: Grad, job: Job
    ) -> tuple[Vec, Rec]:
        return grad(x) - loc.h, loc  # line 5

    def finish(self, x: Vec, loc: Rec, msg: Rec, mem: Rec, job: Job) -> tuple[Rec, Rec]:
        up = rec(delta=x - msg.x, weight=job.weight)
        return up, rec(h=loc.h, x=x, lr_sum=zeros(mem.lr_sum) + job.lr_sum)
