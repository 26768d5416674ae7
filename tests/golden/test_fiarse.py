"""FIARSE's numbers and its box, run through the whole loop (specification of sub-models, 1 and 2).

The golden table of ResNet-18's thresholds and densities is in tests/closed_form/test_views.py.
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch

from fedloom import FedAvg, Local
from fedloom.core.net import Net, Variables
from fedloom.core.vector import rec
from fedloom.data import from_clients
from fedloom.submodels import FIARSE, greedy
from resnet import resnet18
from tiny import models, quadratics

D = torch.float64


def start(x):
    return Net(Variables(torch.tensor(x, dtype=D)))


# ----------------------------------------------------------- the factor 1 + 2 a theta/(a + theta)^2
@pytest.mark.parametrize(
    ("ratio", "factor"),
    [(1, 1.5), (1.5, 1.48), (2, 1.444), (3, 1.375), (5, 1.278), (10, 1.165), (50, 1.038)],
)
def test_the_factor_of_a_weight_by_its_distance_from_the_threshold(ratio, factor):
    # the view's own threshold: of two weights, one at capacity 1/2 is held, and it is the threshold
    x = torch.tensor([0.7, 0.1], dtype=D)
    view = FIARSE().view(x, start([0.7, 0.1]), 0.5, 0)
    assert view.fit.groups.tolist() == [0.7]
    grown = FIARSE().grad(torch.ones_like, ratio * view.take(x), view.fit)
    assert float(grown) == pytest.approx(factor, abs=5e-4)


@pytest.mark.slow
def test_the_remaining_thresholds_of_resnet18():
    torch.manual_seed(0)
    net = Net(resnet18())
    for capacity, tau in ((0.16, 0.01432), (0.36, 0.01091), (0.64, 0.00614)):
        view = FIARSE().view(net.init(), net, capacity, 1)
        assert float(view.fit.groups[0]) == pytest.approx(tau, rel=3e-3)


# ------------------------------------------------------------------- who is in a coordinate's mean
class Told(FedAvg):
    """Each client's answer is what the test says: (1, 0), then (3, 2), on the two it holds."""

    def finish(self, x, loc, msg, mem, job):
        first = torch.as_tensor(job.weight == 1.0)
        one, two = (torch.tensor(v, dtype=D) for v in ((1.0, 0.0), (3.0, 2.0)))
        return rec(delta=torch.where(first, one, two), weight=1.0), mem


@pytest.mark.parametrize(("count", "move"), [("holders", [2, 0, 1]), ("nonzero", [2, 0, 2])])
@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_the_two_denominators(count, move, engine):
    # both hold coordinates 0 and 2 of three; nobody holds the one between
    pairs = [(np.ones((n, 3)), np.ones((n, 3))) for n in (1, 2)]
    x = [5.0, 0.1, -4.0]
    experiment = quadratics(
        Told(),
        data=from_clients(pairs, dtype=D),
        model=Variables(torch.tensor(x, dtype=D)),
        submodel=FIARSE(count=count),
        capacities=[0.7],
        engine=engine,
    )
    path = models(experiment, 1)
    np.testing.assert_array_equal(path[1], np.array(x) + move)
    assert path[1][1] == x[1]


def test_the_expected_move_of_a_ring():
    # Lemma C.1: over all cohorts of A = 2 of N = 5, the mean move of a coordinate that n clients
    # hold is (1 - C(N - n, A) / C(N, A)) times the mean move of these n
    rng = np.random.default_rng(3)
    b = rng.normal(size=(5, 4)) * 5
    a = np.ones((5, 4))
    x = np.array([4.0, -3.0, 2.0, -1.0])
    levels = (0.25, 0.5, 0.75, 1.0, 0.5)  # the first 1, 2, 3, 4, 2 coordinates
    holders = np.array([[j < round(4 * level) for j in range(4)] for level in levels])
    data = from_clients([(a[i : i + 1], b[i : i + 1]) for i in range(5)], dtype=D)

    def after(cohort):
        experiment = quadratics(
            FedAvg(),
            data=data,
            model=Variables(torch.tensor(x)),
            submodel=greedy(),
            capacities=levels,
            cohort=[list(cohort)],
            local=Local(steps=1, lr=0.1, batch=1),
        )
        return models(experiment, 1)[1] - x

    mean = np.mean([after(cohort) for cohort in combinations(range(5), 2)], axis=0)
    for j in range(4):
        of = holders[:, j]
        n = int(of.sum())
        # a held coordinate's move is the gradient of (x - b)^2 / 2 at the masked point
        moves = -0.1 * (x[j] - b[of, j])
        share = 1 - math.comb(5 - n, 2) / math.comb(5, 2)
        np.testing.assert_allclose(mean[j], share * moves.mean(), rtol=0, atol=1e-13)


# ---------------------------------------------------------- Algorithm 1 in numpy, on a full matrix
def box(x, functions, levels, cohorts, steps, lr, biased, dynamic):
    """Algorithm 1 with Eq. 3 on f_i(x) = x^T Q_i x / 2 - p_i^T x; line 13 over the holders."""
    path = [x]
    for cohort in cohorts:
        total, count = np.zeros_like(x), np.zeros_like(x)
        for i in cohort:
            order = np.sort(np.abs(x))[::-1]
            kept = max(1, math.floor(levels[i] * len(x)))
            theta = 0.0 if levels[i] == 1 else order[kept - 1]
            held = np.abs(x) >= theta
            q, p = functions[i]
            y = np.where(held, x, 0.0)
            for _ in range(steps):
                mask = held & (np.abs(y) >= theta) if dynamic else held
                seen = np.where(mask, y, 0.0)
                a = np.abs(y)
                slope = np.zeros_like(a)
                inside = mask & (a >= theta) & (a + theta > 0)
                slope[inside] = 2 * a[inside] * theta / (a[inside] + theta) ** 2
                y = y - lr * (q @ seen - p) * mask * (1 + biased * slope)
            total += np.where(held, y - x, 0.0)
            count += held
        x = x + np.divide(total, count, out=np.zeros_like(x), where=count > 0)
        path.append(x)
    return np.stack(path)


def _quadratic(x, q, p):
    """x^T Q x / 2 - p^T x of each example, whose inputs are Q and targets p; the batch's mean."""
    return ((q @ x * x).sum(-1) / 2 - (p * x).sum(-1)).mean()


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_rounds_follow_the_box(biased, dynamic, engine):
    from fedloom.objectives import Function

    d, n, rng = 12, 5, np.random.default_rng(8)
    levels = (0.25, 0.5, 1.0, 0.34, 0.75)
    functions = []
    for _ in range(n):
        m = rng.normal(size=(d, d))
        functions.append((m @ m.T / d + np.eye(d), rng.normal(size=d) * 2))
    x, cohorts = rng.normal(size=d), [[0, 1, 3], [2, 3], [0, 1, 2, 3, 4], [1, 4], [0, 3]]
    pairs = [(q[None], p[None]) for q, p in functions]
    experiment = quadratics(
        FedAvg(),
        data=from_clients(pairs, dtype=D),
        model=Variables(torch.tensor(x)),
        objective=Function(f=_quadratic),
        submodel=FIARSE(biased=biased, dynamic=dynamic),
        capacities=levels,
        cohort=cohorts,
        local=Local(steps=4, lr=0.2, batch=1),
        engine=engine,
    )
    own = box(x, functions, levels, cohorts, 4, 0.2, biased, dynamic)
    found = models(experiment, 5)
    np.testing.assert_allclose(found, own, rtol=0, atol=1e-12)
    others = [(not biased, dynamic), (biased, not dynamic)]
    for other in others:  # else the test could not tell the four apart
        assert np.abs(box(x, functions, levels, cohorts, 4, 0.2, *other) - own).max() > 1e-3
