"""What an algorithm keeps, sends and computes, read off the records it really returns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedloom.algorithm import Algorithm
from fedloom.data import from_clients
from fedloom.engines.client import Client
from fedloom.experiment import Experiment, Local
from fedloom.vector import Rec, fields

__all__ = ["Costs", "costs"]

_STEPS = 4


@dataclass(frozen=True)
class Costs:
    """Vectors (of the model's length) by place; gradients per local step.

    >>> from fedloom.zoo import make_algorithm
    >>> found = costs(make_algorithm("scaffold"))
    >>> found.down, found.up, found.memory, found.gradients
    (('x', 'c'), ('delta', 'dc'), ('c',), 1.0)
    """

    server: tuple[str, ...]
    memory: tuple[str, ...]
    down: tuple[str, ...]
    up: tuple[str, ...]
    gradients: float


def costs(algorithm: Algorithm) -> Costs:
    """One client's round on a problem of eight numbers, and a look at every record."""
    inputs = torch.arange(24.0).view(8, 3) / 24
    clients = [(inputs[:4], torch.tensor([0, 1, 0, 1])), (inputs[4:], torch.tensor([1, 0, 1, 0]))]
    experiment = Experiment(
        algorithm=algorithm,
        model=lambda: nn.Linear(3, 2),
        data=from_clients(clients),
        rounds=1,
        local=Local(steps=_STEPS, batch=2, lr=0.01),
        device="cpu",
    )
    loop = experiment.build()
    loop.engine.open(loop.plan, loop.fed, loop.net)
    loop.begin()
    client = Client(loop.plan, loop.fed, loop.net)
    msg = loop.plan.algorithm.broadcast(loop.srv)
    share = client.shares(msg, [0], 0)[1.0]
    done = client.train(share, client.first_memory(msg.x, 0, share.view), 0, 0)
    d = loop.net.layout.d
    return Costs(
        server=_vectors(loop.srv, d),
        memory=_vectors(done.memory.alg, d),
        down=_vectors(msg, d),
        up=_vectors(done.up, d),
        gradients=done.gradients / _STEPS,
    )


def _vectors(record: Rec, d: int) -> tuple[str, ...]:
    return tuple(k for k, v in fields(record).items() if isinstance(v, Tensor) and v.numel() == d)
