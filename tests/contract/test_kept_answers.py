"""Answers are weighted and summed elsewhere: what an author keeps of one stays as it is."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedloom import FedAvg
from fedloom.core.vector import rec
from tiny import A, B, quadratics, trace

COPIES = (1, 2, 3, 4)  # the clients' weights
STEPS, LR = 5, 0.1


class Remembers(FedAvg):
    """A client keeps the very vector that it sends."""

    def client_init(self, x):
        return rec(last=torch.zeros_like(x))

    def finish(self, x, loc, msg, mem, job):
        delta = x - msg.x
        return rec(delta=delta, weight=job.weight), rec(last=delta)


class AlsoPlain(FedAvg):
    """Sends it once to be weighted and once to be averaged plainly."""

    def finish(self, x, loc, msg, mem, job):
        delta = x - msg.x
        return rec(delta=delta, weight=job.weight, plain=delta), mem

    def unweighted(self, up, job):
        return rec(plain=up.plain)

    def server_init(self, x, up):
        return rec(x=x, plain=torch.zeros_like(x))

    def server_step(self, srv, up, rnd):
        return rec(x=srv.x + up.delta, plain=up.plain)


class SendsPart(FedAvg):
    """Its answer is a part of a longer vector, all of which it keeps."""

    def client_init(self, x):
        return rec(last=torch.zeros(2 * len(x), dtype=x.dtype))

    def finish(self, x, loc, msg, mem, job):
        both = torch.cat([x - msg.x, x])
        return rec(delta=both[: len(x)], weight=job.weight), rec(last=both)


def moves():
    """Where the clients get to from 0 in the first round: x_K = b (1 - (1 - lr a)^K)."""
    return B * (1 - (1 - LR * A) ** STEPS)


def after_a_round(algorithm, engine):
    _, loop = trace(quadratics(algorithm, COPIES, engine=engine), 1)
    mean = np.average(moves(), axis=0, weights=COPIES)
    assert np.allclose(loop.state.srv.x.numpy(), mean, rtol=1e-12, atol=0)
    return loop


@pytest.mark.parametrize("engine", ["serial", "vectorised:3"])
@pytest.mark.parametrize("algorithm", [Remembers(), SendsPart()])
def test_what_a_client_remembers_is_not_weighted(algorithm, engine):
    loop = after_a_round(algorithm, engine)
    for i, memory in loop.memory.get(range(4)).items():
        assert np.allclose(memory.alg.last.numpy()[:2], moves()[i], rtol=1e-12, atol=0)


@pytest.mark.parametrize("engine", ["serial", "vectorised:3"])
def test_a_plain_mean_of_the_same_vector_is_not_weighted(engine):
    loop = after_a_round(AlsoPlain(), engine)
    assert np.allclose(loop.state.srv.plain.numpy(), moves().mean(0), rtol=1e-12, atol=0)
