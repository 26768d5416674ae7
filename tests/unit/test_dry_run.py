"""What `--dry-run` counts and times: every operation, every evaluation, in a bounded time."""

from __future__ import annotations

import time

import pytest
import torch

from fedloom.cli import dry_run
from fedloom.cli.dry_run import estimate, measure
from fedloom.config import resolve
from fedloom.data import from_clients
from fedloom.experiment import Experiment
from fedloom.federation.local import Local

D, K, TESTS = 6, 3, 11
SIZES = (8, 12)


def made(rounds=4, **parts):
    draw = torch.Generator().manual_seed(0)
    some = lambda n: (torch.randn(n, D, generator=draw), torch.arange(n) % K)
    from fedloom.algorithms import FedAvg

    given = {
        "algorithm": FedAvg(),
        "model": torch.nn.Linear(D, K),
        "data": from_clients([some(n) for n in SIZES], test=some(TESTS)),
        "local": Local(epochs=2, batch=4, lr=0.1),
        "rounds": rounds,
        "cohort": 2,
        "engine": "serial",
        "device": "cpu",
    }
    return Experiment(**given | parts)


def test_operations_are_those_of_every_gradient_and_every_evaluation():
    """A linear model: D K multiplications forward, and as many for the gradient of its weights."""
    cost = measure(made())
    gradients, evaluations = 4 * 2 * sum(SIZES), 4 * TESTS
    assert cost.operations == 2 * D * K * (2 * gradients + evaluations)
    assert cost.evaluated == evaluations and cost.client_rounds == 8


def test_a_method_with_two_gradients_a_step_has_twice_the_operations():
    from fedloom.algorithms import FedSAM

    one, two = (
        measure(made(algorithm=a, data=made().data)) for a in (made().algorithm, FedSAM(rho=0.1))
    )
    tests = 2 * D * K * 4 * TESTS
    assert two.operations - tests == 2 * (one.operations - tests)


def test_an_evaluation_is_timed_and_not_found_in_a_cache():
    def slow(outputs, targets):
        time.sleep(0.02)
        return (outputs.argmax(1) == targets).float()

    cost = measure(made(metrics={"slow": slow}))
    assert cost.seconds_evaluation >= 4 * 0.02


def test_another_devices_speed_is_arithmetic_and_nothing_is_timed(monkeypatch):
    monkeypatch.setattr(dry_run, "_timed", lambda *_: pytest.fail("timed"))
    cost = measure(made(), speed=1e6)
    assert cost.seconds == pytest.approx(cost.operations / 1e6)


def test_of_a_large_model_one_step_on_few_examples_is_timed(monkeypatch):
    monkeypatch.setattr(dry_run, "_SHORT", 2.0 * D * K * 2 * 3)
    monkeypatch.setattr(dry_run, "_train", lambda *_: pytest.fail("a round"))
    cost = measure(made())
    assert cost.by == "by a step on 3 examples" and 0 < cost.seconds_evaluation < cost.seconds


@pytest.mark.parametrize("load", [0.0, 9.0])
def test_a_busy_machine_is_named(monkeypatch, load):
    monkeypatch.setattr(dry_run.os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(dry_run, "processors", lambda: 2)
    said = estimate(resolve("digits", ["rounds=2"]), 1)
    assert ("9 programs share 2 processors" in said) == (load > 0)
