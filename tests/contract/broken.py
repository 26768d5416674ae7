"""Parts that break their contract, one fault each: (part, check that must fail, words of why)."""

from __future__ import annotations

import itertools
import os

import torch
from torch import Tensor

from fedloom import LocalSGD
from fedloom.algorithm import hyper
from fedloom.checks.state import KEPT
from fedloom.checks.watch import ARGUMENTS, FIELDS, REPEAT, SHAPES
from fedloom.codecs import QSGD, Dense, RandomDropping, TopK
from fedloom.errors import WireError
from fedloom.layout import Layout
from fedloom.objectives import CrossEntropy, Objective
from fedloom.vector import rec, zeros
from fedloom.views import Importance, Rule, Width, behind_mask, whole
from fedloom.views.base import check_capacity

VECTORISED = "engine vectorised:3"
OPTIONS = "every option does something"
PARTS = "clients with a part of the model"
HISTORY = []
ROUNDS = {}
TURNS = itertools.count(1)


# ------------------------------------------------------------------------------------- algorithms
class Branches(LocalSGD):
    def direction(self, x, loc, msg, mem, grad, job):
        g = grad(x)
        return (g / g.norm() if g.norm() > 1 else g), loc


class Items(LocalSGD):
    def direction(self, x, loc, msg, mem, grad, job):
        g = grad(x)
        return g * min(1.0, 1 / float(g.norm())), loc


class WritesX(LocalSGD):
    def direction(self, x, loc, msg, mem, grad, job):
        g = grad(x)
        x.add_(g, alpha=-0.01)
        return g, loc


class WritesMemory(LocalSGD):
    def client_init(self, x):
        return rec(c=zeros(x))

    def finish(self, x, loc, msg, mem, job):
        mem.c.add_(x - msg.x)
        return rec(delta=x - msg.x, weight=job.weight), mem


class AssignsToSelf(LocalSGD):
    def finish(self, x, loc, msg, mem, job):
        self.last = x
        return rec(delta=x - msg.x, weight=job.weight), mem


class KeepsOnItself(LocalSGD):
    def finish(self, x, loc, msg, mem, job):
        object.__setattr__(self, "last", x)
        return rec(delta=x - msg.x, weight=job.weight), mem


class KeepsInGlobals(LocalSGD):
    def finish(self, x, loc, msg, mem, job):
        HISTORY.append(float(job.round))
        return rec(delta=x - msg.x, weight=job.weight), mem


class KeepsOnClass(LocalSGD):
    seen = {}  # noqa: RUF012 # the fault that is looked for

    def finish(self, x, loc, msg, mem, job):
        self.seen[job.weight] = x
        return rec(delta=x - msg.x, weight=job.weight), mem


class Draws(LocalSGD):
    def start(self, msg, mem, job):
        return msg.x + 0.01 * torch.randn_like(msg.x), rec()


class DrawsInSteps(LocalSGD):
    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x) + 0.01 * torch.randn_like(x), loc


class Shorter(LocalSGD):
    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x)[:1], loc


class Doubles(LocalSGD):
    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x).double() if x.dtype == torch.float32 else grad(x).float(), loc


class LongAnswer(LocalSGD):
    def finish(self, x, loc, msg, mem, job):
        return rec(delta=torch.cat([x - msg.x, x[:1]]), weight=job.weight), mem


class NoDelta(LocalSGD):
    def finish(self, x, loc, msg, mem, job):
        return rec(move=x - msg.x, weight=job.weight), mem


class NoPair(LocalSGD):
    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x)


class OtherMemory(LocalSGD):
    def finish(self, x, loc, msg, mem, job):
        return rec(delta=x - msg.x, weight=job.weight), rec(last=x)


class OtherServer(LocalSGD):
    def server_step(self, srv, up, rnd):
        return rec(x=srv.x + up.delta, m=up.delta)

    def broadcast(self, srv):
        return rec(x=srv.x)


class Undeclared(LocalSGD):
    def uniform(self, up, job):
        return rec(h=up.delta)


class NotSent(LocalSGD):
    linear = ("delta", "dc")


class NotBroadcast(LocalSGD):
    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x) + msg.c, loc


class HoldsAList(LocalSGD):
    def client_init(self, x):
        return rec(past=[])


class AsksEngine(LocalSGD):
    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x) * (1 if isinstance(job.step, float) else 2), loc


class AsksProcess(LocalSGD):
    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x) * (1 + os.getpid() % 97), loc


class CountsRounds(LocalSGD):
    """Right in a run that is never stopped: the count begins again with every run."""

    def server_init(self, x, up):
        ROUNDS["done"] = 0
        return rec(x=x)

    def server_step(self, srv, up, rnd):
        ROUNDS["done"] = rnd.round
        return rec(x=srv.x + up.delta)

    def broadcast(self, srv):
        return rec(x=srv.x * (1 + 0.01 * ROUNDS["done"]))


class Idle(LocalSGD):
    beta: float = hyper(0.5, low=0, high=1, source="ours")


class WholeModel(LocalSGD):
    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x) + torch.full((147,), 0.01, dtype=x.dtype), loc


class Divides(LocalSGD):
    def server_step(self, srv, up, rnd):
        return rec(x=srv.x + up.delta / (3 - rnd.round))


class OtherArguments(LocalSGD):
    def start(self, message, memory, job):
        return message.x, rec()


class BareName(LocalSGD):
    linear = "delta"


class ProbesInSecret(LocalSGD):
    def probe(self, x, grad):
        return rec(g=grad(x))


ALGORITHMS = (
    (Branches, VECTORISED, "branches on a tensor's value"),
    (Branches, VECTORISED, r"line \d+, in direction\(\) \(`return \(g / g.norm\(\)"),
    (Items, VECTORISED, "branches on a tensor's value"),
    (WritesX, ARGUMENTS, r"direction\(\) changes its argument x"),
    (WritesMemory, ARGUMENTS, r"finish\(\) changes its argument mem \(its 'c'\)"),
    (AssignsToSelf, "runs", "assigns to self"),
    (KeepsOnItself, KEPT, "self.last changed"),
    (KeepsInGlobals, KEPT, "the global HISTORY changed"),
    (KeepsOnClass, KEPT, "KeepsOnClass.seen changed"),
    (Draws, REPEAT, r"start\(\), called twice"),
    (Draws, VECTORISED, "draws random numbers of its own"),
    (DrawsInSteps, VECTORISED, "draws random numbers of its own"),
    (Shorter, SHAPES, r"direction\(\) gives d with the shape \[1\]; it must be \[147\]"),
    (Doubles, SHAPES, r"gives d as float64, but the model is float32"),
    (LongAnswer, SHAPES, r"finish\(\) gives delta with the shape \[148\]"),
    (NoDelta, SHAPES, r"finish\(\) must return a record with delta"),
    (NoPair, SHAPES, r"direction\(\) must return a pair \(d, loc\).*got Tensor"),
    (OtherMemory, FIELDS, "a memory with the fields last, but it began with none"),
    (OtherServer, FIELDS, "a server with the fields x, m, but it began with x"),
    (Undeclared, FIELDS, r"returns the fields \('h',\), but the class declares means = \(\)"),
    (NotSent, FIELDS, r"linear = \('delta', 'dc'\) names dc"),
    (NotBroadcast, "runs", "reads a field that the record does not have"),
    (HoldsAList, "runs", "a record holds a list"),
    (AsksEngine, VECTORISED, "do not agree"),
    (CountsRounds, "stop and resume", "is not the run that was never stopped"),
    (Idle, OPTIONS, "other values than beta = 0.5 change neither"),
    (WholeModel, PARTS, "declare partial = False"),
    (Divides, "finite", "not finite"),
    (OtherArguments, "methods and declarations", r"start\(self, message, memory, job\) must take"),
    (BareName, "methods and declarations", "linear must be a tuple of field names"),
    (ProbesInSecret, "methods and declarations", "probes = True"),
)


# ------------------------------------------------------------------------------------- objectives
class PerLogit(CrossEntropy):
    mean = Objective.mean

    def loss(self, net, x, batch, ref, mem):
        return net(x, batch[0]).square()


class OneForAll(CrossEntropy):
    whole = True
    mean = Objective.mean


class LooksAround(CrossEntropy):
    mean = Objective.mean

    def loss(self, net, x, batch, ref, mem):
        z = net(x, batch[0])
        return self.score(z - z.mean(0), batch)


class Fused(CrossEntropy):
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


class NeverCarries(CrossEntropy):
    def carry(self, net, x, batch, mem):
        return mem


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


class IdleTerm(CrossEntropy):
    mu: float = hyper(0.1, low=0, source="ours")


class FixedLength(CrossEntropy):
    mean = Objective.mean

    def loss(self, net, x, batch, ref, mem):
        return super().loss(net, x, batch, ref, mem) + (x * torch.ones(147).to(x)).sum()


class NoNumber(CrossEntropy):
    mean = Objective.mean

    def loss(self, net, x, batch, ref, mem):
        return 0.5


OBJECTIVES = (
    (PerLogit, "shape of the loss", r"loss\(\) has the shape \[4, 3\] for a batch of 4"),
    (OneForAll, "shape of the loss", "declares whole = True"),
    (NoNumber, "shape of the loss", "must return a tensor, got float"),
    (LooksAround, "each example alone", "declare whole = True"),
    (Fused, "mean() is the mean of loss()", "`mean = Objective.mean`"),
    (Constant, "gradient", "does not depend on x"),
    (Infinite, "gradient", "not finite"),
    (Forgets, FIELDS, "with no field, but init.. began with prev"),
    (NeverCarries, FIELDS, "declares carries = True"),
    (WritesBatch, ARGUMENTS, r"loss\(\) changes its argument batch"),
    (Noisy, REPEAT, r"loss\(\), called twice"),
    (LossBranches, VECTORISED, "branches on a tensor's value"),
    (CountsCalls, KEPT, "the global HISTORY changed"),
    (IdleTerm, OPTIONS, "other values than mu = 0.1"),
    (FixedLength, PARTS, "the whole model"),
)


# ------------------------------------------------------------------------------------------ views
class _Half(Rule):
    """The first share of the coordinates; the broken ones change one thing."""

    fixed = True

    def indices(self, m: int, d: int) -> Tensor:
        return torch.arange(m)

    def view(self, x, net, capacity, rnd):
        check_capacity(self, capacity)
        if capacity == 1:
            return whole(net.layout)
        d = net.layout.d
        return behind_mask(self.indices(max(1, int(capacity * d)), d), net.layout)


class Unsorted(_Half):
    def view(self, x, net, capacity, rnd):
        view = super().view(x, net, capacity, rnd)
        return view if view.held is None else view._replace(held=view.held.flip(0))


class TwiceHeld(_Half):
    def indices(self, m, d):
        return torch.arange(m) // 2


class Outside(_Half):
    def view(self, x, net, capacity, rnd):
        view = super().view(x, net, capacity, rnd)
        return view if view.held is None else view._replace(held=view.held + net.layout.d)


class HoldsNothing(_Half):
    def indices(self, m, d):
        return torch.arange(0)


class Bools(_Half):
    def view(self, x, net, capacity, rnd):
        view = super().view(x, net, capacity, rnd)
        return view if view.held is None else view._replace(held=view.held.int())


class OtherLayout(_Half):
    def view(self, x, net, capacity, rnd):
        return super().view(x, net, capacity, rnd)._replace(layout=Layout(("x",), ((3,),)))


class SaysItCuts(_Half):
    cuts = True


class SwapsNet(Width):
    def view(self, x, net, capacity, rnd):
        view = super().view(x, net, capacity, rnd)
        return view if view.net is None else view._replace(net=net)


class AlwaysMasks(_Half):
    def view(self, x, net, capacity, rnd):
        check_capacity(self, capacity)
        return behind_mask(torch.arange(max(1, int(capacity * net.layout.d))), net.layout)


class TakesAnything(_Half):
    def view(self, x, net, capacity, rnd):
        return super().view(x, net, min(max(capacity, 0.1), 1.0), rnd)


class TellsNothing(Importance):
    def told(self, view):
        return rec()


class Rolls(_Half):
    def view(self, x, net, capacity, rnd):
        view = super().view(x, net, capacity, rnd)
        if view.held is None:
            return view
        return behind_mask(((view.held + rnd.round) % net.layout.d).sort().values, net.layout)


class CoversAll(_Half):
    def covered(self, delta):
        return torch.ones(147)


class CoversTwice(_Half):
    def covered(self, delta):
        return 2 * torch.ones_like(delta)


class LongGradient(Importance):
    def grad(self, grad, x, fit):
        return torch.cat([grad(x), x])


class SortsX(Importance):
    def view(self, x, net, capacity, rnd):
        if x is not None:
            x.abs_()
        return super().view(x, net, capacity, rnd)


class Lottery(Importance):
    def view(self, x, net, capacity, rnd):
        return super().view(None if x is None else torch.randn_like(x), net, capacity, rnd)


class GrowingTold(_Half):
    def told(self, view):
        return rec() if view.held is None else rec(note=torch.zeros(next(TURNS)))


class GradBranches(Importance):
    def grad(self, grad, x, fit):
        return grad(x) if float(x.abs().max()) > 1 else 0.5 * grad(x)


class NoView(Rule):
    def view(self, x, net, capacity, rnd):
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
    (TakesAnything, "capacities outside (0, 1]", r"capacity 0.0 must raise ConfigError"),
    (TellsNothing, "made again from what is told", r"must be in told\(\)"),
    (Rolls, "fixed", "fixed = True, but 0 differs in another round"),
    (CoversAll, "gradient and coverage", r"covered\(\) gives torch.float32 \[147\]"),
    (CoversTwice, "gradient and coverage", "must be 1 where an answer counts"),
    (LongGradient, "gradient and coverage", r"grad\(\) gives torch.float32"),
    (SortsX, ARGUMENTS, r"view\(\) changes its argument x"),
    (Lottery, REPEAT, r"view\(\), called twice"),
    (GrowingTold, "bill is the messages", r"told\(\) must give a record of tensors"),
    (GradBranches, VECTORISED, "branches on a tensor's value"),
)


# ----------------------------------------------------------------------------------------- codecs
class Miscounts(TopK):
    def nbytes(self, message):
        return super().nbytes(message) - 12


class SameCode(QSGD):
    code = 1


class NoSize(Dense):
    def encode(self, p, state, layout, draw):
        return rec(value=p.clone()), state


class NoState(Dense):
    def encode(self, p, state, layout, draw):
        return super().encode(p, state, layout, draw)[0]


class Rounds(Dense):
    def pack(self, message):
        return super().pack(message._replace(value=message.value.round()))


class Short(Dense):
    def decode(self, message, layout, dtype=None):
        return super().decode(message, layout, dtype)[:-1]


class OwnType(Dense):
    def decode(self, message, layout, dtype=None):
        return super().decode(message, layout, torch.float16)


class Careless(Dense):
    def unpack(self, raw, layout=None):
        try:
            return super().unpack(raw, layout)
        except WireError:
            return rec(size=torch.tensor([layout.d]), value=torch.zeros(layout.d))


class Crashes(Dense):
    def unpack(self, raw, layout=None):
        return super().unpack(raw[: 12 + 4 * raw[4]], None)


class ClaimsUnbiased(TopK):
    def omega(self, d):
        return 5.0

    def unfit(self, d):
        return ""


class ClaimsExact(RandomDropping):
    scaled: bool = True

    def omega(self, d):
        return 0.5


class Amplifies(RandomDropping):
    scaled: bool = True

    def omega(self, d):
        return None

    def unfit(self, d):
        return ""


class Scales(Dense):
    def encode(self, p, state, layout, draw):
        message, state = super().encode(p.mul_(1), state, layout, draw)
        p.mul_(2)
        return message, state


class OwnNoise(Dense):
    def encode(self, p, state, layout, draw):
        return super().encode(p * (1 + 0.01 * torch.rand(len(p)).to(p)), state, layout, draw)


class Remembers(Dense):
    def encode(self, p, state, layout, draw):
        HISTORY.append(len(p))
        return super().encode(p, state, layout, draw)


class Triples(Dense):
    def decode(self, message, layout, dtype=None):
        return 3 * super().decode(message, layout, dtype)


CODECS = (
    (Miscounts, "size is what is sent", r"nbytes\(\) says \d+, but pack\(\) makes \d+ bytes"),
    (SameCode, "code on the wire", "code 1 is that of the codec topk"),
    (NoSize, "messages", r"size must be \[168\]"),
    (NoState, "messages", "must return two records"),
    (Rounds, "a message is read again", "packed and unpacked, differs in 'value'"),
    (Short, "a message is read again", r"decode\(\) gives \[167\]; it must give \[168\]"),
    (OwnType, "a message is read again", "gives float16"),
    (Careless, "other bytes are refused", "is read as if it were whole"),
    (Crashes, "other bytes are refused", r"raises? WireError"),
    (ClaimsUnbiased, "error within the bound", "says that the codec is unbiased"),
    (ClaimsExact, "error within the bound", r"omega\(\) says 0.5, but the squared error"),
    (Amplifies, "error within the bound", "it must be a contraction"),
    (Scales, ARGUMENTS, r"encode\(\) changes its argument p"),
    (OwnNoise, REPEAT, r"encode\(\), called twice"),
    (Remembers, KEPT, "the global HISTORY changed"),
    (Triples, "nothing is lost with feedback", "the residual is .* long"),
)
