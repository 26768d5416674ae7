"""What an algorithm keeps, sends and computes, from the records that it returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedloom.algorithm import Algorithm, Trait
from fedloom.core.vector import Rec, fields
from fedloom.data import from_clients
from fedloom.engines.client_results import Request, TrainTask
from fedloom.engines.extra_exchanges import answered
from fedloom.experiment.experiment import Experiment
from fedloom.federation.clock import Asynchronous
from fedloom.federation.local import Local
from fedloom.server.billing import together

_STEPS = 4


@dataclass(frozen=True)
class Costs:
    """Vectors (of the model's length) by place; probe: sent by a client once before round 1;
    gradients: per local step.

    >>> from fedloom.algorithms.registry import make_algorithm
    >>> found = costs(make_algorithm("scaffold"))
    >>> found.down, found.up, found.memory, found.gradients
    (('x', 'c'), ('delta', 'dc'), ('c',), 1.0)
    """

    server: tuple[str, ...]
    memory: tuple[str, ...]
    down: tuple[str, ...]
    up: tuple[str, ...]
    probe: tuple[str, ...]
    gradients: float


def costs(algorithm: Algorithm) -> Costs:
    """One client's round on a problem of eight numbers, and the sizes of its records."""
    inputs = torch.arange(24.0).view(8, 3) / 24
    clients = [(inputs[:4], torch.tensor([0, 1, 0, 1])), (inputs[4:], torch.tensor([1, 0, 1, 0]))]
    experiment = Experiment(
        algorithm=algorithm,
        model=lambda: nn.Linear(3, 2),
        data=from_clients(clients),
        rounds=1,
        local=Local(steps=_STEPS, batch=2, lr=0.01),
        engine="serial",
        device="cpu",
        clock=Asynchronous(buffer=1) if Trait.BUFFERED in algorithm.traits else None,
    )
    run = experiment.build()
    run.engine.open(run.plan, run.fed, run.net)
    run.begin()
    before = dict(run.state.ledger.up)
    msg = run.plan.algorithm.broadcast(run.state.srv)
    asked = TrainTask(msg, run.state.buffers, {}, [0], 0)
    asked, answers = answered(run.engine.map, run.plan, run.fed.seed, asked)
    results = run.engine.map(Request.TRAIN, asked)
    run.engine.close()
    (sent,), _ = together([answers.stats, results.stats])
    memory, d = results.memories[0].alg, run.net.layout.d
    return Costs(
        server=_vectors(run.state.srv, d),
        memory=_vectors(memory, d),
        down=_messages(sent.bytes_down, d),
        up=_messages(sent.bytes_up, d),
        probe=_messages(before, d * run.fed.population),
        gradients=(sent.gradients - sent.passes) / _STEPS,
    )


def _vectors(record: Rec, d: int) -> tuple[str, ...]:
    return tuple(k for k, v in fields(record).items() if isinstance(v, Tensor) and v.numel() == d)


def _messages(sizes: Mapping[str, int], d: int) -> tuple[str, ...]:
    """The fields of a message that are whole vectors of float32."""
    return tuple(k for k, size in sizes.items() if size == 4 * d)
