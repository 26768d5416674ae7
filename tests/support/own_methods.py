"""Methods that fedloom does not have, as strangers would write them on the interface alone."""

from __future__ import annotations

import torch

from fedloom import FedAvg, LocalSGD
from fedloom.algorithms import Ditto, Scaffold
from fedloom.core.hyper import Share, hyper
from fedloom.core.vector import rec, zeros
from fedloom.federation.choice import ClientChoice
from fedloom.objectives import CrossEntropy


# ------------------------------------------- aliases that a careless engine would write over
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

    def unweighted(self, up, job):
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


# ------------------------------------------------------------------ no gradient of a step's batch
class Walks(FedAvg):
    """A direction that asks for no gradient."""

    def direction(self, x, loc, msg, mem, grad, job):
        return torch.ones_like(x), loc


class Looks(FedAvg):
    """Losses alone, of the batch and of all data."""

    def direction(self, x, loc, msg, mem, grad, job):
        return torch.ones_like(x) * torch.sign(grad.loss(x) + job.full.loss(x)), loc


class Whole(FedAvg):
    """The gradient over all data, and none of the batch."""

    def direction(self, x, loc, msg, mem, grad, job):
        return job.full(x), loc


# ------------------------------------------------------------------------------------ random draws
class Draws(FedAvg):
    """FedAvg with job.draw(n) at every place where a client may draw.

    server: x        client: u (the numbers of all places)        up: delta
    """

    def client_init(self, x):
        return rec(u=x.new_zeros(5, 3))

    def start(self, msg, mem, job):
        return msg.x, rec(u=job.draw(3), a=msg.x.new_zeros(3), b=msg.x.new_zeros(3))

    def ask(self, msg, mem, job):
        return rec(asked=job.draw(3)), mem

    def direction(self, x, loc, msg, mem, grad, job):
        a, b = job.draw(3), job.draw(3)
        noise = 0.01 * (job.draw(x.numel()) - 0.5)
        return grad(x) + noise, loc._replace(a=a, b=b)

    def finish(self, x, loc, msg, mem, job):
        u = torch.stack([loc.u, loc.a, loc.b, job.draw(3), msg.asked])
        return rec(delta=x - msg.x, weight=job.weight), rec(u=u)


class TorchDraws(FedAvg):
    """Draws from torch's generator wherever no gradient seeds it, which a method should not."""

    def server_init(self, x, up):
        return rec(x=x + 0.1 * torch.randn_like(x))

    def broadcast(self, srv):
        return rec(x=srv.x + 0.1 * torch.randn_like(srv.x))

    def server_step(self, srv, up, rnd):
        return rec(x=srv.x + up.delta + 0.1 * torch.randn_like(srv.x))

    def model(self, srv):
        return srv.x + 0.1 * torch.randn_like(srv.x)

    def probe(self, x, grad):
        return rec(g=torch.randn_like(x))

    def client_init(self, x):
        return rec(n=torch.randn_like(x))

    def start(self, msg, mem, job):
        return msg.x + 0.1 * (torch.randn_like(msg.x) + mem.n), rec()


class Spike(Scaffold):
    """Client 4, who has 11 samples, sends one huge entry in rounds 1 and 3."""

    huge = 1e38

    def finish(self, x, loc, msg, mem, job):
        up, mem = super().finish(x, loc, msg, mem, job)
        now = torch.as_tensor((job.weight == 11.0) & (job.round != 1))
        spike = torch.zeros_like(x).index_fill(0, torch.tensor([3]), self.huge)
        return up._replace(delta=up.delta + torch.where(now, spike, 0.0)), mem


# ---------------------------------------------------------------------------- from papers, in short
class APFL(Ditto):
    """The personal model is a mixture, whose local part steps along its share of the gradient."""

    def direction(self, x, loc, msg, mem, grad, job):
        d = 0.5 * grad(0.5 * loc.y.x + 0.5 * x)
        return grad(x), rec(y=job.move(loc.y, d))

    def personal(self, msg, mem):
        return 0.5 * mem.v + 0.5 * msg.x


class FineTuned(FedAvg):
    """A client uses its own last local model."""

    def client_init(self, x):
        return rec(own=x)

    def finish(self, x, loc, msg, mem, job):
        return rec(delta=x - msg.x, weight=job.weight), rec(own=x)

    def personal(self, msg, mem):
        return mem.own


class Polyak(FedAvg):
    """The local step that would reach a loss of 0 on a straight line, at most the rate's."""

    def direction(self, x, loc, msg, mem, grad, job):
        g = grad(x)
        return g * torch.clamp_max(grad.loss(x) / ((g * g).sum() + 1e-9), 1.0), loc


class Moon(CrossEntropy):
    """MOON-like: the loss remembers the client's last model, and pulls its move away from it."""

    def init(self, first):
        return rec(prev=zeros(first.net.init()))

    def mean(self, net, x, batch, ref, mem):
        return super().mean(net, x, batch, ref, mem) + 0.01 * (x * mem.prev).sum()

    def loss(self, net, x, batch, ref, mem):
        return super().loss(net, x, batch, ref, mem) + 0.01 * (x * mem.prev).sum()

    def finish(self, x, ref, mem):
        return rec(prev=x)


class PermK(FedAvg):
    """Every coordinate from one client of all, the next one in the next round (Szlendak et al.,
    2021: PermK, with a permutation that moves on by one).
    """

    clients: int = hyper(6)

    def finish(self, x, loc, msg, mem, job):
        place = torch.arange(x.numel(), device=x.device) + job.round
        mine = torch.remainder(place, self.clients) == job.client
        delta = torch.where(mine, self.clients * (x - msg.x), 0.0)
        return rec(delta=delta, weight=job.weight), mem


class FedBABU(FedAvg):
    """FedBABU (Oh, Kim & Yun, ICLR 2022): the head stays what it was, clients train the body."""

    def direction(self, x, loc, msg, mem, grad, job):
        return torch.where(job.layers("head.*") > 0, 0.0, grad(x)), loc


class DASHA(FedAvg):
    """DASHA (Tyurin & Richtarik, ICLR 2023, Algorithm 1, gradients): clients and server add the
    same compressed messages up, the ones to g_i, the other to g.
    """

    a: Share = hyper(0.3)

    def server_init(self, x, up):
        return rec(x=x, g=zeros(x))

    def broadcast(self, srv):
        return rec(x=srv.x)

    def client_init(self, x):
        return rec(h=zeros(x), g=zeros(x))

    def direction(self, x, loc, msg, mem, grad, job):
        return zeros(x), loc

    def finish(self, x, loc, msg, mem, job):
        h = job.full(msg.x)
        delta = h - mem.h - self.a * (mem.g - mem.h)
        return rec(delta=delta, weight=job.weight), mem._replace(h=h)

    def arrived(self, up, mem):
        return mem._replace(g=mem.g + up.delta)

    def server_step(self, srv, up, rnd):
        g = srv.g + rnd.rate * up.delta
        return rec(x=srv.x - self.server_lr * g, g=g)


class Last(FedAvg):
    """A client keeps what the server has read of its last update."""

    def client_init(self, x):
        return rec(sent=zeros(x))

    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x) + 0.1 * mem.sent, loc

    def arrived(self, up, mem):
        return rec(sent=up.delta)


class Heads(FedAvg):
    """Asks for gradients of the head, and averages its move, at the server."""

    def ask(self, msg, mem, job):
        return rec(c=job.layers("head.*") * job.full(msg.x)), mem

    def unweighted(self, up, job):
        return rec(h=job.layers("head.*") * up.delta)


# ---------------------------------------------------------------------------- who takes part
class Patient(ClientChoice):
    """Those that have waited longest, by the rows so far."""

    def cohort(self, known, losses):
        waited = dict.fromkeys(known.there, 0)
        for t, row in enumerate(known.rows):
            waited |= dict.fromkeys(row["clients"], t + 1)
        return sorted(waited, key=lambda i: (waited[i], i))[: known.size]
