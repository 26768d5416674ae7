"""Example-level privacy (local.dp) against its formula: clipped sums, noise, batches, accounts."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedloom import Evaluation, Experiment, Local
from fedloom.algorithms import FedAvg
from fedloom.core.net import Variables
from fedloom.data import from_clients
from fedloom.errors import CompositionError, ConfigError
from fedloom.federation.clock import Asynchronous
from fedloom.federation.private_examples import ExamplePrivacy
from fedloom.objectives import Function
from tiny import models, quadratics, small

pytestmark = pytest.mark.usefixtures("accounts_at_hand")  # a step costs 0.5
TINY = 1e-12  # noise that no digit of a test shows


def linear(noise: float, clip: float, steps: int = 1, **changes: Any) -> Experiment:
    """Two clients with f_j(x) = a_j x: the gradient of an example is its row a_j (2,)."""
    rows = [np.array([[3.0, 4.0], [0.3, 0.4], [-6.0, 8.0]]), np.array([[1.0, 0.0], [0.0, 2.0]])]
    dp = ExamplePrivacy(noise=noise, clip=clip)
    settings = {
        "data": from_clients([(a, a) for a in rows], dtype=torch.float64),
        "objective": Function(f=lambda x, a, b: (a * x).sum(1).mean()),
        "local": Local(steps=steps, lr=0.5, batch=None, dp=dp),
    }
    return quadratics(FedAvg(), **(settings | changes))


@pytest.mark.parametrize("engine", ["serial", "vectorised:2"])
def test_each_gradient_is_shortened_alone(engine: str) -> None:
    """With q = 1 and hardly any noise: (0.6, 0.8), (0.3, 0.4), (-0.6, 0.8) at client 0."""
    x = models(linear(TINY, 1.0, engine=engine), 1)[-1]
    clipped = [np.array([0.3, 2.0]) / 3, np.array([1.0, 1.0]) / 2]
    mean = (3 * clipped[0] + 2 * clipped[1]) / 5
    np.testing.assert_allclose(x, -0.5 * mean, atol=1e-10)


@pytest.mark.parametrize("engine", ["serial", "vectorised:1"])
def test_the_noise_has_its_deviation(engine: str) -> None:
    """x is a sum of K steps of noise alone: deviation sqrt(K) lr sigma C / B."""
    data = from_clients([(np.zeros((4, 1)), np.zeros((4, 1)))], dtype=torch.float64)
    d, steps = 20_000, 3
    parts = {
        "model": Variables(torch.zeros(d, dtype=torch.float64)),
        "data": data,
        "objective": Function(f=lambda x, a, b: (a.sum() * x).sum()),
    }
    x = models(linear(2.0, 0.25, steps, engine=engine, **parts), 1)[-1]
    assert x.std() == pytest.approx(math.sqrt(steps) * 0.5 * 2.0 * 0.25 / 4, rel=0.02)
    assert abs(x.mean()) < 4 * x.std() / math.sqrt(d)


def test_every_example_is_in_a_batch_by_itself() -> None:
    """Sizes are binomial; two examples are together as often as chance has it; some are empty."""
    own, share, steps = torch.arange(100, 140), 0.1, 4000
    drawn = ExamplePrivacy().batches(own, share, steps, 3, 0, 1)
    there = torch.zeros(steps, 40)
    for k, batch in enumerate(drawn):
        there[k, batch - 100] = 1
    sizes = there.sum(1)
    assert float(sizes.mean()) == pytest.approx(4.0, abs=0.1)
    assert float(sizes.var()) == pytest.approx(40 * 0.1 * 0.9, rel=0.1)
    assert (there.mean(0) - 0.1).abs().max() < 5 * math.sqrt(0.09 / steps)
    together = float((there[:, 0] * there[:, 1]).mean())
    assert together == pytest.approx(0.01, abs=5 * math.sqrt(0.01 / steps))
    assert (sizes == 0).any()
    again = ExamplePrivacy().batches(own, share, steps, 3, 0, 1)
    assert all(torch.equal(a, b) for a, b in zip(drawn, again, strict=True))
    other = ExamplePrivacy().batches(own, share, steps, 3, 1, 1)
    assert any(len(a) != len(b) for a, b in zip(drawn, other, strict=True))


@pytest.mark.parametrize("engine", ["serial", "vectorised:2"])
def test_an_empty_batch_is_a_step_of_noise(engine: str) -> None:
    """The mean is over the expected size, not over that of the batch."""
    local = Local(steps=40, lr=0.5, batch=1, dp=ExamplePrivacy(noise=TINY, clip=100.0))
    one = np.array([[1.0, 0.0]] * 3)
    data = from_clients([(one, one), (one, one)], dtype=torch.float64)
    experiment = linear(1.0, 1.0, local=local, data=data, engine=engine)
    x = models(experiment, 1)[-1]
    fed = experiment.build().fed
    sizes = [len(batch) for i in (0, 1) for batch in fed.batches(i, 0)]
    assert 0 in sizes[:40] and 0 in sizes[40:] and max(sizes) > 1
    np.testing.assert_allclose(x, [-0.5 * sum(sizes) / 2, 0.0], atol=1e-8)


def test_what_is_not_finite_counts_as_nothing() -> None:
    rows = np.array([[1.0, 0.0], [1e200, 1.0], [0.0, 1.0]])
    data = from_clients([(rows, rows)], dtype=torch.float64)
    squares = Function(f=lambda x, a, b: (a * a * x).sum(1).mean())
    x = models(linear(TINY, 10.0, data=data, objective=squares), 1)[-1]
    np.testing.assert_allclose(x, [-0.5 / 3, -0.5 / 3], atol=1e-10)


@pytest.mark.parametrize(
    ("noise", "batches", "spent"),
    [(2.109, 50, 1.45), (2.266, 43, 1.57), (5.0, 8, 4.10), (3.086, 22, 2.29)],
)
def test_epsilon_is_that_of_opacus_accountant(
    noise: float, batches: int, spent: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLamby's four centres: sigma for (1, 1e-4) in 15 passes, and what its 1,500 steps cost."""
    pytest.importorskip("dp_accounting")
    monkeypatch.undo()  # the library's own
    dp = ExamplePrivacy(noise=noise, delta=1e-4)
    assert dp.epsilon(1 / batches, 15 * batches) == pytest.approx(1.0, abs=0.02)
    assert dp.epsilon(1 / batches, 0) == 0.0
    assert dp.epsilon(1 / batches, 1500) == pytest.approx(spent, abs=0.02)
    within = dataclasses.replace(dp, max_epsilon=1.0).rounds_within(1 / batches, batches, 99)
    assert dp.epsilon(1 / batches, within * batches) <= 1 < dp.epsilon(1 / batches, 16 * batches)


# -------------------------------------------------------------------------------------- the budget
def test_a_budget_stops_a_client_and_then_the_run(tmp_path: Path) -> None:
    """A step costs 0.5, of a budget of 3; nobody takes the place of who has spent it."""
    dp = ExamplePrivacy(noise=3.0, delta=1e-3, max_epsilon=3.0)
    local = Local(steps=[3, 2], lr=0.1, batch=1, dp=dp)
    first = linear(1.0, 1.0, local=local, rounds=1).run(tmp_path / "run")
    result = linear(1.0, 1.0, local=local, rounds=99).resume(tmp_path / "run")
    told = ("cohort", "example_epsilon", "spent_clients")
    assert [tuple(row[k] for k in told) for row in result.history] == [
        (2, 1.5, 0),
        (2, 3.0, 1),
        (1, 3.0, 2),
    ]
    assert first.history == result.history[:1]
    assert result.summary["finished"] and result.summary["example_delta"] == 1e-3
    kept = json.loads((tmp_path / "run/clients.json").read_text())
    assert kept["example_epsilon"] == [3.0, 3.0]
    again = linear(1.0, 1.0, local=local, rounds=99).run()
    assert torch.equal(again.state.x, result.state.x) and len(again.history) == 3
    poor = dataclasses.replace(local, dp=dataclasses.replace(dp, max_epsilon=0.9))
    with pytest.raises(ConfigError, match=r"max_epsilon = 0.9 is less than the 1 that one round"):
        linear(1.0, 1.0, local=poor).build()


def test_a_budget_stops_clients_under_an_asynchronous_clock() -> None:
    """A client under way counts when it arrives. What the last round has learnt is evaluated."""
    local = Local(steps=1, batch=2, lr=0.1, dp=ExamplePrivacy(max_epsilon=1.5))
    given = {"clock": Asynchronous(buffer=2), "evaluate": Evaluation(every=50)}
    rows = small(FedAvg(), local=local, cohort=4, rounds=99, **given).run().history
    assert sum(row["cohort"] for row in rows) == 3 * 7
    assert rows[-1]["spent_clients"] == 7 and "test_accuracy" in rows[-1]


# ---------------------------------------------------------------------------------------- refusals
class Later(FedAvg):
    """Asks for a second gradient where no trace of a first step does."""

    def direction(self, x: Any, loc: Any, msg: Any, mem: Any, grad: Any, job: Any) -> Any:
        later = isinstance(job.step, torch.Tensor) or job.step > 0
        return grad(x) + (grad(msg.x) if later else 0), loc


@pytest.mark.parametrize("engine", ["serial", "vectorised:2"])
def test_a_second_gradient_that_shows_in_a_run_alone_is_refused_there(engine: str) -> None:
    """From the second step on, which no trial of one step sees."""
    local = Local(steps=2, batch=2, dp=ExamplePrivacy())
    with pytest.raises(CompositionError, match="Later: it asks for a second gradient"):
        small(Later(), local=local, engine=engine).run()
