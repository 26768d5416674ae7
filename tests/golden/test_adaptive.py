"""Golden numbers of the adaptive methods: FAFED's Theorem 1, and one problem for every optimiser.

Typed from the house's specification (adaptive methods, sections 2 and 4): float64 computations of
their own, older than this code.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from problems import problem_q, theorem_1

from fedloom.algorithms import STEM, NaiveAdaptive, fedadagrad, fedadam, fedams, fedyogi
from tiny import trace


def path(experiment, rounds):
    return [float(loop.state.srv.x) for loop in trace(experiment, rounds)][1:]


KNOBS = {"server_lr": 0.1, "beta1": 0.9, "beta2": 0.99}
GOLDEN = {
    "fedadam": (
        fedadam(**KNOBS, tau=0.01),
        [0.9212166514068403, 0.8084545754005134, 0.6742312224578909],
    ),
    "fedadam, v0 = 0": (
        fedadam(**KNOBS, tau=0.01, v0=0.0),
        [0.9194174757281554, 0.8052222347898476, 0.6697680887488685],
    ),
    "fedadagrad": (
        fedadagrad(server_lr=0.1, beta1=0.0, tau=0.01),
        [0.9023806109774081, 0.8359577034268375, 0.7831583246285628],
    ),
    "fedyogi": (
        fedyogi(**KNOBS, tau=0.01),
        [0.92123416800727, 0.8087500427977653, 0.6751978224861125],
    ),
    "fedams, option 1": (
        fedams(**KNOBS, eps=1e-3, option=1),
        [0.9, 0.7657250405145102, 0.6101896523913599],
    ),
    "fedams, option 2": (
        fedams(**KNOBS, eps=1e-3, option=2),
        [0.9023529411764707, 0.7704136027584298, 0.6171795744799269],
    ),
    "fedams, the authors' code": (
        fedams(**KNOBS, eps=0.0, option=2, start=1e-3, corrected=True),
        [0.9, 0.800306241992519, 0.7011690433794983],
    ),
    # one round is two steps: x3 and x5 of the specification
    "stem": (STEM(alpha=0.1), [0.391, 0.16188000000000002]),
    "naive_adaptive": (NaiveAdaptive(beta=0.5), [0.9983099457987212, 0.9983873486824644]),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_numbers_of_problem_q(name):
    algorithm, want = GOLDEN[name]
    np.testing.assert_allclose(path(problem_q(algorithm), len(want)), want, rtol=0, atol=1e-14)


def test_the_second_moments_of_fedadam_on_problem_q():
    want = [0.0018212500000000006, 0.0033040252219559228, 0.0044817403321389775]
    loops = trace(problem_q(fedadam(**KNOBS, tau=0.01)), 3)
    got = [float(loop.state.srv.own.v) for loop in loops][1:]
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-16)


def test_the_second_moments_of_fedams_on_problem_q():
    want = [0.0017222500000000007, 0.003149027500000002, 0.004226452294581017]
    loops = trace(problem_q(fedams(**KNOBS, eps=1e-3)), 3)
    got = [float(loop.state.srv.own.v) for loop in loops][1:]
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-16)


def test_the_moments_that_stem_keeps_on_problem_q():
    # section 4: after t = 2, m = 1.59; after t = 4, m = 1.0092
    got = [float(loop.state.srv.m) for loop in trace(problem_q(STEM(alpha=0.1)), 2)]
    np.testing.assert_allclose(got, [2.5, 1.59, 1.0091999999999999], rtol=0, atol=1e-14)


def test_what_naive_clients_remember_on_problem_q():
    (loop,) = [*trace(problem_q(NaiveAdaptive(beta=0.5)), 1)][1:]
    held = loop.memory.get(range(2))
    got = [float(held[i].alg.v) for i in range(2)]
    np.testing.assert_allclose(got, [0.6185786437626906, 24.544415587728423], rtol=1e-15)


# ------------------------------------------------------------------------- Theorem 1 (section 2)
def walked(t, lr=0.1, beta=0.5):
    """10 + sum over s <= t of lr / (3 sqrt(1 - beta^s)): never back to 0."""
    return 10 + sum(lr / (3 * math.sqrt(1 - beta**s)) for s in range(1, t + 1))


def test_the_naive_method_walks_away_by_the_golden_numbers():
    want = [
        10.047140452079104,
        10.085630470025079,
        10.121265302280069,
        10.155691820913024,
        10.189558521446408,
    ]
    got = path(theorem_1(NaiveAdaptive(beta=0.5)), 100)
    np.testing.assert_allclose(got[:5], want, rtol=0, atol=1e-14)
    np.testing.assert_allclose(got[-1], 13.356750136457288, rtol=0, atol=1e-12)
    np.testing.assert_allclose(got, [walked(t) for t in range(1, 101)], rtol=0, atol=1e-12)


def test_two_steps_at_a_time_walk_as_far():
    got = path(theorem_1(NaiveAdaptive(beta=0.5), q=2), 2)
    np.testing.assert_allclose(got, [10.085630470025079, 10.155691820913024], rtol=0, atol=1e-14)


@pytest.mark.parametrize(("lr", "beta"), [(0.01, 0.9), (1.0, 0.99), (0.001, 0.0)])
def test_no_rate_and_no_memory_bring_the_naive_method_back(lr, beta):
    got = path(theorem_1(NaiveAdaptive(beta=beta), lr=lr), 40)
    np.testing.assert_allclose(got, [walked(t, lr, beta) for t in range(1, 41)], rtol=1e-13)
    assert all(b > a for a, b in itertools.pairwise(got))


@pytest.mark.slow
def test_a_thousand_rounds_of_theorem_1():
    naive = path(theorem_1(NaiveAdaptive(beta=0.5)), 1000)
    np.testing.assert_allclose(naive[-1], 43.35675013645559, rtol=0, atol=1e-10)
    slower = path(theorem_1(NaiveAdaptive(beta=0.9), lr=0.01), 1000)
    np.testing.assert_allclose(slower[-1], 13.363805711355994, rtol=0, atol=1e-10)
