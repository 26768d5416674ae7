"""Heterogeneous quadratics, where the end is known: x_i moves r_i = 1 - (1 - lr a_i)^K_i of its way
to b_i.

Runs to an end have more rounds than they need until nothing moves by 1e-13, and not many more.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedloom import FedAvg, Local
from fedloom.algorithms import FedACG, FedCM, Scaffold, fedprox
from tiny import A, B, models, quadratics, trace

LR, K = 0.1, 5
MINIMISER = (A * B).sum(0) / A.sum(0)  # of the plain mean of the f_i


def reach(steps):
    """r_i for a number of steps, or one number per client; (clients, d)."""
    return 1 - (1 - LR * A) ** np.reshape(steps, (-1, 1))


def test_fedavg_ends_in_its_biased_fixed_point():
    r = reach(K)
    biased = (r * B).sum(0) / r.sum(0)
    assert np.abs(biased - MINIMISER).max() > 0.1  # it would be no test otherwise
    end = models(quadratics(FedAvg()), 80)[-1]
    np.testing.assert_allclose(end, biased, rtol=0, atol=1e-12)


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_fedavg_weighs_clients_by_their_examples_or_alike(weighting):
    sizes = np.array([1, 4, 2, 7])
    r = reach(sizes)  # one epoch of batches of one example
    w = sizes.reshape(-1, 1) if weighting == "examples" else np.ones((4, 1))
    local = Local(epochs=1, batch=1, lr=LR)
    end = models(quadratics(FedAvg(), sizes, local=local, weighting=weighting), 90)[-1]
    np.testing.assert_allclose(end, (w * r * B).sum(0) / (w * r).sum(0), rtol=0, atol=1e-12)


@pytest.mark.slow
def test_server_lr_changes_the_pace_and_not_the_end():
    r = reach(K)
    first = models(quadratics(FedAvg(server_lr=0.5)), 1)[-1]
    np.testing.assert_allclose(first, 0.5 * (r * B).mean(0), rtol=0, atol=1e-14)
    end = models(quadratics(FedAvg(server_lr=0.5)), 150)[-1]
    np.testing.assert_allclose(end, (r * B).sum(0) / r.sum(0), rtol=0, atol=1e-12)


def test_fedavg_with_one_step_is_sgd_on_the_weighted_mean():
    sizes = np.array([1, 2, 5, 3])
    w = (sizes / sizes.sum()).reshape(-1, 1)
    local = Local(steps=1, lr=LR, batch=None)
    got = models(quadratics(FedAvg(), sizes, local=local), 6)
    x = np.zeros(2)
    for t in range(6):
        x = x - LR * (w * A * (x - B)).sum(0)
        np.testing.assert_allclose(got[t + 1], x, rtol=0, atol=1e-14)


@pytest.mark.parametrize("option", [1, 2])
def test_scaffold_reaches_the_minimiser(option):
    end = models(quadratics(Scaffold(option=option)), 60)[-1]
    np.testing.assert_allclose(end, MINIMISER, rtol=0, atol=1e-12)


@pytest.mark.parametrize("option", [1, 2])
def test_scaffold_reaches_the_minimiser_with_partial_participation(option):
    experiment = quadratics(Scaffold(option=option), cohort=3, local=Local(steps=3, lr=LR))
    end = models(experiment, 90)[-1]
    np.testing.assert_allclose(end, MINIMISER, rtol=0, atol=1e-12)


def test_fedacgs_momentum_is_the_last_move():
    before = None
    for loop in trace(quadratics(FedACG(lam=0.85, beta=0.1), cohort=3), 25):
        if before is not None:
            torch.testing.assert_close(
                loop.state.srv.m, loop.state.srv.x - before, rtol=0, atol=1e-14
            )
        before = loop.state.srv.x
    assert float(loop.state.srv.m.abs().max()) > 1e-6


def test_fedprox_ends_in_its_own_fixed_point():
    # a step is y - lr (a (y - b) + mu (y - x)): a share q of the way to the pulled minimiser
    mu = 0.7
    q = 1 - (1 - LR * (A + mu)) ** K
    share = q * A / (A + mu)  # of the way from x to b
    end = models(quadratics(fedprox(mu=mu)), 75)[-1]
    np.testing.assert_allclose(end, (share * B).sum(0) / share.sum(0), rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "rounds"), [(0.1, 600), (0.5, 200), (1.0, 240)])
def test_fedcm_decays_weights_one_over_alpha_times_as_much(alpha, rounds):
    # at rest D = 0, so that alpha times the gradient is all that holds against the decay
    wd = 0.05
    local = Local(steps=1, lr=LR, batch=None, weight_decay=wd)
    end = models(quadratics(FedCM(alpha=alpha), local=local), rounds)[-1]
    want = (A * B).mean(0) / (A.mean(0) + wd / alpha)
    assert alpha == 1 or np.abs(want - (A * B).mean(0) / (A.mean(0) + wd)).max() > 1e-3
    np.testing.assert_allclose(end, want, rtol=0, atol=1e-12)
