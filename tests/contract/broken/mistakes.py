"""Authors' mistakes in the methods of an algorithm: {class: (the row of `fedloom check` that finds
it, words of the sentence)}. A run and a check say the same.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch

from fedloom import FedAvg
from fedloom.algorithms import Scaffold
from fedloom.core.vector import rec
from fedloom.engines.author_rules import ARGUMENTS, FIELDS, KEPT, SHAPES

RUNS = "runs"


# ----------------------------------------------------------------------------- a client's methods
class BranchDirection(FedAvg):
    def direction(self, x, loc, msg, mem, grad, job):
        g = grad(x)
        return (g if g.norm() > 1 else 2 * g), loc


class BranchFinish(FedAvg):
    def finish(self, x, loc, msg, mem, job):
        while (x - msg.x).norm() > 100:
            x = x / 2
        return super().finish(x, loc, msg, mem, job)


class BranchEqual(FedAvg):
    def start(self, msg, mem, job):
        return (msg.x if torch.equal(msg.x, msg.x) else -msg.x), rec()


class AsksWho(FedAvg):
    def finish(self, x, loc, msg, mem, job):
        return rec(delta=x - msg.x, weight=job.weight + job.name), mem


class ChangesX(FedAvg):
    def direction(self, x, loc, msg, mem, grad, job):
        x *= 0.9
        return grad(x), loc


class ChangesMessage(FedAvg):
    def direction(self, x, loc, msg, mem, grad, job):
        msg.x.add_(0.01)
        return grad(x), loc


class ChangesEntry(FedAvg):
    def start(self, msg, mem, job):
        msg.x[0] = 0.0
        return msg.x, rec()


class ChangesMemory(Scaffold):
    def finish(self, x, loc, msg, mem, job):
        mem.c.sub_(1.0)
        return super().finish(x, loc, msg, mem, job)


class ChangesOut(Scaffold):
    def direction(self, x, loc, msg, mem, grad, job):
        return torch.add(grad(x), 1.0, out=msg.c), loc


class SetsItself(FedAvg):
    def direction(self, x, loc, msg, mem, grad, job):
        self.last = x
        return grad(x), loc


class SetsItselfByForce(FedAvg):
    def finish(self, x, loc, msg, mem, job):
        object.__setattr__(self, "rounds", job.round)
        return super().finish(x, loc, msg, mem, job)


class FillsAField(FedAvg):
    seen: dict = dataclasses.field(default_factory=dict)

    def finish(self, x, loc, msg, mem, job):
        self.seen["x"] = x
        return super().finish(x, loc, msg, mem, job)


class FillsItsClass(FedAvg):
    seen: ClassVar[list] = []

    def finish(self, x, loc, msg, mem, job):
        self.seen.append(1)
        return super().finish(x, loc, msg, mem, job)


class ShortDirection(FedAvg):
    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x)[:3], loc


class WideDirection(FedAvg):
    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x).double(), loc


class OneValue(FedAvg):
    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x)


class ShortStart(FedAvg):
    def start(self, msg, mem, job):
        return msg.x[:5], rec()


class ShortPoint(FedAvg):
    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x[:4]), loc


class ShortDelta(FedAvg):
    def finish(self, x, loc, msg, mem, job):
        return rec(delta=(x - msg.x)[:5], weight=job.weight), mem


class WideDelta(FedAvg):
    def finish(self, x, loc, msg, mem, job):
        return rec(delta=(x - msg.x).double(), weight=job.weight), mem


class NoWeight(FedAvg):
    def finish(self, x, loc, msg, mem, job):
        return rec(delta=x - msg.x), mem


class NoRecord(FedAvg):
    def finish(self, x, loc, msg, mem, job):
        return {"delta": x - msg.x}, mem


class ShortMemory(Scaffold):
    def finish(self, x, loc, msg, mem, job):
        up, mem = super().finish(x, loc, msg, mem, job)
        return up, rec(c=mem.c[:4])


class NewMemory(FedAvg):
    def finish(self, x, loc, msg, mem, job):
        return super().finish(x, loc, msg, mem, job)[0], rec(last=x)


class ListMemory(FedAvg):
    def client_init(self, x):
        return rec(h=[0.0, 0.0])


class NewLoc(FedAvg):
    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x), rec(last=x)


class NoLoc(FedAvg):
    def start(self, msg, mem, job):
        return msg.x, None


class ListLoc(FedAvg):
    def start(self, msg, mem, job):
        return msg.x, rec(past=[])

    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x), rec(past=[*loc.past, x])


class ListMeans(FedAvg):
    def unweighted(self, up, job):
        return rec(h=[1.0])


class Misspelt(FedAvg):
    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x) - msg.c, loc


AT_CLIENTS = {
    BranchDirection: (RUNS, r"direction\(\) branches on a tensor's value.*torch.where"),
    BranchFinish: (RUNS, r"finish\(\) branches on a tensor's value.*torch.where"),
    BranchEqual: (RUNS, r"start\(\) branches on a tensor's value.*torch.where"),
    AsksWho: (RUNS, r"no attribute 'name'; job has weight, .*, client, layers, begin\(\), move"),
    ChangesX: (ARGUMENTS, r"direction\(\) changes x( and msg.x)? in place.*return a new value"),
    ChangesMessage: (ARGUMENTS, r"direction\(\) changes (x and )?msg.x in place"),
    ChangesEntry: (ARGUMENTS, r"start\(\) changes msg.x in place"),
    ChangesMemory: (ARGUMENTS, r"finish\(\) changes mem.c in place"),
    ChangesOut: (ARGUMENTS, r"direction\(\) changes msg.c in place"),
    SetsItself: (RUNS, r"outside of its records \(cannot assign to field 'last'\).*record loc"),
    SetsItselfByForce: (KEPT, r"outside of its records \(self.rounds\).*record loc"),
    FillsAField: (KEPT, r"outside of its records \(self.seen\).*record loc"),
    FillsItsClass: (KEPT, r"outside of its records \(FillsItsClass.seen\).*record loc"),
    ShortDirection: (SHAPES, r"direction\(\) gives a direction of shape \[3\] where x has \[102\]"),
    WideDirection: (SHAPES, r"direction\(\) gives a direction of float64 .*; keep the type"),
    OneValue: (SHAPES, r"direction\(\) must give two values, the direction and loc, got a Tensor"),
    ShortStart: (SHAPES, r"start\(\) gives x of shape \[5\] where x has \[102\]"),
    ShortPoint: (RUNS, r"grad\(\) is asked at \[4\]; it takes a point as long as x, \[102\]"),
    ShortDelta: (SHAPES, r"finish\(\) gives delta of shape \[5\] where x has \[102\]; return"),
    WideDelta: (SHAPES, r"finish\(\) gives delta of float64 where x is float32; keep the type"),
    NoWeight: (SHAPES, r"finish\(\) gives an update without weight, .*; return rec\(delta"),
    NoRecord: (SHAPES, r"finish\(\) gives an update of type dict; make it with rec"),
    ShortMemory: (FIELDS, r"client state whose 'c' is \[4\] float32, but it was \[102\] float32"),
    NewMemory: (FIELDS, r"client state whose 'last' is \[102\] float32, but it was nothing"),
    ListMemory: (SHAPES, r"client_init\(\) gives a client state whose 'h' is a list"),
    NewLoc: (FIELDS, r"direction\(\) gives loc with the fields last, .*nothing; keep the fields"),
    ListLoc: (SHAPES, r"direction\(\) gives loc whose 'past' is a list; a record holds tensors"),
    NoLoc: (SHAPES, r"start\(\) gives loc of type NoneType; make it with rec"),
    ListMeans: (SHAPES, r"unweighted\(\) gives means whose 'h' is a list; a record holds tensors"),
    Misspelt: (RUNS, r"direction\(\): AttributeError: 'rec' object has no attribute 'c'"),
}


# ---------------------------------------------------------------------------- the server's methods
class ChangesServer(FedAvg):
    def server_step(self, srv, up, rnd):
        srv.x.add_(up.delta)
        return srv


class ChangesAnswer(FedAvg):
    def server_step(self, srv, up, rnd):
        return srv._replace(x=srv.x + up.delta.mul_(2))


class ShortServer(FedAvg):
    def server_step(self, srv, up, rnd):
        return rec(x=(srv.x + up.delta)[:7])


class WideServer(FedAvg):
    def server_step(self, srv, up, rnd):
        return rec(x=(srv.x + up.delta).double())


class NoModel(FedAvg):
    def broadcast(self, srv):
        return rec(y=srv.x)


class NewServer(FedAvg):
    def server_step(self, srv, up, rnd):
        return rec(x=srv.x + up.delta, m=up.delta)

    def broadcast(self, srv):
        return rec(x=srv.x)


class ShortModel(FedAvg):
    def model(self, srv):
        return srv.x[:7]


class MisspeltServer(FedAvg):
    def server_step(self, srv, up, rnd):
        return rec(x=srv.x + up.dleta)


class WrongInit(FedAvg):
    def server_init(self, x, up):
        return {"x": x}


class AsksCohort(FedAvg):
    def server_step(self, srv, up, rnd):
        return srv._replace(x=srv.x + up.delta / len(rnd.cohort))


AT_THE_SERVER = {
    AsksCohort: (RUNS, r"no attribute 'cohort'; rnd has round, rate, lr, relative_weight; what"),
    ChangesServer: (ARGUMENTS, r"server_step\(\) changes srv.x in place.*return a new value"),
    ChangesAnswer: (ARGUMENTS, r"server_step\(\) changes up.delta in place.*return a new value"),
    ShortServer: (SHAPES, r"server_step\(\) gives x of shape \[7\] where x has \[102\]; return"),
    WideServer: (SHAPES, r"server_step\(\) gives x of float64 where x is float32; keep the type"),
    NoModel: (SHAPES, r"broadcast\(\) gives a record without x, only with y"),
    NewServer: (FIELDS, r"server_step\(\) gives a state with the fields x, m, but it had x; keep"),
    ShortModel: (SHAPES, r"model\(\) gives a model of shape \[7\] where x has \[102\]; return"),
    MisspeltServer: (RUNS, r"server_step\(\): AttributeError: 'rec' .* no attribute 'dleta'"),
    WrongInit: (SHAPES, r"server_init\(\) gives a state of type dict; make it with rec"),
}
