"""Heterogeneous quadratics, where the end is known: x_i moves r_i = 1 - (1 - lr a_i)^K_i of its way
to b_i.

Runs to an end have more rounds than they need until nothing moves by 1e-13, and not many more.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedloom import FedAvg, Local, LocalSGD
from fedloom.algorithms import FedACG, FedCM, Scaffold, fedavgm, fedprox
from fedloom.federation.schedules import Exponential, Milestones
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
@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_scaffold_reaches_the_weighted_minimiser_from_unequal_work(option, weighting):
    # at rest every client stands still, so that K_i does not matter
    w = np.array((2, 4, 3, 5) if weighting == "examples" else (1, 1, 1, 1), float)[:, None]
    experiment = quadratics(
        Scaffold(option=option),
        (2, 4, 3, 5),
        local=Local(epochs=1, batch=1, lr=LR),
        weighting=weighting,
    )
    end = models(experiment, 80)[-1]
    np.testing.assert_allclose(end, (w * A * B).sum(0) / (w * A).sum(0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("option", [1, 2])
def test_scaffold_reaches_the_minimiser_with_partial_participation(option):
    experiment = quadratics(Scaffold(option=option), cohort=3, local=Local(steps=3, lr=LR))
    end = models(experiment, 90)[-1]
    np.testing.assert_allclose(end, MINIMISER, rtol=0, atol=1e-12)


@pytest.mark.parametrize("option", [1, 2])
def test_scaffolds_c_is_the_weighted_mean_of_all_c_i(option):
    sizes = (1, 3, 2, 5)
    experiment = quadratics(Scaffold(option=option), sizes, cohort=2, seed=4)
    for loop in trace(experiment, 12):
        held = loop.memory.get(range(4))
        total = sum((sizes[i] * m.alg.c for i, m in held.items()), torch.zeros(2).double())
        torch.testing.assert_close(loop.state.srv.c, total / sum(sizes), rtol=0, atol=1e-13)
    assert len(held) == 4


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


# ------------------------------------------------------------------ recurrences, written in numpy
SIZES = (2, 5, 3, 4)
COHORTS = [[0, 1, 3], [2], [1, 2], [0, 1, 2, 3], [0, 3]]
SCHEDULE = Exponential(decay=0.8, step_decay=0.9)


class Reference:
    """The five papers' boxes on the quadratics: partial cohorts, K_i = SIZES, weights SIZES."""

    def __init__(self, schedule=SCHEDULE):
        self.schedule = schedule
        self.x, self.m = np.zeros(2), np.zeros(2)
        self.c, self.c_i = np.zeros(2), np.zeros((4, 2))

    def client(self, i, t, start, pull=0.0, shift=0.0):
        """-> y_K - start, and the sum of the rates."""
        y, rates = start.copy(), [LR * self.schedule(t, k) for k in range(SIZES[i])]
        for rate in rates:
            y = y - rate * (A[i] * (y - B[i]) + pull * (y - start) + shift)
        return y - start, sum(rates)

    def mean(self, t, start, **options):
        members = COHORTS[t % len(COHORTS)]
        w = np.array([SIZES[i] for i in members], float)
        moves = np.stack([self.client(i, t, start, **options)[0] for i in members])
        return (w[:, None] * moves).sum(0) / w.sum()

    def fedavg(self, t, server_lr):
        self.x = self.x + server_lr * self.mean(t, self.x)

    def fedprox(self, t, mu, server_lr):
        self.x = self.x + server_lr * self.mean(t, self.x, pull=mu)

    def fedavgm(self, t, beta, server_lr):
        self.m = beta * self.m + self.mean(t, self.x)
        self.x = self.x + server_lr * self.m

    def fedacg(self, t, lam, beta):
        self.m = lam * self.m + self.mean(t, self.x + lam * self.m, pull=beta)
        self.x = self.x + self.m

    def scaffold(self, t, option, server_lr):
        members = COHORTS[t % len(COHORTS)]
        new, moves = self.c_i.copy(), []
        for i in members:
            move, rates = self.client(i, t, self.x, shift=self.c - self.c_i[i])
            moves.append(move)
            two = self.c_i[i] - self.c - move / rates
            new[i] = A[i] * (self.x - B[i]) if option == 1 else two
        w = np.array([SIZES[i] for i in members], float)[:, None]
        p = np.array(SIZES)[:, None] / sum(SIZES)
        self.c = self.c + (p * (new - self.c_i)).sum(0)
        self.x, self.c_i = self.x + server_lr * (w * np.stack(moves)).sum(0) / w.sum(), new


CASES = {
    "fedavg": (FedAvg(server_lr=0.7), {"server_lr": 0.7}),
    "fedprox": (fedprox(mu=0.3, server_lr=1.2), {"mu": 0.3, "server_lr": 1.2}),
    "fedavgm": (fedavgm(beta=0.6, server_lr=0.8), {"beta": 0.6, "server_lr": 0.8}),
    "fedacg": (FedACG(lam=0.6, beta=0.2), {"lam": 0.6, "beta": 0.2}),
    "scaffold": (Scaffold(server_lr=0.9), {"server_lr": 0.9, "option": 2}),
    "scaffold one": (Scaffold(option=1), {"server_lr": 1.0, "option": 1}),
}


@pytest.mark.parametrize("schedule", [SCHEDULE, Milestones(at=(2, 5), factor=0.5)])
@pytest.mark.parametrize("name", CASES)
def test_a_method_follows_its_recurrence(name, schedule):
    algorithm, options = CASES[name]
    own = Reference(schedule)
    local = Local(epochs=1, batch=1, lr=LR, schedule=schedule)
    experiment = quadratics(algorithm, SIZES, cohort=COHORTS, local=local)
    for t, loop in enumerate(trace(experiment, 12)):
        np.testing.assert_allclose(loop.state.srv.x.numpy(), own.x, rtol=0, atol=1e-13)
        if name.startswith("scaffold"):
            np.testing.assert_allclose(loop.state.srv.c.numpy(), own.c, rtol=0, atol=1e-12)
            for i, held in loop.memory.get(range(4)).items():
                np.testing.assert_allclose(held.alg.c.numpy(), own.c_i[i], rtol=0, atol=1e-12)
        getattr(own, name.split()[0])(t, **options)


def test_fedacg_without_a_pull_is_fedavgm_from_the_lookahead():
    own = Reference()
    local = Local(epochs=1, batch=1, lr=LR, schedule=SCHEDULE)
    experiment = quadratics(FedACG(lam=0.7, beta=0.0), SIZES, cohort=COHORTS, local=local)
    for t, loop in enumerate(trace(experiment, 10)):
        np.testing.assert_allclose(loop.state.srv.x.numpy(), own.x, rtol=0, atol=1e-13)
        phi = own.x + 0.7 * own.m
        own.m = 0.7 * own.m + own.mean(t, phi)
        own.x = own.x + own.m


def test_fedacg_and_fedavgm_agree_where_clients_forget_their_start():
    # lr a = 1: one step lands on b_i from anywhere, except that delta is measured from the start
    lam = 0.5
    flat = np.ones((4, 2))
    pairs = [(a[None], b[None]) for a, b in zip(flat, B, strict=True)]
    from fedloom.data import from_clients

    data = from_clients(pairs, dtype=torch.float64)
    local = Local(steps=1, lr=1.0, batch=None)
    ahead = models(quadratics(FedACG(lam=lam, beta=0.0), data=data, local=local), 6)
    x, m = np.zeros(2), np.zeros(2)
    for t in range(6):
        m = B.mean(0) - x  # theta^t is the mean of the local models, whatever lam is
        x = x + m
        np.testing.assert_allclose(ahead[t + 1], x, rtol=0, atol=1e-14)


def test_local_sgd_is_fedavg_with_server_rate_one():
    a, b = models(quadratics(LocalSGD()), 5), models(quadratics(FedAvg()), 5)
    assert (a == b).all()


@pytest.mark.parametrize(("alpha", "rounds"), [(0.1, 600), (0.5, 200), (1.0, 240)])
def test_fedcm_decays_weights_one_over_alpha_times_as_much(alpha, rounds):
    # at rest D = 0, so that alpha times the gradient is all that holds against the decay
    wd = 0.05
    local = Local(steps=1, lr=LR, batch=None, weight_decay=wd)
    end = models(quadratics(FedCM(alpha=alpha), local=local), rounds)[-1]
    want = (A * B).mean(0) / (A.mean(0) + wd / alpha)
    assert alpha == 1 or np.abs(want - (A * B).mean(0) / (A.mean(0) + wd)).max() > 1e-3
    np.testing.assert_allclose(end, want, rtol=0, atol=1e-12)
