"""DiLoCo, Algorithm 1, written again in numpy: AdamW of which each worker keeps the state."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedloom import FedAvg, Local
from fedloom.algorithms import diloco
from fedloom.submodels import HeteroFL
from fedloom.wrappers import Nesterov, ServerOpt
from tiny import A, B, near, quadratics, same, small, trace

COHORTS = [[0, 1, 3], [2], [0, 3], [1, 2], [0, 1, 2, 3]]
LR, K, DECAY, BETA1, BETA2, EPS = 0.05, 3, 0.1, 0.8, 0.95, 1e-8
ADAMW = Local(
    steps=K, batch=1, lr=LR, optimiser="adamw", beta1=BETA1, beta2=BETA2, weight_decay=DECAY
)


class Worker:
    """A worker's AdamW, of which nothing is shared and nothing begins anew."""

    def __init__(self):
        self.m, self.v, self.t = np.zeros(2), np.zeros(2), 0

    def train(self, i, y):
        for _ in range(K):
            g = A[i] * (y - B[i])
            self.t += 1
            self.m = BETA1 * self.m + (1 - BETA1) * g
            self.v = BETA2 * self.v + (1 - BETA2) * g * g
            m, v = self.m / (1 - BETA1**self.t), self.v / (1 - BETA2**self.t)
            y = y - LR * (m / (np.sqrt(v) + EPS) + DECAY * y)  # decoupled
        return y


def follow(rounds, server_lr, beta, keeps):
    x, momentum, workers = np.zeros(2), np.zeros(2), [Worker() for _ in A]
    for t in range(rounds):
        yield x, workers
        cohort = COHORTS[t % len(COHORTS)]
        if not keeps:
            workers = [Worker() for _ in A]
        delta = np.mean([workers[i].train(i, x) - x for i in cohort], axis=0)
        momentum = beta * momentum + delta
        x = x + server_lr * (delta + beta * momentum)


@pytest.mark.parametrize("keeps", [True, False])
def test_the_inner_optimiser_goes_on_where_it_was(keeps):
    nesterov = ServerOpt(inner=FedAvg(), opt=Nesterov(lr=0.7, beta=0.6))
    algorithm = diloco(server_lr=0.7, beta=0.6) if keeps else nesterov
    run = quadratics(algorithm, cohort=COHORTS, local=ADAMW)
    for loop, (x, workers) in zip(trace(run, 9), follow(10, 0.7, 0.6, keeps), strict=True):
        near(loop.state.srv.x, x)
        for i, row in loop.memory.get(range(4)).items() if keeps else ():
            near(row.alg.opt.m, workers[i].m)
            near(row.alg.opt.v, workers[i].v)
            assert float(row.alg.opt.t) == workers[i].t
    other = [*follow(10, 0.7, 0.6, not keeps)][-1][0]
    assert np.abs(x - other).max() > 0.01


def test_with_plain_local_steps_there_is_nothing_to_keep():
    nesterov = ServerOpt(inner=FedAvg(), opt=Nesterov())
    one, two = ([*trace(quadratics(a, cohort=3), 5)][-1] for a in (diloco(), nesterov))
    assert torch.equal(one.state.srv.x, two.state.srv.x)
    assert not next(iter(one.memory.get(range(4)).values())).alg._fields


def test_a_momentum_is_kept_too_and_a_part_keeps_that_of_its_coordinates():
    local = Local(steps=2, batch=4, lr=0.1, momentum=0.5)
    parts = {"submodel": HeteroFL(), "capacities": [0.3, 1.0]}
    for changes in ({}, parts):
        ends = [
            [*trace(small(diloco(), torch.float64, local=local, engine=e, **changes), 3)][-1]
            for e in ("serial", "serial", "vectorised:2")
        ]
        assert same(ends[0].state.srv, ends[1].state.srv)
        torch.testing.assert_close(ends[0].state.srv.x, ends[2].state.srv.x, rtol=0, atol=1e-12)
        held = ends[0].memory.get(range(7)).values()
        assert held and all(row.alg.opt.m.shape == ends[0].state.srv.x.shape for row in held)
