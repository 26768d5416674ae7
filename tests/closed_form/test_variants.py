"""What variants of a method must be, beside the limits of test_limits.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedloom import FedAvg, Local, LocalSGD
from fedloom.algorithms import (
    FAFED,
    STEM,
    FedCM,
    fedadagrad,
    fedams,
)
from fedloom.core.net import Variables
from fedloom.data import from_clients
from fedloom.errors import ConfigError
from fedloom.objectives import Function
from fedloom.wrappers import (
    ServerAdagrad,
    ServerAdam,
    ServerOpt,
)
from tiny import A, B, quadratics, trace


def test_stem_without_memory_is_fedavg_after_its_first_step():
    # alpha = 1: d = g. Every client starts where the mean gradient's step led, then plain steps
    local = Local(steps=3, lr=0.05, batch=1)
    one = [loop.state.srv.x for loop in trace(quadratics(STEM(alpha=1.0), local=local), 6)]
    first = 0.05 * torch.tensor((A * B).mean(0))  # -lr times the mean gradient at 0
    other = quadratics(FedAvg(), local=local, model=Variables(first))
    two = [loop.state.srv.x for loop in trace(other, 6)]
    for a, b in zip(one[1:], two[1:], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14)


def test_fafed_with_one_constant_matrix_is_stem():
    # a huge rho makes A = rho for all: FAFED at rate lr rho is STEM at rate lr, but for line 3,
    # which has no A unless it is asked for
    rho = 1e9
    fafed = FAFED(alpha=0.3, rho=rho, precondition_first_step=True)
    one = quadratics(fafed, cohort=3, local=Local(steps=3, lr=0.05 * rho, batch=1))
    two = quadratics(STEM(alpha=0.3), cohort=3, local=Local(steps=3, lr=0.05, batch=1))
    for a, b in zip(trace(one, 8), trace(two, 8), strict=True):
        torch.testing.assert_close(a.state.srv.x, b.state.srv.x, rtol=0, atol=1e-6)


def test_fedcm_begins_as_fedavg_at_a_smaller_rate():
    local, slower = Local(steps=3, lr=0.1, batch=1), Local(steps=3, lr=0.03, batch=1)
    one = [*trace(quadratics(FedCM(alpha=0.3), local=local), 1)][-1].state.srv.x
    two = [*trace(quadratics(FedAvg(), local=slower), 1)][-1].state.srv.x
    torch.testing.assert_close(one, two, rtol=0, atol=1e-15)


def test_adagrad_is_adam_that_forgets_nothing():
    # beta2 weighs old and new alike: with rate sqrt(1 - beta2) the sums are those of AdaGrad
    beta2 = 1 - 1e-12
    one = quadratics(ServerOpt(inner=LocalSGD(), opt=ServerAdagrad(lr=0.1, tau=1e-30, v0=0.0)))
    scale = 1e-12**0.5
    opt = ServerAdam(lr=0.1 * scale, beta1=0.0, beta2=beta2, tau=1e-30, v0=0.0)
    two = quadratics(ServerOpt(inner=LocalSGD(), opt=opt))
    for a, b in zip(trace(one, 5), trace(two, 5), strict=True):
        torch.testing.assert_close(a.state.srv.x, b.state.srv.x, rtol=0, atol=1e-4)


def test_fedams_never_forgets_its_largest_second_moment():
    top = None
    for loop in trace(quadratics(fedams(server_lr=0.1)), 25):
        if top is not None:
            assert bool((loop.state.srv.own.vhat >= top).all())
            assert bool((loop.state.srv.own.vhat >= loop.state.srv.own.v).all())
            assert float(loop.state.srv.own.vhat.min()) >= 1e-3
        top = loop.state.srv.own.vhat
    assert bool((loop.state.srv.own.vhat > loop.state.srv.own.v).any()), (
        "it would be no test otherwise"
    )


def test_fedadagrad_takes_ever_smaller_steps_along_a_constant_gradient():
    # lr_t = server_lr / sqrt(t): the sum of t equal squares
    slope = from_clients([(np.full((1, 2), -1.0), np.zeros((1, 2)))], dtype=torch.float64)
    experiment = quadratics(
        fedadagrad(server_lr=0.1, tau=1e-12, v0=0.0),
        data=slope,
        objective=Function(f=lambda x, a, b: (a * x).sum(1).mean()),
        local=Local(steps=1, lr=0.1, batch=1),
    )
    path = [float(loop.state.srv.x[0]) for loop in trace(experiment, 9)]
    np.testing.assert_allclose(np.diff(path), 0.1 / np.sqrt(np.arange(1, 10)), rtol=1e-9)


# ------------------------------------------------------------------------------- what has no sense
def test_fedams_without_any_floor_is_refused():
    with pytest.raises(ConfigError, match=r"eps.*start.*above 0"):
        fedams(eps=0.0)
    fedams(eps=0.0, start=1e-3)
