"""The small problems whose numbers the specification gives, and a wrapper that writes down what it
sees.
"""

from __future__ import annotations

import numpy as np
import torch

from fedloom import Local
from fedloom.core.net import Variables
from fedloom.data import from_clients
from fedloom.objectives import Function
from fedloom.wrappers import Wrapper
from tiny import quadratics

D = torch.float64


def problem_q(algorithm, copies=(1, 1), **changes):
    """Section 4: f1 = (x - 2)^2 / 2 and f2 = 3 (x + 1)^2 / 2, x_0 = 1, K = 2, rate 0.1, everybody.

    A client holds its function copies[i] times: with an epoch of batch 1 that is K_i.
    """
    ab = ((1.0, 2.0), (3.0, -1.0))
    pairs = [(np.full((n, 1), a), np.full((n, 1), b)) for (a, b), n in zip(ab, copies, strict=True)]
    settings = {
        "model": Variables(torch.ones(1, dtype=D)),
        "data": from_clients(pairs, dtype=D),
        "local": Local(steps=2, lr=0.1, batch=1),
    }
    return quadratics(algorithm, **(settings | changes))


def _bent(x, a, b):
    """a x^2 / 2 within [-1, 1], a (|x| - 1/2) outside: its slope is a x there, a sign(x) here."""
    return (a * torch.where(x.abs() <= 1, x * x / 2, x.abs() - 0.5)).sum(1).mean()


def theorem_1(algorithm, q=1, lr=0.1):
    """Theorem 1's three functions, by their slopes: 6, -2 and -2 outside [-1, 1]; x_0 = 10."""
    pairs = [(np.full((1, 1), a), np.zeros((1, 1))) for a in (6.0, -2.0, -2.0)]
    return quadratics(
        algorithm,
        model=Variables(torch.full((1,), 10.0, dtype=D)),
        data=from_clients(pairs, dtype=D),
        objective=Function(f=_bent),
        local=Local(steps=q, lr=lr, batch=1),
    )


class Spy(Wrapper):
    """Changes nothing; writes down each step's point, gradients and state, and every answer.

    steps: one entry per step, in the order of the rounds and of their clients. ends: per client's
    round its last x, its answer and its new memory.
    """

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "steps", [])
        object.__setattr__(self, "ends", [])

    def direction(self, x, loc, msg, mem, grad, job):
        gradients = []

        def noted(y):
            gradients.append(float(grad(y)))
            return grad(y)

        d, new = self.inner.direction(x, loc, msg, mem, noted, job)
        self.steps.append({"x": float(x), "g": gradients, "loc": new})
        return d, new

    def finish(self, x, loc, msg, mem, job):
        up, mem = self.inner.finish(x, loc, msg, mem, job)
        self.ends.append({"x": float(x), "up": up, "mem": mem})
        return up, mem
