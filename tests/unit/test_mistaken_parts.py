"""Mistakes of users that once ended in an error of Python or torch, or in no word at all."""

from __future__ import annotations

import json
import logging

import pytest
import torch
from torch import nn

from fedloom import Experiment, FedAvg, Local
from fedloom.errors import FedloomError
from tiny import clusters, small


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> object:
        return (self.a(x), 0) if self.training else self.a(x)


def run(**changes) -> Experiment:
    given = {"model": lambda: nn.Linear(5, 3), "data": clusters(), "rounds": 1, "engine": "serial"}
    return Experiment(algorithm=FedAvg(), **(given | changes))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_script_module_is_refused_by_name():
    model = torch.jit.script(nn.Sequential(nn.Linear(5, 3)))
    with pytest.raises(FedloomError, match=r"is a ScriptModule of torch.jit.* give the nn.Module"):
        run(model=model).run()


@pytest.mark.parametrize(
    "schedule",
    [
        torch.optim.lr_scheduler.StepLR,
        torch.optim.lr_scheduler.ConstantLR(torch.optim.SGD([nn.Parameter(torch.ones(1))])),
    ],
)
def test_a_scheduler_of_torch_is_refused_by_name(schedule):
    with pytest.raises(FedloomError, match=r"local.schedule must be a function .* got \w+LR"):
        Local(schedule=schedule)


def test_a_run_inside_of_inference_mode_is_refused():
    with torch.inference_mode(), pytest.raises(FedloomError, match=r"inference_mode.. is on"):
        run().run()


@pytest.mark.parametrize("engine", ["serial", "vectorised:3"])
def test_a_tuple_in_training_alone_is_named(engine):
    with pytest.raises(FedloomError, match="gives a tuple where the loss takes one tensor"):
        run(model=Pair, engine=engine).run()


def test_as_many_rates_as_clients_are_refused_where_they_could_be_the_clients():
    lr = [0.1, 0.2, 0.3, 0.4, 0.1, 0.1, 0.05]  # seven clients
    with pytest.raises(FedloomError, match=r"7 learning rates for 9 rounds and 7 clients: a list"):
        run(local=Local(lr=lr), rounds=9).build()
    for rates, rounds in (([*lr, 0.05], 9), (lr, 7), (lr[:3], 9)):
        run(local=Local(lr=rates), rounds=rounds).build()


def test_looking_into_a_run_leaves_the_engine_as_it_was(tmp_path):
    given = small(FedAvg(), engine="vectorised:2", rounds=2)
    given.run(tmp_path / "r")
    given.open(tmp_path / "r")
    assert given.engine == "vectorised:2"
    with given.replay(tmp_path / "r", 1):
        pass
    assert given.engine == "vectorised:2" and given.resident_bytes == small(FedAvg()).resident_bytes


def test_going_on_under_other_instructions_is_said(tmp_path, monkeypatch, caplog):
    small(FedAvg(), rounds=1).run(tmp_path / "r")
    told = json.loads((tmp_path / "r" / "environment.json").read_text())
    own = torch.backends.cpu.get_cpu_capability()
    assert told["instructions"] == own and told["processor"]
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "NONE")
    with caplog.at_level(logging.WARNING):
        small(FedAvg(), rounds=2).resume(tmp_path / "r")
    assert f"was run with instructions {own} until round 1 and goes on with instr" in caplog.text
    told = json.loads((tmp_path / "r" / "environment.json").read_text())
    assert told["instructions"] == "NONE" and f"instructions {own}" in told["earlier"]
