"""What the engines must equal: the local loop without a thought for speed. Fresh vectors everywhere."""

from __future__ import annotations

import math

import torch

from fedloom.algorithm import Job
from fedloom.engines import Serial
from fedloom.engines.client import Client
from fedloom.rng import key, substream
from fedloom.vector import tree


def fresh(record):
    """A record in memory that nobody else has."""
    return tree(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, record)


class NaiveGradient:
    """One step's oracle, by a functional call at a copy."""

    def __init__(self, client, ref, memory, batch, seed):
        self.client, self.ref, self.memory = client, ref, memory
        self.batch, self.seed = batch, seed
        self.calls, self.losses = 0, []

    def __call__(self, x):
        plan, net = self.client.plan, self.client.net
        torch.manual_seed(self.seed)
        with torch.enable_grad():
            y = x.detach().clone().requires_grad_()
            loss = plan.objective.mean(net, y, self.batch, self.ref, self.memory)
            (g,) = torch.autograd.grad(loss, y)
        self.calls += 1
        self.losses.append(loss.detach().clone())
        return g.clone()


class Work:
    """The counts of a client's round, as the engine's oracle has them."""

    def __init__(self):
        self.calls, self.losses = 0, []


class NaiveClient(Client):
    """Every vector that an author sees is a copy, and the move is x - lr d."""

    def train(self, msg, memory, i, round):
        fed, alg = self.fed, self.plan.algorithm
        batches = fed.batches(i, round)
        rates = [fed.local.rate(round, k) for k in range(len(batches))]
        work = Work()
        job = Job(
            weight=fed.weight(i),
            steps=float(len(batches)),
            lr=rates[0],
            lr_sum=math.fsum(rates),
            round=float(round),
            step=0.0,
            last=memory.last,
            full=lambda x: self.whole(x, msg.x, memory.obj, i, round),
        )
        seed = key(fed.seed, "step", round, i)
        self.net.train()
        msg, own = fresh(msg), fresh(memory.alg)
        x, loc = alg.start(fresh(msg), fresh(own), job)
        x, loc = fresh(x), fresh(loc)
        for k, index in enumerate(batches):
            job = job._replace(step=float(k), lr=rates[k])
            oracle = NaiveGradient(self, msg.x, memory.obj, fed.batch(index), substream(seed, k))
            d, loc = alg.direction(fresh(x), fresh(loc), fresh(msg), fresh(own), oracle, job)
            x, loc = torch.sub(fresh(x), fresh(d), alpha=job.lr), fresh(loc)
            work.calls += oracle.calls
            work.losses += oracle.losses[:1]
        up, own = alg.finish(fresh(x), fresh(loc), fresh(msg), fresh(own), job)
        return fresh(up), memory._replace(alg=fresh(own)), job, work

    def whole(self, x, ref, memory, i, round):
        own, seed = self.fed.data.clients.of(i), key(self.fed.seed, "full", round, i)
        total = torch.zeros_like(x)
        for k, index in enumerate(torch.split(own, self.fed.local.batch or len(own))):
            oracle = NaiveGradient(self, ref, memory, self.fed.batch(index), substream(seed, k))
            total = total.add(oracle(x), alpha=len(index) / len(own))
        return total


class Naive(Serial):
    """The reference of the reference."""

    def open(self, plan, fed, net):
        super().open(plan, fed, net)
        self._client = NaiveClient(plan, fed, net)
