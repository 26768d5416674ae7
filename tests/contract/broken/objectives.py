"""Objectives that break their contract, one fault each."""

from __future__ import annotations

import torch

from fedloom.core.vector import rec
from fedloom.engines.author_rules import ARGUMENTS, FIELDS, KEPT, REPEAT
from fedloom.objectives import CrossEntropy, LanguageModel, Objective

from .common import HISTORY, PARTS, VECTORISED


class PerLogit(CrossEntropy):
    mean = Objective.mean

    def loss(self, net, x, batch, ref, mem):
        return net(x, batch[0]).square()


class LooksAround(CrossEntropy):
    mean = Objective.mean

    def loss(self, net, x, batch, ref, mem):
        z = net(x, batch[0])
        return self.score(z - z.mean(0), batch)


class Fused(CrossEntropy):
    mean = CrossEntropy.mean

    def loss(self, net, x, batch, ref, mem):
        return super().loss(net, x, batch, ref, mem) + 0.1 * (x - ref).square().sum()


class Constant(CrossEntropy):
    mean = Objective.mean

    def loss(self, net, x, batch, ref, mem):
        return super().loss(net, x.detach(), batch, ref, mem)


class Infinite(CrossEntropy):
    mean = Objective.mean

    def loss(self, net, x, batch, ref, mem):
        return super().loss(net, x, batch, ref, mem) + (ref - ref + 0 * x).norm().sqrt()


class Forgets(CrossEntropy):
    def init(self, info):
        return rec(prev=info.counts.new_zeros(info.d))

    def finish(self, x, ref, mem):
        return rec()


class WritesBatch(CrossEntropy):
    mean = Objective.mean

    def loss(self, net, x, batch, ref, mem):
        batch[0].mul_(0.5)
        return super().loss(net, x, batch, ref, mem)


class Noisy(CrossEntropy):
    mean = Objective.mean

    def loss(self, net, x, batch, ref, mem):
        return super().loss(net, x, batch, ref, mem) * (1 + torch.rand(()))


class LossBranches(CrossEntropy):
    mean = Objective.mean

    def loss(self, net, x, batch, ref, mem):
        each = super().loss(net, x, batch, ref, mem)
        return each if each.mean() > 1 else 2 * each


class CountsCalls(CrossEntropy):
    mean = Objective.mean

    def loss(self, net, x, batch, ref, mem):
        HISTORY.append(1)
        return super().loss(net, x, batch, ref, mem)


class FixedLength(CrossEntropy):
    mean = Objective.mean

    def loss(self, net, x, batch, ref, mem):
        return super().loss(net, x, batch, ref, mem) + (x * torch.ones(147).to(x)).sum()


class NoNumber(CrossEntropy):
    mean = Objective.mean

    def loss(self, net, x, batch, ref, mem):
        return 0.5


class LosesPlace(LanguageModel):
    """Of a text that is read on."""

    def begin(self, mem, info):
        new = super().begin(mem, info)
        return rec(h=new.h, c=new.c)


class WritesState(LanguageModel):
    def carry(self, net, x, batch, mem):
        new = super().carry(net, x, batch, mem)
        mem.h.copy_(new.h)
        return new


class AsksWhetherItEnds(LanguageModel):
    def carry(self, net, x, batch, mem):
        new = super().carry(net, x, batch, mem)
        return new._replace(at=mem.at * 0) if mem.at + 1 >= mem.batches else new


OBJECTIVES = (
    (PerLogit, "shape of the loss", r"loss\(\) gives shape \[4, 3\] for a batch of 4"),
    (NoNumber, "shape of the loss", "gives a float, not a tensor"),
    (LooksAround, "each example alone", "return one number for the batch"),
    (Fused, "mean() is the mean of loss()", "`mean = Objective.mean`"),
    (Constant, "runs", "does not depend on x"),
    (Infinite, "runs", "not finite|was nan|was inf"),
    (Forgets, FIELDS, "with the fields nothing, but it had prev"),
    (WritesBatch, ARGUMENTS, r"loss\(\) changes batch.0 in place"),
    (Noisy, REPEAT, r"loss\(\), called twice"),
    (LossBranches, VECTORISED, "branches on a tensor's value"),
    (CountsCalls, KEPT, "outside of its records .the global HISTORY."),
    (FixedLength, PARTS, "the whole model"),
    (LosesPlace, FIELDS, r"begin\(\) gives .* with the fields h, c, but it had h, c, at"),
    (WritesState, ARGUMENTS, r"carry\(\) changes mem.h in place"),
    (AsksWhetherItEnds, VECTORISED, "branches on a tensor's value"),
)
