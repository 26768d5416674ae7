"""Models, losses, metrics and data that a user brings."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedloom import Evaluation, Experiment, FedAvg, Local, LocalSGD
from fedloom.core.vector import rec
from fedloom.data import from_clients
from fedloom.errors import DataError
from support.modules import Frozen, Masks, Noise, Tied
from tiny import clusters, environment, small, trace, weights

LOCAL = Local(epochs=1, batch=4, lr=0.1)


def make(module: type[nn.Module], *arguments) -> nn.Module:
    torch.manual_seed(4)
    return module(*arguments)


# ------------------------------------------------------------------------------------------ models


def test_frozen_parameters_stay_and_are_not_sent():
    module = make(Frozen)
    result = small(FedAvg(), model=module, local=LOCAL).run()
    end = dict(result.model.named_parameters())
    assert torch.equal(end["first.weight"], module.first.weight)
    assert not torch.equal(end["first.bias"], module.first.bias)
    trained = 6 + 6 * 3 + 3
    assert result.ledger.down["x"] == 4 * trained * result.ledger.client_rounds
    assert len(result.state.x) == trained


def test_tied_weights_are_one_vector_and_stay_tied():
    result = small(FedAvg(), model=make(Tied), local=LOCAL).run()
    assert len(result.state.x) == 25 + 5 + 5 + 15 + 3
    assert result.model.middle.weight is result.model.enter.weight


def test_tied_weights_get_both_gradients():
    data = clusters(torch.float64, sizes=(8,))
    module = make(Tied).double()
    local = Local(steps=1, batch=None, lr=0.1)
    result = small(
        FedAvg(), torch.float64, model=module, data=data, rounds=1, cohort=1.0, local=local
    ).run()
    loss = F.cross_entropy(module(data.inputs), data.targets)
    grads = torch.autograd.grad(loss, list(module.parameters()))
    for before, g, after in zip(module.parameters(), grads, result.model.parameters(), strict=True):
        torch.testing.assert_close(after.detach(), (before - 0.1 * g).detach(), rtol=0, atol=1e-14)


def test_a_run_may_start_from_the_state_of_a_tied_model(tmp_path):
    from safetensors.torch import save_model

    start = make(Tied)
    save_model(start, str(tmp_path / "start.safetensors"))
    torch.manual_seed(9)
    for given in (start.state_dict(), tmp_path / "start.safetensors"):
        loop = next(trace(small(FedAvg(), model=Tied(), weights=given), 0))
        torch.testing.assert_close(loop.state.srv.x[:25], start.enter.weight.detach().reshape(-1))


class Twice(LocalSGD):
    """Sends the difference between two gradients of the same step at the same point."""

    def start(self, msg, mem, job):
        return msg.x, rec(gap=torch.zeros_like(msg.x))

    def direction(self, x, loc, msg, mem, grad, job):
        one = grad(x)
        grad(x + 1)
        return one, rec(gap=loc.gap + (grad(x) - one).abs())

    def finish(self, x, loc, msg, mem, job):
        return rec(delta=loc.gap, weight=job.weight), mem


@pytest.mark.parametrize("module", [Masks, Noise])
def test_all_gradients_of_a_step_see_the_same_randomness(module):
    before, after = trace(small(Twice(), model=make(module), local=LOCAL), 1)
    assert torch.equal(before.state.srv.x, after.state.srv.x)


def test_the_callers_model_is_left_alone():
    module = make(Masks)
    before = weights(module)
    small(FedAvg(), model=module).run()
    assert weights(module) == before and module.training


# ------------------------------------------------------------------------- losses, metrics, data
def plane(n: int, seed: int):
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(n, 3))
    return x, x @ np.array([[1.0], [-2.0], [0.5]]) + 0.7


def regression(**changes):
    settings = {
        "algorithm": FedAvg(),
        "model": make(nn.Linear, 3, 1),
        "data": from_clients([plane(n, n) for n in (1, 6, 9)], test=plane(30, 99)),
        "rounds": 60,
        "local": Local(epochs=2, batch=3, lr=0.05),
        "device": "cpu",
    }
    return Experiment(**(settings | changes))


def test_regression_with_the_default_loss():
    result = regression().run()
    assert result.history[-1]["test_loss"] < 1e-3
    assert result.summary["metric"]["name"] == "loss"
    assert result.summary["metric"]["higher_is_better"] is False
    np.testing.assert_allclose(result.model.weight.detach(), [[1.0, -2.0, 0.5]], atol=0.05)


@pytest.mark.parametrize("engine", ["serial", "workers:2"])
def test_a_loss_and_metrics_may_be_lambdas(engine, engine_of):
    factor = 0.5
    result = regression(
        rounds=3,
        objective=lambda outputs, targets: factor * (outputs - targets).abs().mean(),
        metrics={
            "within": lambda outputs, targets: ((outputs - targets).abs() < 0.5).float(),
            "worst": lambda outputs, targets: (outputs - targets).abs().max(),
        },
        engine=engine_of(engine),
        evaluate=Evaluation(target=0.1),
        higher_is_better=True,
    ).run()
    x, y = plane(30, 99)
    with torch.no_grad():
        gap = (result.model(torch.tensor(x).float()) - torch.tensor(y).float()).abs()
    row = result.history[-1]
    assert row["test_loss"] == pytest.approx(0.5 * gap.mean().item(), rel=1e-5)
    assert row["test_within"] == pytest.approx((gap < 0.5).float().mean().item())
    assert row["test_worst"] == pytest.approx(gap.max().item(), rel=1e-5)
    assert result.summary["metric"]["name"] == "within"


def test_a_loss_of_the_batch_is_a_loss_of_its_examples():
    one, other = (
        regression(rounds=2, objective=loss).run()
        for loss in (
            lambda o, t: (o - t).square().mean(),
            lambda o, t: (o - t).square().mean(1),
        )
    )
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert one.history[-1]["test_loss"] == pytest.approx(other.history[-1]["test_loss"], rel=1e-5)


def test_losses_of_the_history_are_those_of_their_moment():
    # a loss that is a view of x: later steps write to the same place
    from fedloom.core.net import Variables
    from fedloom.objectives import Function

    exp = Experiment(
        algorithm=FedAvg(),
        model=Variables(torch.zeros(1)),
        data=from_clients([(np.ones((1, 1)), np.ones(1))]),
        rounds=1,
        objective=Function(f=lambda x, a, b: x[0]),
        local=Local(steps=3, lr=0.5, batch=None),
        device="cpu",
    )
    assert exp.run().history[0]["train_loss"] == pytest.approx((0 - 0.5 - 1.0) / 3)


def test_a_run_may_start_from_given_weights(tmp_path):
    from safetensors.torch import save_file

    start = make(nn.Linear, 3, 1)
    state = {k: v + 1 for k, v in start.state_dict().items()}
    save_file(state, tmp_path / "start.safetensors")
    for given in (state, tmp_path / "start.safetensors", str(tmp_path / "start.safetensors")):
        loop = next(trace(regression(weights=given), 0))
        want = torch.cat([state["weight"].reshape(-1), state["bias"]])
        torch.testing.assert_close(loop.state.srv.x, want)
    with pytest.raises(DataError, match="bias"):
        regression(weights={"weight": state["weight"]}).run()
    with pytest.raises(DataError, match=r"weight.*\[1, 3\]"):
        regression(weights=state | {"weight": torch.zeros(2, 3)}).run()
    with pytest.raises(DataError, match="other"):
        regression(weights=state | {"other": torch.zeros(1)}).run()


def test_callbacks_are_called_per_round_and_per_evaluation():
    rounds, evaluations = [], []
    small(
        FedAvg(),
        rounds=5,
        evaluate=Evaluation(every=2),
        on_round=[lambda row: rounds.append(row["round"])],
        on_evaluation=[lambda row: evaluations.append((row["round"], "test_loss" in row))],
    ).run()
    assert rounds == [1, 2, 3, 4, 5]
    assert evaluations == [(2, True), (4, True), (5, True)]


def test_a_model_made_by_a_function_is_made_under_the_seed():
    def x(seed):
        return next(trace(small(FedAvg(), model=lambda: nn.Linear(5, 3), seed=seed), 0)).state.srv.x

    assert torch.equal(x(1), x(1)) and not torch.equal(x(1), x(2))


# ---------------------------------------------------------------------------------------- scripts
SCRIPT = """
import numpy as np
import torch
from fedloom import Experiment, FedAvg, Local
from fedloom.data import from_clients
from fedloom.objectives import Objective

scale = 2.0

class Mine(FedAvg):
    def direction(self, x, loc, msg, mem, grad, job):
        return scale * grad(x), loc

class Absolute(Objective):
    power: float = 1.0
    def loss(self, net, x, batch, ref, mem):
        return self.score(net(x, batch[0]), batch)
    def score(self, outputs, batch):
        return ((outputs - batch[1]).abs() ** self.power).mean(1)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(2, 1)
        self.act = lambda v: torch.tanh(v)
    def forward(self, x):
        return self.act(self.line(x))

draw = np.random.default_rng(0)
pairs = [(draw.normal(size=(n, 2)), draw.normal(size=(n, 1))) for n in (3, 5, 2, 7)]
torch.manual_seed(0)
module = Net()
ends = []
for engine in ("serial", "workers:2"):
    exp = Experiment(algorithm=Mine(), model=module, rounds=3,
                     data=from_clients(pairs, test=pairs[0]),
                     local=Local(batch=2), objective=Absolute(power=1.5), engine=engine,
                     device="cpu", metrics={"gap": lambda o, t: (o - t).abs()},
                     higher_is_better=False)
    ends.append(exp.run())
assert torch.equal(ends[0].state.x, ends[1].state.x)
assert ends[0].last == ends[1].last
print("same bits")
"""


@pytest.mark.slow
def test_a_script_without_a_guard_and_with_classes_of_its_own(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-W", "error", "script.py"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "same bits\n", done.stderr[-2000:]
    assert done.returncode == 0 and not done.stderr
