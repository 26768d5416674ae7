"""FedDyn and FedSMOO: where they end, and their papers' boxes written again in numpy.

The boxes keep the papers' own variables: gradient duals g_i and h (Acar et al.), lambda_i and mu_i
(Sun et al.). Our files keep sums of moves instead; that both agree is what is tested.
"""

from __future__ import annotations

import numpy as np
import pytest

from fedloom import Local
from fedloom.algorithms import FedDC, FedDyn, FedSMOO
from fedloom.federation.schedules import Exponential
from tiny import A, B, models, near, quadratics, trace

MINIMISER = (A * B).sum(0) / A.sum(0)  # of the plain mean of the f_i
SIZES = (2, 5, 3, 4)
COHORTS = [[0, 1, 3], [2], [1, 2], [0, 1, 2, 3], [0, 3]]
SCHEDULE = Exponential(decay=0.97, step_decay=0.9)
LR = 0.1


# --------------------------------------------------------------------------------- where they end
WAYS = {
    "everybody": {},
    "two of four": {"cohort": 2, "seed": 3},
    "unequal steps": {"copies": (2, 5, 3, 4), "local": Local(epochs=1, batch=1, lr=LR)},
    "unequal steps, alike": {
        "copies": (2, 5, 3, 4),
        "local": Local(epochs=1, batch=1, lr=LR),
        "weighting": "uniform",
    },
    "unequal steps of three": {
        "copies": (2, 5, 3, 4),
        "local": Local(epochs=1, batch=1, lr=LR),
        "cohort": 3,
    },
}


def minimiser(way):
    """Of sum_i w_i f_i, with the weights that the settings say."""
    settings = WAYS[way]
    alike = settings.get("weighting") == "uniform"
    w = np.array((1, 1, 1, 1) if alike else settings.get("copies", (1, 1, 1, 1)), float)[:, None]
    return (w * A * B).sum(0) / (w * A).sum(0)


def end(algorithm, way, rounds):
    settings = dict(WAYS[way])
    copies = settings.pop("copies", (1, 1, 1, 1))
    return models(quadratics(algorithm, copies, **settings), rounds)[-1]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_feddyn_ends_at_the_minimiser(way):
    near(end(FedDyn(alpha=3.0), way, 120), minimiser(way), 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_fedsmoo_without_a_perturbation_ends_at_the_minimiser(way):
    near(end(FedSMOO(rho=0.0, beta=1 / 3), way, 120), minimiser(way), 1e-10)


def test_fedsmoo_without_a_perturbation_is_feddyn():
    smoo = models(quadratics(FedSMOO(rho=0.0, beta=4.0), SIZES, cohort=3), 12)
    near(smoo, models(quadratics(FedDyn(alpha=0.25), SIZES, cohort=3), 12), 0)


def test_fedsmoos_perturbation_has_length_rho_from_round_one_on():
    local = Local(steps=3, lr=LR, batch=1)
    norms = [
        float(loop.state.srv.s.norm())
        for loop in trace(quadratics(FedSMOO(rho=0.2), local=local, cohort=3), 6)
    ]
    assert norms[0] == 0
    near(norms[1:], 0.2, 1e-6)  # rho v / (|v| + 1e-7)
    # one step: mu_i less its last perturbation is 0 in round 1, so there is no direction yet
    one = quadratics(FedSMOO(rho=0.2), local=Local(steps=1, lr=LR, batch=1))
    assert [float(loop.state.srv.s.norm()) for loop in trace(one, 1)] == [0.0, 0.0]


# ------------------------------------------------------------------------------ the boxes in numpy
class Box:
    """Four quadratics, cohorts and K_i as above, one rate per round and step."""

    def __init__(self, weights):
        self.x = np.zeros(2)
        self.weights = np.array(weights, float)

    def rates(self, i, t):
        return [LR * SCHEDULE(t, k) for k in range(SIZES[i])]

    def gradient(self, i, y):
        return A[i] * (y - B[i])

    def mean(self, members, ends):
        w = self.weights[members]
        return (w[:, None] * np.stack(ends)).sum(0) / w.sum()

    def added(self, members, rows):
        """What the cohort adds to a sum of all clients, each with its share of all weights."""
        p = self.weights[members] / self.weights.sum()
        return (p[:, None] * np.stack(rows)).sum(0)


class Weighed(Box):
    """FedDyn as Acar et al. run it on clients of unequal sizes: alpha_i = alpha / weight_i."""

    def __init__(self, weights, alpha):
        super().__init__(weights)
        self.alpha = alpha / (np.array(SIZES) * 4 / sum(SIZES))
        self.g = np.zeros((4, 2))

    def round(self, t):
        members, ends = COHORTS[t % len(COHORTS)], []
        for i in members:
            y = self.x.copy()
            for rate in self.rates(i, t):
                y = y - rate * (self.gradient(i, y) - self.g[i] + self.alpha[i] * (y - self.x))
            self.g[i] = self.g[i] - self.alpha[i] * (y - self.x)
            ends.append(y)
        # the mean of the ends, and the mean over all N of -g_i / alpha_i
        self.x = self.mean(members, ends) - (self.g / self.alpha[:, None]).mean(0)


class Gao(Box):
    """FedDC as its authors run it: alpha_i, g / weight_i at the client, weight_i dg_i sent."""

    def __init__(self, weights, alpha):
        super().__init__(weights)
        self.weight = np.array(SIZES) * 4 / sum(SIZES)
        self.alpha = alpha / self.weight
        self.drift, self.own, self.all = np.zeros((4, 2)), np.zeros((4, 2)), np.zeros(2)

    def round(self, t):
        members, ends, change = COHORTS[t % len(COHORTS)], [], np.zeros(2)
        for i in members:
            y, aim = self.x.copy(), self.x - self.drift[i]
            linear = self.all / self.weight[i] - self.own[i]
            for rate in self.rates(i, t):
                y = y - rate * (self.gradient(i, y) + self.alpha[i] * (y - aim) + linear)
            move = y - self.x
            new = self.own[i] - self.all / self.weight[i] - move / sum(self.rates(i, t))
            change += self.weight[i] * (new - self.own[i])
            self.own[i], self.drift[i] = new, self.drift[i] + move
            ends.append(y)
        self.x = self.mean(members, ends) + self.drift.mean(0)
        self.all = self.all + change / 4


WEIGHTS = {"uniform": (1, 1, 1, 1), "examples": SIZES}
LOCAL = Local(epochs=1, batch=1, lr=LR, schedule=SCHEDULE)


@pytest.mark.parametrize("weighting", WEIGHTS)
@pytest.mark.parametrize(
    ("make", "box"),
    [(lambda **o: FedDyn(alpha=0.5, **o), Weighed), (lambda **o: FedDC(alpha=0.5, **o), Gao)],
    ids=["feddyn", "feddc"],
)
def test_the_weight_of_the_clients_sizes_follows_its_box(make, box, weighting):
    own = box(WEIGHTS[weighting], 0.5)
    settings = {"cohort": COHORTS, "local": LOCAL, "weighting": weighting}
    for t, loop in enumerate(trace(quadratics(make(size_scaled=True), SIZES, **settings), 15)):
        near(loop.state.srv.x, own.x)
        own.round(t)
    # it is no name for what happens anyway, and changes nothing where all are of one size
    plain = models(quadratics(make(), SIZES, **settings), 15)
    assert np.abs(plain[-1] - own.x).max() > 1e-3
    alike = {"cohort": COHORTS, "local": Local(steps=3, lr=LR, batch=1)}
    one, two = (
        models(quadratics(make(size_scaled=flag), (3, 3, 3, 3), **alike), 8)
        for flag in (False, True)
    )
    near(one, two, 0)
