"""A problem's network as a torch module in float64, for the adapters of frameworks on torch."""

from __future__ import annotations

import torch
from torch import nn

from fedloom_conformance import BatchNorm, Linear, Problem, State


def module_of(problem: Problem) -> nn.Sequential:
    """The network with the problem's first model in it."""
    made: list[nn.Module] = []
    for layer in problem.network.layers:
        if isinstance(layer, Linear):
            made.append(nn.Linear(layer.inputs, layer.outputs, layer.bias))
        elif isinstance(layer, BatchNorm):
            made.append(nn.BatchNorm1d(layer.width))
        else:
            made.append(nn.Tanh())
    module = nn.Sequential(*made).double()
    start = {name: torch.as_tensor(value) for name, value in problem.start.items()}
    module.load_state_dict(start, strict=False)  # without batch norm's counter
    return module


def tensors_of(problem: Problem) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(inputs, targets) of every client."""
    return [(torch.as_tensor(u), torch.as_tensor(t)) for u, t in problem.data]


def state_of(module: nn.Module, problem: Problem) -> State:
    """A copy of the module's parameters and buffers, by the problem's names."""
    state = module.state_dict()
    return {name: state[name].detach().double().numpy().copy() for name in problem.start}
