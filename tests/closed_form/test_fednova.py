"""FedNova: unequal K_i change the pace, and no longer the end."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedloom import FedAvg, Local
from fedloom.algorithms import FedNova
from fedloom.core.net import Variables
from fedloom.federation.schedules import Exponential
from fedloom.objectives import Function
from tiny import A, B, models, near, quadratics

SIZES = np.array([1, 4, 2, 7])  # of examples, which are the K_i of an epoch of batches of one
WEIGHTS = {"examples": SIZES / SIZES.sum(), "uniform": np.full(4, 0.25)}
COHORTS = [[0, 1, 3], [2], [1, 2], [0, 1, 2, 3], [0, 3]]


def run(algorithm, rounds, weighting, lr=0.1, **changes):
    local = Local(epochs=1, batch=1, lr=lr)
    return models(quadratics(algorithm, SIZES, local=local, weighting=weighting, **changes), rounds)


@pytest.mark.parametrize("weighting", WEIGHTS)
def test_linear_functions_move_along_their_own_weighted_mean(weighting):
    # f_i(x) = <a_i, x>: local steps do not bend, so the move is tau_eff times that of one step
    linear = Function(f=lambda x, a, b: (a * x).sum(1).mean())
    model = Variables(torch.zeros(2, dtype=torch.float64))
    p = WEIGHTS[weighting][:, None]
    mean, tau = (p * A).sum(0), float((p[:, 0] * SIZES).sum())
    path = run(FedNova(server_lr=0.7), 4, weighting, objective=linear, model=model)
    near(path, -0.1 * 0.7 * tau * np.arange(5)[:, None] * mean)
    # FedAvg's direction is that of the K_i-weighted mean
    other = run(FedAvg(), 1, weighting, objective=linear, model=model)[1]
    near(other, -0.1 * (p * SIZES[:, None] * A).sum(0))
    assert np.abs(other[0] / other[1] - mean[0] / mean[1]) > 0.05


@pytest.mark.slow
@pytest.mark.parametrize("weighting", WEIGHTS)
def test_the_fixed_point(weighting):
    # each client's mean step is r_i / K_i of its way to b_i, with r_i = 1 - (1 - lr a_i)^K_i
    p, k = WEIGHTS[weighting][:, None], SIZES[:, None]
    share = p * (1 - (1 - 0.1 * A) ** k) / k
    near(run(FedNova(), 90, weighting)[-1], (share * B).sum(0) / share.sum(0))


def fixed_point(p, lr, nova):
    """Of full participation, by the formula above; FedAvg's has no 1 / K_i."""
    k = SIZES[:, None]
    share = p[:, None] * (1 - (1 - lr * A) ** k) / (k if nova else 1)
    return (share * B).sum(0) / share.sum(0)


@pytest.mark.parametrize("weighting", WEIGHTS)
def test_what_is_left_of_the_bias_vanishes_with_the_rate_and_fedavgs_does_not(weighting):
    p = WEIGHTS[weighting]
    minimiser = (p[:, None] * A * B).sum(0) / (p[:, None] * A).sum(0)
    bias = {
        nova: [np.abs(fixed_point(p, lr, nova) - minimiser).max() for lr in (1e-2, 1e-3, 1e-4)]
        for nova in (True, False)
    }
    assert bias[True][2] < 1e-2 * bias[False][2]
    near(np.array(bias[True][1:]) / bias[True][:-1], 0.1, 0.01)  # in proportion to the rate
    assert bias[False][2] > 0.9 * bias[False][1] > 0.1
    # and the run is there: one small step from each fixed point goes nowhere
    for algorithm, nova in ((FedNova(), True), (FedAvg(), False)):
        at = fixed_point(p, 1e-3, nova)
        model = Variables(torch.tensor(at))
        near(run(algorithm, 1, weighting, lr=1e-3, model=model)[1], at, 1e-14)


def test_equal_steps_are_fedavg():
    local = Local(steps=5, lr=0.1, batch=1)
    one, other = (
        models(quadratics(a, SIZES, local=local, cohort=3), 6) for a in (FedNova(), FedAvg())
    )
    near(one, other, 1e-14)


# ------------------------------------------------------------------- the weights of the gradients
def weights_of(k, momentum, schedule=lambda t, k: 1.0, t=0):
    """How much each of K gradients weighs in x_0 - x_K: a_i of the paper, in units of the rate.

    The gradient of step j is in every later step's momentum, momentum^(s - j) of it.
    """
    return [sum(schedule(t, s) * momentum ** (s - j) for s in range(j, k)) for j in range(k)]


def test_the_weights_of_heavy_ball_are_the_papers():
    # Wang et al., section 3: (1 - beta^(K - j)) / (1 - beta), which sum to
    # (K - beta (1 - beta^K) / (1 - beta)) / (1 - beta)
    for k, beta in ((1, 0.9), (5, 0.9), (7, 0.3)):
        closed = (k - beta * (1 - beta**k) / (1 - beta)) / (1 - beta)
        near(sum(weights_of(k, beta)), closed)


@pytest.mark.parametrize("weighting", WEIGHTS)
@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_linear_functions_keep_their_weighted_mean_whatever_the_local_rule(weighting, momentum):
    # d_i = delta_i / ||a_i||_1 is -a_i's gradient for any weights; tau_eff is their mean sum
    linear = Function(f=lambda x, a, b: (a * x).sum(1).mean())
    model = Variables(torch.zeros(2, dtype=torch.float64))
    schedule = Exponential(decay=0.9, step_decay=0.7)
    local = Local(epochs=1, batch=1, lr=0.1, momentum=momentum, schedule=schedule)
    experiment = quadratics(
        FedNova(), SIZES, local=local, weighting=weighting, objective=linear, model=model
    )
    p = WEIGHTS[weighting]
    x = np.zeros(2)
    for t, found in enumerate(models(experiment, 3)):
        near(found, x)
        tau = sum(
            share * sum(weights_of(k, momentum, schedule, t))
            for share, k in zip(p, SIZES, strict=True)
        )
        x = x - 0.1 * tau * (p[:, None] * A).sum(0)


def test_a_falling_rate_leaves_the_fixed_point_near_the_minimiser():
    # dividing by K_i alone would count a client of many small steps for less than its share
    p = WEIGHTS["examples"]
    minimiser = (p[:, None] * A * B).sum(0) / (p[:, None] * A).sum(0)
    schedule = Exponential(decay=1.0, step_decay=0.5)
    local = Local(epochs=1, batch=1, lr=1e-3, schedule=schedule)
    model = Variables(torch.tensor(minimiser))
    moved = models(quadratics(FedNova(), SIZES, local=local, model=model), 1)
    plain = models(quadratics(FedAvg(), SIZES, local=local, model=model), 1)
    assert np.abs(moved[1] - moved[0]).max() < 0.02 * np.abs(plain[1] - plain[0]).max()


@pytest.mark.parametrize("weighting", WEIGHTS)
def test_rounds_with_momentum_follow_the_formula(weighting):
    beta, schedule = 0.7, Exponential(decay=0.9, step_decay=0.95)
    local = Local(epochs=1, batch=1, lr=0.1, momentum=beta, schedule=schedule)
    experiment = quadratics(FedNova(), SIZES, cohort=COHORTS, local=local, weighting=weighting)
    x = np.zeros(2)
    for t, found in enumerate(models(experiment, 11)):
        near(found, x)
        members = COHORTS[t % len(COHORTS)]
        p = WEIGHTS[weighting][members] / WEIGHTS[weighting][members].sum()
        mean, tau = np.zeros(2), 0.0
        for share, i in zip(p, members, strict=True):
            y, m = x.copy(), np.zeros(2)
            for k in range(SIZES[i]):
                m = beta * m + A[i] * (y - B[i])
                y = y - 0.1 * schedule(t, k) * m
            norm = sum(weights_of(SIZES[i], beta, schedule, t))
            mean += share * (y - x) / norm
            tau += share * norm
        x = x + tau * mean
