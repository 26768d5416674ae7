"""FAFED on quadratics: Algorithm 2 written again in numpy, and what follows from it by hand.

Section numbers are those of the specification of adaptive methods.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedloom import Local
from fedloom.algorithms import FAFED
from fedloom.data import from_clients
from fedloom.federation.schedules import Exponential
from tiny import A, B, models, near, quadratics, trace

SIZES = (2, 5, 3, 4)
COHORTS = [[0, 1, 3], [2], [1, 2], [0, 1, 2, 3], [0, 3], [0, 1, 3]]
LR = 0.1


def gradient(i, y):
    return A[i] * (y - B[i])


def previous(loop):
    """The points of the clients' last gradients, x_(t,i), (clients, d)."""
    return np.stack([m.alg.prev.numpy() for m in loop.memory.get(range(4)).values()])


def after_rounds(experiment, rounds):
    """The loop after each round."""
    loops = trace(experiment, rounds)
    next(loops)
    yield from loops


# -------------------------------------------------------------------------- Algorithm 2, in numpy
class Box:
    """Algorithm 2 with cohorts and K_i of one's own; `rate(t, k)` is eta, the count t of rounds.

    Between exchanges A is the received one (line 14); at the exchange the new one (lines 10-12).
    """

    def __init__(
        self,
        rate,
        weights,
        alpha=0.9,
        beta=0.9,
        rho=0.01,
        c=None,
        ext=1.0,
        first=False,
        lag=False,
        matrix="coordinate",
    ):
        self.kind = matrix
        self.rate, self.weights, self.lag = rate, np.array(weights, float), lag
        self.alpha, self.beta, self.rho, self.c, self.ext = alpha, beta, rho, c, ext
        self.x, self.preconditioned = np.zeros(2), first
        g = np.stack([gradient(i, self.x) for i in range(4)])
        self.m = self.mean(range(4), g)  # line 2, everybody
        self.v = self.mean(range(4), [*map(self.squares, g)])
        self.before, self.last, self.eta = {}, {}, None

    def mean(self, members, rows):
        w = self.weights[list(members)][:, None]
        return (w * np.stack(rows)).sum(0) / w.sum()

    def squares(self, g):
        """g^2 of each coordinate, or ||g||^2 for a matrix that is a number times I."""
        return g * g if self.kind == "coordinate" else np.array([g @ g])

    def matrix(self):
        return np.sqrt(self.v) + self.rho

    def client(self, i, t, start):
        y, m, v = start.copy(), self.m, self.v
        # section 1.7: who did not take part in the last round compares with what it was sent
        old = self.before[i] if self.last.get(i) == t - 1 else self.x
        eta = self.rate(t, 0) if t == 0 else self.eta
        for k in range(SIZES[i]):
            alpha = self.alpha if self.c is None else min(self.c * eta**2, 1.0)
            g, g_old = gradient(i, y), gradient(i, old)
            m = g + (1 - alpha) * (m - self.ext * g_old)  # line 7
            if self.kind == "norm":  # AdaGrad-Norm: b_t^2 = b_(t-1)^2 + ||g_t||^2
                v = v + self.squares(g)
            else:
                v = self.beta * v + (1 - self.beta) * self.squares(g)  # line 8
            old, eta = y, self.rate(t, k)
            y = y - eta * m / self.matrix()  # lines 14, 15; the last one is not used
        self.before[i], self.last[i] = old, t
        return old, m, v

    def round(self, t):
        start = self.x
        if t == 0:
            step = self.m / self.matrix() if self.preconditioned else self.m
            start = self.x - self.rate(0, 0) * step  # line 3
        members = COHORTS[t % len(COHORTS)]
        points, ms, vs = zip(*(self.client(i, t, start) for i in members), strict=True)
        old = self.matrix()
        self.m, self.v = self.mean(members, ms), self.mean(members, vs)  # lines 10, 11
        self.eta = self.rate(t, max(SIZES[i] for i in members) - 1)
        mean = self.mean(members, points)
        # line 12; the authors' code takes the last step at the clients, before A is made anew
        self.x = mean - self.eta * self.m / (old if self.lag else self.matrix())


CASES = {
    "default": {},
    "heavy memory": {"alpha": 0.1},
    "light memory": {"alpha": 0.9, "beta": 0.1, "rho": 0.1},
    "Theorem 2's alpha": {"c": 40.0},
    "the authors' factor": {"ext": 0.95, "alpha": 0.1},
    "first step as the others": {"precondition_first_step": True},
    "the authors' order": {"a_lag": True},
    "a global rate": {"matrix": "global", "beta": 0.5},
    "AdaGrad-Norm": {"matrix": "norm", "rho": 0.1},
}


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
@pytest.mark.parametrize("name", CASES)
def test_rounds_follow_the_box(name, weighting):
    schedule = Exponential(decay=0.97, step_decay=0.9)
    options = dict(CASES[name])
    names = {"precondition_first_step": "first", "a_lag": "lag"}
    own_options = {names.get(k, k): v for k, v in options.items()}
    weights = SIZES if weighting == "examples" else (1, 1, 1, 1)
    own = Box(lambda t, k: LR * schedule(t, k), weights, **own_options)
    experiment = quadratics(
        FAFED(**options),
        SIZES,
        cohort=COHORTS,
        local=Local(epochs=1, batch=1, lr=LR, schedule=schedule),
        weighting=weighting,
    )
    for t, loop in enumerate(trace(experiment, 12)):
        near(loop.state.srv.x, own.x)
        near(loop.state.srv.m, own.m)
        near(loop.state.srv.v.reshape(-1), own.v)
        own.round(t)
    assert np.abs(own.x).max() > 0.05


# -------------------------------------------------------------------------------------- identities
@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.9, 1.0])
def test_with_one_step_m_is_the_mean_gradient_whatever_alpha(alpha):
    # invariant 1: m - grad starts at 0 and is multiplied by 1 - alpha
    experiment = quadratics(FAFED(alpha=alpha), local=Local(steps=1, lr=LR, batch=1))
    for loop in after_rounds(experiment, 25):
        points = previous(loop)
        assert len(points) == 4 and np.ptp(points, axis=0).max() == 0
        near(loop.state.srv.m, np.mean([gradient(i, points[i]) for i in range(4)], axis=0))


def test_with_alpha_one_m_is_the_gradient():
    # invariant 2, through several local steps
    experiment = quadratics(FAFED(alpha=1.0), local=Local(steps=4, lr=LR, batch=1))
    for loop in after_rounds(experiment, 5):
        points = previous(loop)
        near(loop.state.srv.m, np.mean([gradient(i, points[i]) for i in range(4)], axis=0))
        assert np.ptp(points, axis=0).max() > 1e-3


def test_an_exchange_is_one_step_of_the_mean_with_the_new_matrix():
    # eq. 14 at an exchange: x_(t+1) = mean of x_(t,i) - eta m / A
    rho = 0.05
    experiment = quadratics(FAFED(rho=rho), local=Local(steps=3, lr=LR, batch=1))
    for loop in after_rounds(experiment, 6):
        step = LR * loop.state.srv.m / (loop.state.srv.v.sqrt() + rho)
        near(loop.state.srv.x, previous(loop).mean(0) - step.numpy())


def scaled(by, order=(0, 1, 2, 3), **options):
    pairs = [(by * A[i : i + 1], B[i : i + 1]) for i in order]
    data = from_clients(pairs, dtype=torch.float64)
    algorithm = FAFED(rho=0.01 * by, **options)
    return models(quadratics(algorithm, data=data, local=Local(steps=3, lr=LR, batch=1)), 6)


def test_only_the_first_step_feels_the_functions_scale():
    # invariant 5: f_i -> c f_i with rho -> c rho
    one, four = (scaled(c, precondition_first_step=True) for c in (1.0, 4.0))
    near(four, one)
    one, four = (scaled(c) for c in (1.0, 4.0))
    assert np.abs(four - one).max() > 0.1
    # a first step of a quarter of the length, and both are the same again
    mean = (A * B).mean(0)
    start = LR * 4 * mean
    near(next_point(4.0), start)
    near(next_point(1.0), start / 4)


def next_point(by):
    """x_1 of line 3, where the first gradient of round 1 is taken: x_(1,i) with one local step."""
    pairs = [(by * A[i : i + 1], B[i : i + 1]) for i in range(4)]
    data = from_clients(pairs, dtype=torch.float64)
    experiment = quadratics(FAFED(), data=data, local=Local(steps=1, lr=LR, batch=1))
    return previous([*trace(experiment, 1)][-1])[0]


def test_the_order_of_the_clients_does_not_matter():
    near(scaled(1.0, (2, 0, 3, 1)), scaled(1.0))


# ------------------------------------------------------------ the first exchange, absence, and cost
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_the_first_exchange_asks_everybody_and_weighs_as_the_moves(weighting):
    experiment = quadratics(FAFED(), SIZES, cohort=2, weighting=weighting)
    loop = next(iter(trace(experiment, 0)))
    g = np.stack([gradient(i, np.zeros(2)) for i in range(4)])
    p = np.array(SIZES if weighting == "examples" else (1, 1, 1, 1), float)[:, None]
    p /= p.sum()
    near(loop.state.srv.m, (p * g).sum(0))
    near(loop.state.srv.v, (p * g * g).sum(0))  # the mean of squares, not the square of the mean
    assert np.abs((g * g).mean(0) - g.mean(0) ** 2).max() > 1
    assert loop.state.ledger.client_rounds == 4 and loop.state.ledger.steps == 0


def test_a_returning_clients_first_correction_is_zero():
    # section 1.7: previous point = received x, so that m = (1 - alpha) m + alpha g
    alpha = 0.3
    experiment = quadratics(
        FAFED(alpha=alpha), cohort=[[0, 1], [2], [0, 1]], local=Local(steps=1, lr=LR, batch=1)
    )
    loops = [(loop.state.srv, loop.memory.get([0, 1])) for loop in trace(experiment, 3)]
    (before, _), (after, held) = loops[2], loops[3]
    x = before.x.numpy()
    assert all(np.array_equal(m.alg.prev, x) for m in held.values())
    g = np.mean([gradient(i, x) for i in (0, 1)], axis=0)
    near(after.m, (1 - alpha) * before.m.numpy() + alpha * g)
    # one who stayed compares with its own point instead
    stayed = quadratics(
        FAFED(alpha=alpha), cohort=[[0, 1], [2], [2]], local=Local(steps=1, lr=LR, batch=1)
    )
    *_, (before, old), (after, _) = (
        (loop.state.srv, previous(loop)[-1]) for loop in after_rounds(stayed, 3)
    )
    x = before.x.numpy()
    near(after.m, gradient(2, x) + (1 - alpha) * (before.m.numpy() - gradient(2, old)))
