"""Rules of views that break their contract, one fault each."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from fedloom.core.layout import Layout
from fedloom.core.vector import rec
from fedloom.engines.author_rules import ARGUMENTS, REPEAT
from fedloom.submodels import FIARSE, HeteroFL, SubModel, behind_mask, whole
from fedloom.submodels.base import check_capacity

from .algorithms import VECTORISED

TURNS = itertools.count(1)


class _Half(SubModel):
    """The first share of the coordinates; the broken ones change one thing."""

    fixed = True

    def indices(self, m: int, d: int) -> Tensor:
        return torch.arange(m)

    def view(self, x, net, capacity, round):
        check_capacity(self, capacity)
        if capacity == 1:
            return whole(net.layout)
        d = net.layout.d
        return behind_mask(self.indices(max(1, int(capacity * d)), d), net.layout)


class Unsorted(_Half):
    def view(self, x, net, capacity, round):
        view = super().view(x, net, capacity, round)
        return view if view.held is None else view._replace(held=view.held.flip(0))


class TwiceHeld(_Half):
    def indices(self, m, d):
        return torch.arange(m) // 2


class Outside(_Half):
    def view(self, x, net, capacity, round):
        view = super().view(x, net, capacity, round)
        return view if view.held is None else view._replace(held=view.held + net.layout.d)


class HoldsNothing(_Half):
    def indices(self, m, d):
        return torch.arange(0)


class Bools(_Half):
    def view(self, x, net, capacity, round):
        view = super().view(x, net, capacity, round)
        return view if view.held is None else view._replace(held=view.held.int())


class OtherLayout(_Half):
    def view(self, x, net, capacity, round):
        return super().view(x, net, capacity, round)._replace(layout=Layout(("x",), ((3,),)))


class SaysItCuts(_Half):
    cuts = True


class SwapsNet(HeteroFL):
    def view(self, x, net, capacity, round):
        view = super().view(x, net, capacity, round)
        return view if view.net is None else view._replace(net=net)


class AlwaysMasks(_Half):
    def view(self, x, net, capacity, round):
        check_capacity(self, capacity)
        return behind_mask(torch.arange(max(1, int(capacity * net.layout.d))), net.layout)


class TellsNothing(FIARSE):
    def told(self, view):
        return rec()


class LooksAtX(_Half):
    """The largest coordinates of the server's model, which a client takes for the first one."""

    fixed = False

    def view(self, x, net, capacity, round):
        check_capacity(self, capacity)
        if capacity == 1:
            return whole(net.layout)
        size = (net.init() if x is None else x).abs()
        held = size.topk(max(1, int(capacity * net.layout.d))).indices
        return behind_mask(held.sort().values, net.layout)


class FixedByOrder(LooksAtX):
    fixed = True


class Rolls(_Half):
    def view(self, x, net, capacity, round):
        view = super().view(x, net, capacity, round)
        if view.held is None:
            return view
        return behind_mask(((view.held + round) % net.layout.d).sort().values, net.layout)


class CoversAll(_Half):
    def covered(self, delta):
        return torch.ones(147)


class CoversTwice(_Half):
    def covered(self, delta):
        return 2 * torch.ones_like(delta)


class LongGradient(FIARSE):
    def grad(self, grad, x, fit):
        return torch.cat([grad(x), x])


class SortsX(FIARSE):
    def view(self, x, net, capacity, round):
        if x is not None:
            x.abs_()
        return super().view(x, net, capacity, round)


class Lottery(FIARSE):
    def view(self, x, net, capacity, round):
        return super().view(None if x is None else torch.randn_like(x), net, capacity, round)


class GrowingTold(_Half):
    def told(self, view):
        return rec() if view.held is None else rec(note=torch.zeros(next(TURNS)))


class GradBranches(FIARSE):
    def grad(self, grad, x, fit):
        return grad(x) if float(x.abs().max()) > 1 else 0.5 * grad(x)


class NoView(SubModel):
    def view(self, x, net, capacity, round):
        return torch.arange(3)


VIEWS = (
    (Unsorted, "held coordinates", "indices must rise"),
    (TwiceHeld, "held coordinates", "has 0 twice"),
    (Outside, "held coordinates", "the model has coordinates 0 to 146"),
    (HoldsNothing, "held coordinates", "is empty"),
    (Bools, "held coordinates", "it must be a tensor .m,. of int64"),
    (OtherLayout, "held coordinates", "a layout of 3 coordinates"),
    (NoView, "held coordinates", "must return a View, got Tensor"),
    (SaysItCuts, "smaller network", "cuts = True, but 0 of 4 views"),
    (SwapsNet, "smaller network", "the smaller net has 147 parameters and the client holds"),
    (AlwaysMasks, "capacity 1 is everything", r"must be whole\(net.layout\)"),
    (TellsNothing, "made again from what is told", r"must be in told\(\)"),
    (LooksAtX, "made again from what is told", "the client makes another view.* held differs"),
    (FixedByOrder, "fixed", "fixed = True, but held differs"),
    (Rolls, "fixed", "fixed = True, but held differs in another round"),
    (CoversAll, "gradient and coverage", r"covered\(\) gives torch.float32 \[147\]"),
    (CoversTwice, "gradient and coverage", "must be 1 where an answer counts"),
    (LongGradient, "gradient and coverage", r"grad\(\) gives torch.float32"),
    (SortsX, ARGUMENTS, r"view\(\) changes x in place"),
    (Lottery, REPEAT, r"view\(\), called twice"),
    (GrowingTold, "bill is the messages", "differs from client to client or from call to call"),
    (GradBranches, VECTORISED, "branches on a tensor's value"),
)
