"""Models, losses, metrics, schedules and callbacks that a user brings; one that fails, or gives
something odd, loses no finished round.
"""

import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file, save_model
from torch import nn

from cases import CASES
from fedloom import Checkpoint, Evaluation, Experiment, FedAvg, Local, LocalSGD
from fedloom.core.net import Variables
from fedloom.core.vector import rec
from fedloom.data import from_clients
from fedloom.errors import ConfigError, DataError
from fedloom.objectives import Function
from support.folders import rows
from support.modules import Frozen, Masks, Noise, Tied
from tiny import clusters, environment, results_agree, small, trace, weights

LOCAL = Local(epochs=1, batch=4, lr=0.1)


def make(module, *arguments):
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


def test_tied_weights_are_one_vector_that_gets_both_gradients():
    data, module = clusters(torch.float64, sizes=(8,)), make(Tied).double()
    local = Local(steps=1, batch=None, lr=0.1)
    given = {"model": module, "data": data, "rounds": 1, "cohort": 1.0, "local": local}
    result = small(FedAvg(), torch.float64, **given).run()
    assert len(result.state.x) == 25 + 5 + 5 + 15 + 3
    assert result.model.middle.weight is result.model.enter.weight
    loss = F.cross_entropy(module(data.inputs), data.targets)
    grads = torch.autograd.grad(loss, list(module.parameters()))
    for before, g, after in zip(module.parameters(), grads, result.model.parameters(), strict=True):
        torch.testing.assert_close(after.detach(), (before - 0.1 * g).detach(), rtol=0, atol=1e-14)


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


@pytest.mark.parametrize("kind", [Masks, Noise])
def test_all_gradients_of_a_step_see_the_same_randomness_and_the_callers_model_stays(kind):
    module = make(kind)
    given = weights(module)
    before, after = trace(small(Twice(), model=module, local=LOCAL), 1)
    assert torch.equal(before.state.srv.x, after.state.srv.x)
    small(FedAvg(), model=module).run()
    assert weights(module) == given and module.training


def test_a_model_made_by_a_function_is_made_under_the_seed():
    def x(seed):
        return next(trace(small(FedAvg(), model=lambda: nn.Linear(5, 3), seed=seed), 0)).state.srv.x

    assert torch.equal(x(1), x(1)) and not torch.equal(x(1), x(2))


def test_batch_norms_buffers_are_averaged_by_weight():
    def after(*clients, **more):
        one = CASES["running statistics"].make(rounds=1, cohort=[[*clients]], **more)
        return [*trace(one, 1)][-1]

    loop = after(1, 2, 5)
    weight = {i: loop.fed.weight(i) for i in (1, 2, 5)}
    alone = {i: after(i, weighting="uniform").state.buffers for i in weight}
    mean = sum(weight[i] * alone[i] for i in weight) / sum(weight.values())
    torch.testing.assert_close(loop.state.buffers, mean)
    ledger = loop.state.ledger
    assert ledger.down["buffers"] == 3 * mean.nbytes == ledger.up["buffers"]


# ------------------------------------------------------------------------------ losses and metrics
def plane(n, seed):
    x = np.random.default_rng(seed).normal(size=(n, 3))
    return x, x @ np.array([[1.0], [-2.0], [0.5]]) + 0.7


def regression(**changes):
    settings = {
        "model": make(nn.Linear, 3, 1),
        "data": from_clients([plane(n, n) for n in (1, 6, 9)], test=plane(30, 99)),
        "rounds": 60,
        "local": Local(epochs=2, batch=3, lr=0.05),
    }
    return Experiment(algorithm=FedAvg(), device="cpu", **(settings | changes))


def test_regression_with_the_default_loss():
    result = regression().run()
    assert result.history[-1]["test_loss"] < 1e-3
    assert result.summary["metric"]["name"] == "loss"
    assert result.summary["metric"]["higher_is_better"] is False
    np.testing.assert_allclose(result.model.weight.detach(), [[1.0, -2.0, 0.5]], atol=0.05)


def test_a_loss_of_the_batch_is_a_loss_of_its_examples():
    batch, examples = lambda o, t: (o - t).square().mean(), lambda o, t: (o - t).square().mean(1)
    one, other = (regression(rounds=2, objective=loss).run() for loss in (batch, examples))
    torch.testing.assert_close(one.state.x, other.state.x)
    assert one.history[-1]["test_loss"] == pytest.approx(other.history[-1]["test_loss"], rel=1e-5)


def test_losses_of_the_history_are_those_of_their_moment():
    """A loss that is a view of x: later steps write to the same place."""
    parts = {"model": Variables(torch.zeros(1)), "local": Local(steps=3, lr=0.5, batch=None)}
    parts |= {"data": from_clients([(np.ones((1, 1)), np.ones(1))]), "rounds": 1}
    result = regression(objective=Function(f=lambda x, a, b: x[0]), **parts).run()
    assert result.history[0]["train_loss"] == pytest.approx((0 - 0.5 - 1.0) / 3)


# ----------------------------------------------------------------------------------- given weights
def test_a_run_may_start_from_given_weights(tmp_path):
    start, file = make(nn.Linear, 3, 1).state_dict(), tmp_path / "start.safetensors"
    state = {name: value + 1 for name, value in start.items()}
    save_file(state, file)
    for given in (state, file, str(file)):
        loop = next(trace(regression(weights=given), 0))
        want = torch.cat([state["weight"].reshape(-1), state["bias"]])
        torch.testing.assert_close(loop.state.srv.x, want)
    for given, said in (
        ({"weight": state["weight"]}, "bias"),
        (state | {"weight": torch.zeros(2, 3)}, r"weight.*\[1, 3\]"),
        (state | {"other": torch.zeros(1)}, "other"),
    ):
        with pytest.raises(DataError, match=said):
            regression(weights=given).run()
    tied = make(Tied)  # whose weight has two names
    save_model(tied, str(file))
    loop = next(trace(small(FedAvg(), model=Tied(), weights=file), 0))
    torch.testing.assert_close(loop.state.srv.x[:25], tied.enter.weight.detach().reshape(-1))


# ---------------------------------------------------------------------------- callbacks, measures
def test_callbacks_are_called_per_round_and_per_evaluation():
    rounds, evaluations = [], []
    calls = {
        "on_round": [lambda row: rounds.append(row["round"])],
        "on_evaluation": [lambda row: evaluations.append((row["round"], "test_loss" in row))],
    }
    small(FedAvg(), rounds=5, evaluate=Evaluation(every=2), **calls).run()
    assert rounds == [1, 2, 3, 4, 5]
    assert evaluations == [(2, True), (4, True), (5, True)]


class Failing:
    every = 1
    higher_is_better = True

    def __init__(self, call):
        self.left, self.calls = [call], 0

    def __call__(self, *given):
        self.calls += 1
        if self.calls in self.left:
            self.left.clear()
            raise ValueError("not today")
        return {"spread": 1.0} if len(given) == 1 else (given[0].argmax(1) == given[1]).double()


def never_by_itself(kind, call, **given):
    """Seven rounds without a checkpoint of their own, and a function that fails."""
    function = Failing(call)
    given |= {kind: {"right": function} if kind == "metrics" else [function]}
    saving = Checkpoint(every_seconds=None)
    return small(FedAvg(), rounds=7, checkpoint=saving, evaluate=Evaluation(every=1), **given)


@pytest.mark.parametrize("kind", ["on_round", "measures", "metrics"])
def test_a_failing_function_loses_no_round(kind, tmp_path):
    whole = never_by_itself(kind, 99).run(tmp_path / "whole")
    with pytest.raises(Exception, match="not today"):
        never_by_itself(kind, 5).run(tmp_path / "run")
    begun = len(rows(tmp_path / "run"))
    assert max(int(p.name) for p in (tmp_path / "run" / "checkpoints").iterdir()) >= begun >= 2
    if kind == "measures":  # the row that failed is made up for in a run that fails twice
        with pytest.raises(ValueError, match="not today"):
            never_by_itself(kind, 1).resume(tmp_path / "run")
    seen = []
    again = never_by_itself(kind, 99, on_evaluation=lambda row: seen.append(row["round"]))
    result = again.resume(tmp_path / "run")
    if kind != "measures":
        assert seen == [*range(begun + 1, 8)], "no row is written twice, none is left out"
    results_agree(result, whole)


def scheduled(value):
    return {"local": Local(steps=2, batch=4, lr=0.1, schedule=lambda round, step: value)}


def measured(value, every=1):
    def measure(loop):
        return value

    measure.every = every
    return {"measures": [measure]}


@pytest.mark.parametrize("value", [np.float32(0.5), torch.tensor(0.5), np.array(0.5)])
def test_a_schedule_and_a_measure_may_give_numbers_of_numpy_and_torch(value, tmp_path):
    small(FedAvg(), **scheduled(value), **measured({"norm": value})).run(tmp_path / "run")
    row = rows(tmp_path / "run")[0]
    assert row["lr"] == 0.05 and row["norm"] == 0.5


RATE = r"number from 0, and gives .* in round \d"
ODD = [(scheduled(v), RATE) for v in (-1.0, np.nan, np.inf, "0.5", None, np.ones(2))]
NORMS = (None, {"norm": torch.ones(3)}, {"n": object()}, {3: 1.0}, 1.0)
ODD += [(measured(value), r"measures.*(number|names)") for value in NORMS]
ODD += [(measured({}, every), "every") for every in (0, -1, True)]


@pytest.mark.parametrize(("given", "said"), ODD)
def test_what_a_schedule_or_a_measure_may_not_give_is_refused(given, said):
    with pytest.raises(ConfigError, match=said):
        small(FedAvg(), **given).run()


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
parts = dict(model=Net(), rounds=3, data=from_clients(pairs, test=pairs[0]), local=Local(batch=2),
             objective=Absolute(power=1.5), metrics={"gap": lambda o, t: (o - t).abs()},
             device="cpu", higher_is_better=False)
one, two = (Experiment(algorithm=Mine(), engine=e, **parts).run() for e in ("serial", "workers:2"))
assert torch.equal(one.state.x, two.state.x) and one.last == two.last
print("same bits")
"""


@pytest.mark.slow
def test_a_script_without_a_guard_and_with_classes_of_its_own(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-W", "error", "script.py"]
    given = {"cwd": tmp_path, "env": environment(), "capture_output": True, "text": True}
    done = subprocess.run(command, timeout=120, check=False, **given)
    assert done.stdout == "same bits\n", done.stderr[-2000:]
    assert done.returncode == 0 and not done.stderr
