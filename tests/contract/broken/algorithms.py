"""Algorithms that break their contract, one fault each."""

from __future__ import annotations

import os

import torch

from fedloom import LocalSGD
from fedloom.algorithm import MEAN
from fedloom.core.hyper import hyper
from fedloom.core.vector import rec, zeros
from fedloom.engines.author_rules import ARGUMENTS, FIELDS, KEPT, REPEAT, SHAPES

from .common import HISTORY, OPTIONS, PARTS, VECTORISED

ROUNDS = {}


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
    seen = {}  # the fault that is looked for

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


class NotSent(LocalSGD):
    sent = {"delta": MEAN, "dc": MEAN}


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
        return grad(x) * (1 + os.getpid() % 97 / 1000), loc


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
    sent = "delta"


ALGORITHMS = (
    (Branches, VECTORISED, "branches on a tensor's value"),
    (Branches, VECTORISED, r"line \d+, in direction\(\) \(`return \(g / g.norm\(\)"),
    (Items, VECTORISED, "branches on a tensor's value"),
    (WritesX, ARGUMENTS, r"direction\(\) changes x( and msg.x)? in place"),
    (WritesMemory, ARGUMENTS, r"finish\(\) changes mem.c in place"),
    (AssignsToSelf, "runs", "outside of its records.*field 'last'"),
    (KeepsOnItself, KEPT, "outside of its records .self.last."),
    (KeepsInGlobals, KEPT, "outside of its records .the global HISTORY."),
    (KeepsOnClass, KEPT, "outside of its records .KeepsOnClass.seen."),
    (Draws, REPEAT, r"start\(\), called twice"),
    (Draws, VECTORISED, "draws from torch's generator"),
    (DrawsInSteps, VECTORISED, "draws from torch's generator"),
    (Shorter, SHAPES, r"a direction of shape \[1\] where x has \[147\]"),
    (Doubles, SHAPES, "a direction of float64 where x is float32"),
    (LongAnswer, SHAPES, r"finish\(\) gives delta of shape \[148\]"),
    (NoDelta, SHAPES, r"finish\(\) gives an answer without delta"),
    (NoPair, SHAPES, r"must give two values, the direction and loc, got a Tensor"),
    (OtherMemory, FIELDS, "a memory whose 'last' is .* but it was nothing"),
    (OtherServer, FIELDS, "a state with the fields x, m, but it had x"),
    (NotSent, FIELDS, "sent names dc"),
    (NotBroadcast, "runs", "has no attribute 'c'; broadcast.. gives the fields of msg"),
    (HoldsAList, "runs", "whose 'past' is a list"),
    (AsksEngine, VECTORISED, "do not agree"),
    (CountsRounds, "stop and resume", "is not the run that was never stopped"),
    (Idle, OPTIONS, "other values than beta = 0.5 change neither"),
    (WholeModel, PARTS, "declare Trait.WHOLE_MODEL"),
    (Divides, "finite", "not finite"),
    (OtherArguments, "methods and declarations", r"start\(self, message, memory, job\) must take"),
    (BareName, "methods and declarations", "sent must map field names to MEAN"),
)
