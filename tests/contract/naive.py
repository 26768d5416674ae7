"""What the engines must equal: the local loop without a thought for speed, on fresh vectors."""

from __future__ import annotations

import math

import torch

from fedloom.algorithm import Job, Oracle
from fedloom.core.dropout import seeded
from fedloom.core.rng import key, substream
from fedloom.core.vector import tree
from fedloom.engines import Serial
from fedloom.engines.client_round import Client
from fedloom.stage import LocalResult
from fedloom.wrappers.base import trajectory_parts


def fresh(record):
    """A record in memory that nobody else has."""
    return tree(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, record)


class NaiveGradient:
    """One step's oracle, by a functional call at a copy."""

    def __init__(self, plan, net, ref, memory, batch, seed):
        self.plan, self.net, self.ref, self.memory = plan, net, ref, memory
        self.batch, self.seed = batch, seed
        self.calls, self.values, self.losses = 0, 0, []

    def __call__(self, x):
        torch.manual_seed(self.seed)
        with torch.enable_grad(), seeded(self.seed):
            y = x.detach().clone().requires_grad_()
            loss = self.plan.objective.mean(self.net, y, self.batch, self.ref, self.memory)
            (g,) = torch.autograd.grad(loss, y)
        self.calls += 1
        self.losses.append(loss.detach().clone())
        return g.clone()

    def loss(self, x):
        torch.manual_seed(self.seed)
        with torch.no_grad(), seeded(self.seed):
            y = x.detach().clone()
            value = self.plan.objective.mean(self.net, y, self.batch, self.ref, self.memory)
        self.values += 1
        return value.clone()


class NaiveClient(Client):
    """Every vector that an author sees is a copy, and the move is x - lr d. Whole models only."""

    def train(self, share, memory, i, round):
        fed, plan, net, alg = self.fed, self.plan, share.net, self.plan.algorithm
        msg, own, obj = fresh(share.msg), fresh(memory.alg), memory.obj
        batches, seed = fed.batches(i, round), key(fed.seed, "step", round, i)
        rates = [fed.local.rate(round, k) for k in range(len(batches))]
        calls, values, losses, passes, value_passes = 0, 0, [], [], []
        whole = lambda ask, seen: lambda x: self.whole(ask, x, share, obj, i, round, seen)
        job = Job(
            weight=fed.weight(i),
            steps=float(len(batches)),
            lr=rates[0],
            lr_sum=math.fsum(rates),
            round=float(round),
            step=0.0,
            last=memory.last,
            full=Oracle(
                whole(lambda g, x: g(x), passes), whole(lambda g, x: g.loss(x), value_passes)
            ),
            size=fed.relative_size(i),
            around=trajectory_parts(plan.algorithm),
            relative_weight=fed.relative_weight(i),
            client=float(i),
            layers=share.layers,
        )
        net.train()
        x, loc = alg.start(fresh(msg), fresh(own), job)
        x, loc = fresh(x), fresh(loc)
        for k, index in enumerate(batches):
            job = job._replace(step=float(k), lr=rates[k])
            oracle = NaiveGradient(plan, net, msg.x, obj, fed.batch(index), substream(seed, k))
            d, loc = alg.direction(fresh(x), fresh(loc), fresh(msg), fresh(own), oracle, job)
            x, loc = torch.sub(fresh(x), fresh(d), alpha=job.lr), fresh(loc)
            calls, values = calls + oracle.calls, values + oracle.values
            losses += oracle.losses[:1]
        up, own = alg.finish(fresh(x), fresh(loc), fresh(msg), fresh(own), job)
        loss = math.fsum(map(float, losses)) / len(losses) if losses else 0.0
        memory = memory._replace(alg=fresh(own))
        calls, values = calls + len(passes), values + len(value_passes)
        costs = (calls, msg.x[:0], x, len(passes), values, len(value_passes))
        return LocalResult(fresh(up), memory, job, loss, *costs)

    def whole(self, ask, x, share, obj, i, round, passes):
        """What is asked of the gradient of each chunk of all data, averaged."""
        fed, total = self.fed, 0.0
        own, seed = fed.data.clients.of(i), key(fed.seed, "full", round, i)
        for k, index in enumerate(torch.split(own, fed.local.batch or len(own))):
            ref, batch = share.msg.x, fed.batch(index)
            oracle = NaiveGradient(self.plan, share.net, ref, obj, batch, substream(seed, k))
            result = ask(oracle, x)
            total = torch.zeros_like(result) if not k else total
            total = total.add(result, alpha=len(index) / len(own))
            passes.append(k)
        return total


class Naive(Serial):
    def client(self, plan, fed, net):
        return NaiveClient(plan, fed, net)
