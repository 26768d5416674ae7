"""Algorithms that break their contract, one fault each."""

from __future__ import annotations

import os

import torch

from fedloom import LocalSGD
from fedloom.algorithm import MEAN
from fedloom.core.vector import rec
from fedloom.engines.author_rules import FIELDS, KEPT, REPEAT

from .mistakes import AT_CLIENTS, AT_THE_SERVER

VECTORISED, TYPES = "engine vectorised:3", "types of what is kept"
PARTS = "clients with a part of the model"
HISTORY: list[float] = []  # where some keep what they must not
ROUNDS = {}
MOVE, RATES, NORMS = "the server's move", "rates are declared", "norms are declared"


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
    compressible_up = {"delta": MEAN, "dc": MEAN}


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
    compressible_up = "delta"


class MovesByX(LocalSGD):
    """Weight decay at the server: around it an optimiser would see no x."""

    def server_step(self, srv, up, rnd):
        return srv._replace(x=0.9 * srv.x + up.delta)


class SendsTheModel(LocalSGD):
    def finish(self, x, loc, msg, mem, job):
        return rec(delta=x - msg.x, y=x, weight=job.weight), mem

    def unweighted(self, up, job):
        return rec(y=up.y)

    def server_step(self, srv, up, rnd):
        return srv._replace(x=up.y)


class Weighed(LocalSGD):
    """The engine multiplies by the weight once more."""

    def finish(self, x, loc, msg, mem, job):
        return rec(delta=job.weight * (x - msg.x), weight=job.weight), mem


class KeepsFloat32(LocalSGD):
    def server_init(self, x, up):
        return rec(x=x, m=torch.zeros(len(x)))

    def server_step(self, srv, up, rnd):
        m = 0.5 * srv.m + up.delta.float()
        return rec(x=srv.x + m, m=m)


class RemembersFloat32(LocalSGD):
    def client_init(self, x):
        return rec(d=torch.zeros(len(x)))

    def finish(self, x, loc, msg, mem, job):
        delta = x - msg.x
        return rec(delta=delta + 0.1 * mem.d.to(x), weight=job.weight), rec(d=delta.float())


class ReadsRates(LocalSGD):
    def client_init(self, x):
        return rec(d=torch.zeros_like(x))

    def direction(self, x, loc, msg, mem, grad, job):
        return 0.9 * grad(x) + 0.1 * mem.d, loc

    def finish(self, x, loc, msg, mem, job):
        delta = x - msg.x
        return rec(delta=delta, weight=job.weight), rec(d=-delta / job.lr_sum)


class AveragesRates(LocalSGD):
    def unweighted(self, up, job):
        return rec(d=-up.delta / job.lr_sum)

    def server_step(self, srv, up, rnd):
        return srv._replace(x=srv.x - 0.1 * up.d)


class SendsNorm(LocalSGD):
    def finish(self, x, loc, msg, mem, job):
        delta = x - msg.x
        return rec(delta=delta, length=delta.norm(), weight=job.weight), mem

    def unweighted(self, up, job):
        return rec(length=up.length)

    def server_step(self, srv, up, rnd):
        return srv._replace(x=srv.x + up.delta / (1 + up.length))


class AveragesNorm(SendsNorm):
    def finish(self, x, loc, msg, mem, job):
        return LocalSGD.finish(self, x, loc, msg, mem, job)

    def unweighted(self, up, job):
        return rec(length=up.delta.norm())


ALGORITHMS = (
    (MovesByX, MOVE, r"server_step\(\) moves x by another vector where x is another"),
    (SendsTheModel, MOVE, "would learn something else; add to srv.x what follows from up"),
    (Weighed, "only ratios of weights count", "four times as large the run learns something else"),
    (KeepsFloat32, TYPES, "in a run in float64 it keeps 'server.m' as float32"),
    (RemembersFloat32, TYPES, "it keeps 'client_0.alg.d' as float32"),
    (ReadsRates, RATES, r"finish\(\) reads job.lr_sum, and no trait says so"),
    (AveragesRates, RATES, r"unweighted\(\) reads job.lr_sum.* declare Trait.READS_THE_MOVE"),
    (SendsNorm, NORMS, r"finish\(\) makes 'length'.* declare Trait.WHOLE_MODEL"),
    (AveragesNorm, NORMS, r"unweighted\(\) makes 'length', which is no vector like x"),
    (Branches, VECTORISED, r"line \d+, in direction\(\) \(`return \(g / g.norm\(\)"),
    (Items, VECTORISED, "branches on a tensor's value"),
    (KeepsInGlobals, KEPT, "outside of its records .the global HISTORY."),
    (Draws, REPEAT, r"start\(\), called twice"),
    (Draws, VECTORISED, "draws from torch's generator"),
    (DrawsInSteps, VECTORISED, "draws from torch's generator"),
    (NotSent, FIELDS, "compressible_up names dc"),
    (AsksEngine, VECTORISED, "do not agree"),
    (CountsRounds, "stop and resume", "is not the run that was never stopped"),
    (WholeModel, PARTS, "declare Trait.WHOLE_MODEL"),
    (Divides, "finite", "not finite"),
    (OtherArguments, "methods and declarations", r"start\(self, message, memory, job\) must take"),
    (BareName, "methods and declarations", "compressible_up must map field names to MEAN"),
    # the words are about another model, of 102 parameters
    *(
        (kind, row, words.replace("102", "147"))
        for kind, (row, words) in (AT_CLIENTS | AT_THE_SERVER).items()
    ),
)
