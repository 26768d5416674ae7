"""The local loop of one client is torch's optimiser after clip_grad_norm_, step for step."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedloom import FedAvg, Local
from fedloom.core.vector import rec
from fedloom.engines.base import one_thread
from fedloom.engines.client_results import Request, TrainTask
from fedloom.federation.schedules import Exponential
from tiny import clusters, mlp, small, trace

CASES = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "decayed": {"weight_decay": 0.1},
    "clipped": {"clip": 0.5},
    "all of it": {"momentum": 0.8, "weight_decay": 0.05, "clip": 0.7},
    "a rate that falls": {"schedule": Exponential(decay=0.8, step_decay=0.9), "momentum": 0.5},
    "steps": {"epochs": None, "steps": 7},
    "whole data": {"batch": None, "epochs": 3},
    "last batch dropped": {"drop_last": True},
    "adam": {"optimiser": "adam", "lr": 0.02, "weight_decay": 0.1},
    "adamw, as FIARSE has it": {
        "optimiser": "adamw", "lr": 0.02, "beta2": 0.95, "weight_decay": 0.1
    },
    "nesterov": {"optimiser": "nesterov", "momentum": 0.9, "weight_decay": 0.05},
    "rmsprop": {"optimiser": "rmsprop", "lr": 0.02, "weight_decay": 0.1},
    "rmsprop, another decay": {"optimiser": "rmsprop", "lr": 0.02, "beta2": 0.8},
    "adagrad": {"optimiser": "adagrad", "lr": 0.05, "weight_decay": 0.1},
    "adadelta": {"optimiser": "adadelta", "lr": 2.0, "beta2": 0.8},
    "adamax": {"optimiser": "adamax", "lr": 0.02, "beta1": 0.8, "weight_decay": 0.1},
    "nadam": {"optimiser": "nadam", "lr": 0.02, "weight_decay": 0.1},
    "radam": {"optimiser": "radam", "lr": 0.02, "epochs": 4, "beta2": 0.99},
    "adamw, two numbers": {"optimiser": "adamw", "lr": 0.02, "beta1": 0.5, "beta2": 0.8},
}  # fmt: skip
EXACT = {"plain", "momentum", "decayed", "a rate that falls", "steps", "whole data"}


def optimiser_of(module: nn.Module, local: Local) -> torch.optim.Optimizer:
    common = {"lr": local.lr, "weight_decay": local.weight_decay}
    if local.optimiser in ("sgd", "nesterov"):
        common |= {"momentum": local.momentum, "nesterov": local.optimiser == "nesterov"}
        return torch.optim.SGD(module.parameters(), **common)
    if local.optimiser == "rmsprop":
        return torch.optim.RMSprop(module.parameters(), alpha=local.beta2 or 0.99, **common)
    if local.optimiser == "adagrad":
        return torch.optim.Adagrad(module.parameters(), **common)
    if local.optimiser == "adadelta":
        return torch.optim.Adadelta(module.parameters(), rho=local.beta2 or 0.9, **common)
    kinds = (torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.NAdam)
    kind = {kind.__name__.lower(): kind for kind in (*kinds, torch.optim.RAdam)}[local.optimiser]
    betas = (0.9 if local.beta1 is None else local.beta1, local.beta2 or 0.999)
    return kind(module.parameters(), betas=betas, **common)


def by_hand(module: nn.Module, fed, round: int) -> nn.Module:
    """The same steps by torch's own parts."""
    module, local = copy.deepcopy(module).train(), fed.local
    optimiser = optimiser_of(module, local)
    for k, index in enumerate(fed.batches(0, round)):
        optimiser.param_groups[0]["lr"] = local.lr * local.schedule(round, k)
        optimiser.zero_grad()
        outputs = module(fed.data.inputs[index])
        F.cross_entropy(outputs, fed.data.targets[index]).backward()
        if local.clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), local.clip)
        optimiser.step()
    return module


def flat(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def experiment(name: str, **changes):
    local = Local(**{"epochs": 2, "batch": 4, "lr": 0.2} | CASES[name])
    data = clusters(torch.float64, sizes=(11,))
    return small(FedAvg(), torch.float64, data=data, cohort=1.0, local=local, **changes)


@pytest.mark.parametrize("name", CASES)
def test_one_round_is_torchs(name):
    loop = experiment(name, weighting="uniform").build()
    loop.engine.open(loop.plan, loop.fed, loop.net)
    x = loop.net.init()
    for t in (0, 3):
        task = TrainTask(rec(x=x), loop.net.init_buffers(), {}, [0], t)
        answers = loop.engine.map(Request.TRAIN, task)
        with one_thread():
            want = flat(by_hand(mlp(torch.float64), loop.fed, t)) - x
        # torch.optim.NAdam has the product of the decays in float32
        tolerance = 0 if name in EXACT else 1e-8 if name == "nadam" else 1e-14
        torch.testing.assert_close(answers.nodes[0][2].delta, want, rtol=0, atol=tolerance)
        assert answers.stats[0].gradients == len(loop.fed.batches(0, t))
    assert float(want.abs().max()) > 0.01


def test_the_history_has_the_mean_loss_of_the_steps():
    loop = [*trace(experiment("plain"), 1)][-1]
    module, losses = mlp(torch.float64), []
    for index in loop.fed.batches(0, 0):
        loss = F.cross_entropy(module(loop.fed.data.inputs[index]), loop.fed.data.targets[index])
        losses.append(loss.item())
        grads = torch.autograd.grad(loss, list(module.parameters()))
        with torch.no_grad():
            for p, g in zip(module.parameters(), grads, strict=True):
                p -= 0.2 * g
    assert loop.log.history[0]["train_loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-13)
    assert loop.log.history[0]["steps"] == len(losses)
    with torch.no_grad():
        outputs = module(loop.fed.data.test_inputs)
    targets = loop.fed.data.test_targets
    assert loop.log.history[0]["test_loss"] == pytest.approx(
        F.cross_entropy(outputs, targets).item()
    )
    right = (outputs.argmax(1) == targets).double().mean().item()
    assert loop.log.history[0]["test_accuracy"] == pytest.approx(right, rel=1e-13)
