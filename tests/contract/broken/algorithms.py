"""Algorithms that break their contract, one fault each."""

from __future__ import annotations

import os

import torch

from fedloom import LocalSGD
from fedloom.algorithm import MEAN
from fedloom.core.hyper import hyper
from fedloom.core.vector import rec
from fedloom.engines.author_rules import FIELDS, KEPT, REPEAT

from .common import HISTORY, OPTIONS, PARTS, VECTORISED
from .mistakes import AT_CLIENTS, AT_THE_SERVER

ROUNDS = {}


class Branches(LocalSGD):
    def direction(self, x, loc, msg, mem, grad, job):
        g = grad(x)
        return (g / g.norm() if g.norm() > 1 else g), loc


class Items(LocalSGD):
    def direction(self, x, loc, msg, mem, grad, job):
        g = grad(x)
        return g * min(1.0, 1 / float(g.norm())), loc


class KeepsInGlobals(LocalSGD):
    def finish(self, x, loc, msg, mem, job):
        HISTORY.append(float(job.round))
        return rec(delta=x - msg.x, weight=job.weight), mem


class Draws(LocalSGD):
    def start(self, msg, mem, job):
        return msg.x + 0.01 * torch.randn_like(msg.x), rec()


class DrawsInSteps(LocalSGD):
    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x) + 0.01 * torch.randn_like(x), loc


class NotSent(LocalSGD):
    sent = {"delta": MEAN, "dc": MEAN}


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
    (KeepsInGlobals, KEPT, "outside of its records .the global HISTORY."),
    (Draws, REPEAT, r"start\(\), called twice"),
    (Draws, VECTORISED, "draws from torch's generator"),
    (DrawsInSteps, VECTORISED, "draws from torch's generator"),
    (NotSent, FIELDS, "sent names dc"),
    (AsksEngine, VECTORISED, "do not agree"),
    (CountsRounds, "stop and resume", "is not the run that was never stopped"),
    (Idle, OPTIONS, "other values than beta = 0.5 change neither"),
    (WholeModel, PARTS, "declare Trait.WHOLE_MODEL"),
    (Divides, "finite", "not finite"),
    (OtherArguments, "methods and declarations", r"start\(self, message, memory, job\) must take"),
    (BareName, "methods and declarations", "sent must map field names to MEAN"),
    # the words are about another model, of 102 parameters
    *(
        (kind, row, words.replace("102", "147"))
        for kind, (row, words) in (AT_CLIENTS | AT_THE_SERVER).items()
    ),
)
