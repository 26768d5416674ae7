"""The engine writes into vectors of its own only: authors may hold and return whatever they like.

Every algorithm here keeps aliases that a careless engine would overwrite under it.
"""

from __future__ import annotations

import pytest
import torch
from naive import Naive

from fedloom import LocalSGD
from fedloom.core.vector import rec
from fedloom.errors import ClientError
from tiny import same, small, trace


class Historian(LocalSGD):
    """Holds x and g of this step and of the two before, and asks for gradients at all of them."""

    def start(self, msg, mem, job):
        return msg.x, rec(x=(), first=msg.x)

    def direction(self, x, loc, msg, mem, grad, job):
        g = grad(x)
        if not loc.x:
            return g, rec(x=rec(x1=x, g1=g, x2=msg.x, g2=g), first=loc.first)
        h = loc.x
        d = g + 0.3 * grad(h.x1) - 0.2 * grad(h.x2) + 0.1 * h.g1 - 0.05 * h.g2
        d = d + 0.1 * grad(x) + 0.01 * (x - loc.first)
        return d, rec(x=rec(x1=x, g1=g, x2=h.x1, g2=h.g1), first=loc.first)


class Storm(LocalSGD):
    """d_k = g(x_k) + 0.9 (d_(k-1) - g(x_(k-1))) on one batch; its memory is the last x and d."""

    def client_init(self, x):
        return rec(x=x, d=torch.zeros_like(x))

    def start(self, msg, mem, job):
        return msg.x, rec(x=mem.x, d=mem.d)

    def direction(self, x, loc, msg, mem, grad, job):
        d = grad(x) + 0.9 * (loc.d - grad(loc.x))
        return d, rec(x=x, d=d)

    def finish(self, x, loc, msg, mem, job):
        return rec(delta=x - msg.x, weight=job.weight), rec(x=loc.x, d=loc.d)


class Hoarder(LocalSGD):
    """Returns aliases wherever it can: x and the gradient themselves, and pieces of them."""

    def client_init(self, x):
        return rec(x=x, g=x, tail=x[3:])

    def start(self, msg, mem, job):
        return mem.x, rec(head=msg.x[:5], g=mem.g, old=mem.x)

    def direction(self, x, loc, msg, mem, grad, job):
        g = grad(x)
        part = torch.cat([g[:5] + 0.1 * loc.head, g[5:]]) + 0.01 * loc.old + 0.1 * loc.g
        kept = rec(head=x[:5], g=g, old=x.view(-1))
        step = int(job.step) % 4
        return (part, x, x.view(-1), g)[step], kept

    def finish(self, x, loc, msg, mem, job):
        up = rec(delta=x, seen=loc.g, tail=loc.head, weight=job.weight)
        return up, rec(x=x, g=loc.g, tail=loc.old[3:])

    def uniform(self, up, job):
        return rec(seen=up.seen, tail=up.tail)

    def server_step(self, srv, up, rnd):
        return rec(x=up.delta - 0.01 * up.seen)


class Wanderer(LocalSGD):
    """Asks for gradients at gradients, and at pieces put together."""

    def direction(self, x, loc, msg, mem, grad, job):
        g = grad(x)
        there = grad(g)
        turned = grad(torch.cat([x[:7], g[7:]]))
        again = grad(there)
        return g + 0.1 * there + 0.1 * turned + 0.1 * again + 0.1 * grad(x), loc


class Flat(LocalSGD):
    """A direction that is one entry of x, spread out: it overlaps what the move writes to."""

    def direction(self, x, loc, msg, mem, grad, job):
        grad(x)
        return x[:1].expand_as(x), loc


class Full(LocalSGD):
    """Uses the whole objective within steps, and keeps what it got."""

    def start(self, msg, mem, job):
        return msg.x, rec(full=job.full(msg.x), here=msg.x)

    def direction(self, x, loc, msg, mem, grad, job):
        g = grad(x)
        full = job.full(x)
        return g - grad(loc.here) + 0.5 * full + 0.5 * loc.full, rec(full=full, here=x)


AUTHORS = [Historian, Storm, Hoarder, Wanderer, Flat, Full]


@pytest.mark.quick("dtype0")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("author", AUTHORS)
def test_the_engine_has_the_bits_of_a_naive_loop(author, dtype):
    def rounds(engine):
        return [
            (loop.state.srv, loop.memory.get(range(7)))
            for loop in trace(small(author(), dtype, engine=engine, cohort=5), 4)
        ]

    for (a, mine), (b, theirs) in zip(rounds("serial"), rounds(Naive()), strict=True):
        assert same(a, b)
        assert mine.keys() == theirs.keys()
        assert all(same(mine[i], theirs[i]) for i in mine)


@pytest.mark.parametrize("author", [Historian, Hoarder])
def test_workers_have_the_same_bits(author, engine_of):
    ends = [
        [*trace(small(author(), engine=engine_of(name), cohort=5), 3)][-1]
        for name in ("serial", "workers:2")
    ]
    assert same(ends[0].state.srv, ends[1].state.srv)


class Listing(LocalSGD):
    """Holds tensors in a list, where no engine looks for them."""

    def start(self, msg, mem, job):
        return msg.x, rec(past=[])

    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x), rec(past=[*loc.past, x])


def test_a_record_that_hides_tensors_in_a_list_is_refused():
    with pytest.raises(ClientError, match="a record holds a list"):
        [*trace(small(Listing()), 1)]
