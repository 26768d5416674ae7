"""The objectives' losses written out in numpy, on a net of three blocks."""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from fedloom.core.net import Net
from fedloom.core.vector import rec
from fedloom.objectives import MOON, FedDecorr, FedLC, FedMLB, FedNTD

WIDTHS = (3, 4, 5, 3)
D = sum((a + 1) * b for a, b in pairwise(WIDTHS))
draw = np.random.default_rng(7)
INPUTS, LABELS = draw.normal(size=(6, 3)), np.array([0, 2, 1, 2, 2, 0])
X, REF, PREV = draw.normal(size=(3, D)) * 0.8
COUNTS = np.array([16.0, 1.0, 5.0])


def three_blocks():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        low = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
        mid = nn.Sequential(nn.Linear(4, 5), nn.Tanh())
        parts = OrderedDict(low=low, mid=mid, head=nn.Linear(5, 3))
    return Net(nn.Sequential(parts), torch.float64)


def t(a):
    return torch.as_tensor(np.asarray(a))


BATCH = (t(INPUTS), t(LABELS))


# ------------------------------------------------------------------------ the formulas, in numpy
def blocks(xs, inputs, first=0):
    """The outputs of the blocks from `first` on, block b with the vector xs[b - first]."""
    out, at = [], 0
    for b, (a, c) in enumerate(pairwise(WIDTHS)):
        if first <= b < first + len(xs):
            x = xs[b - first]
            w, bias = x[at : at + a * c].reshape(c, a), x[at + a * c : at + (a + 1) * c]
            inputs = inputs @ w.T + bias
            inputs = np.tanh(inputs) if b < 2 else inputs
            out.append(inputs)
        at += (a + 1) * c
    return out


def softmax(z):
    e = np.exp(z)
    return e / e.sum(-1, keepdims=True)


def ce(z, y=LABELS):
    return -np.log(softmax(z)[np.arange(len(y)), y])


def cos(a, b):
    return (a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))


def kl(p, q):
    return (p * np.log(p / q)).sum(1)


def moon(x, mu=1.0, tau=0.5, prev=PREV, ref=REF):
    h, h_ref, h_prev = (blocks([v] * 3, INPUTS)[1] for v in (x, ref, prev))
    near, far = np.exp(cos(h, h_ref) / tau), np.exp(cos(h, h_prev) / tau)
    return ce(blocks([x] * 3, INPUTS)[2]) - mu * np.log(near / (near + far))


def fedmlb(x, lam1=1.0, lam2=1.0, tau=1.0, teacher=None):
    """teacher: where the hybrid paths' distributions in the divergence are taken, if not at x."""
    z = blocks([x] * 3, INPUTS)[2]
    total = ce(z)
    for b in (1, 2):
        z_b, z_p = (blocks([v] * b + [REF] * (3 - b), INPUTS)[2] for v in (x, teacher))
        total = total + (lam1 * ce(z_b) + lam2 * kl(softmax(z_p / tau), softmax(z / tau))) / 2
    return total


def feddecorr(x, beta=0.01):
    h, z = blocks([x] * 3, INPUTS)[1:]
    n, f = h.shape
    s = (h - h.mean(0)) / np.sqrt(1e-8 + h.var(0, ddof=1))
    m = s.T @ s
    off = sum(m[i, j] ** 2 for i in range(f) for j in range(f) if i != j)
    return ce(z).mean() + beta * off / (f * (f - 1)) / n


def fedlc(x, tau=1.0):
    return ce(blocks([x] * 3, INPUTS)[2] - tau * COUNTS**-0.25)


def ntd(x, tau=1.0):
    z, z_ref = (blocks([v] * 3, INPUTS)[2] for v in (x, REF))
    rows = []
    for a, b, y in zip(z, z_ref, LABELS, strict=True):
        rows.append(kl(softmax(np.delete(b, y)[None] / tau), softmax(np.delete(a, y)[None] / tau)))
    return np.concatenate(rows), ce(z)


def fedntd(x, keep, distil, tau):
    term, plain = ntd(x, tau)
    return keep * plain + distil * term


SEEN = rec(prev=t(PREV), seen=t(1.0))
NOTHING = rec()
# name: objective, memory, its formula
CASES = {
    "moon": (MOON(), SEEN, moon),
    "moon other": (MOON(mu=5.0, tau=0.2), SEEN, lambda x: moon(x, 5.0, 0.2)),
    "fedmlb": (FedMLB(), NOTHING, lambda x: fedmlb(x, teacher=x)),
    "fedmlb other": (
        FedMLB(lam1=0.5, lam2=3.0, tau=2.0),
        NOTHING,
        lambda x: fedmlb(x, 0.5, 3.0, 2.0, teacher=x),
    ),
    "fedmlb stopped": (FedMLB(stop_gradient=True), NOTHING, lambda x: fedmlb(x, teacher=X)),
    "feddecorr": (FedDecorr(), NOTHING, feddecorr),
    "feddecorr other": (FedDecorr(beta=2.0), NOTHING, lambda x: feddecorr(x, 2.0)),
    "fedlc": (FedLC(), rec(counts=t(COUNTS)), fedlc),
    "fedlc other": (FedLC(tau=0.3), rec(counts=t(COUNTS)), lambda x: fedlc(x, 0.3)),
    "fedntd": (FedNTD(), NOTHING, lambda x: fedntd(x, 0.7, 0.3, 1.0)),
    "fedntd cool": (FedNTD(beta=0.2, tau=3.0), NOTHING, lambda x: fedntd(x, 0.8, 0.2, 3.0)),
    "fedntd official": (
        FedNTD(form="official", beta=0.5, tau=3.0),
        NOTHING,
        lambda x: fedntd(x, 1.0, 0.5 * 9, 3.0),
    ),
}


def close(a, b, tol=1e-12):
    torch.testing.assert_close(t(a), t(b), rtol=tol, atol=tol)


def live_gradient(net, objective, mem, x=X, ref=REF):
    """As the serial engine takes it."""
    net.train()
    handle = net.live(t(x))
    value = objective.mean(net, handle, BATCH, t(ref), mem)
    parts = torch.autograd.grad(value, [*net.params, handle], allow_unused=True)
    assert parts[-1] is None
    return torch.cat([g.reshape(-1) for g in parts[:-1]]), value.detach()
