"""What a method keeps, sends and computes, from the records of one client's round."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.algorithm import Algorithm, Oracle
from fedloom.core.vector import Rec, fields, zeros
from fedloom.trace import traced

_D = 8  # parameters of the model


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
    """The vectors of the records of one client's round with one local step, on zeros."""
    gradients: list[Tensor] = []

    def gradient(x: Tensor) -> Tensor:
        gradients.append(x)
        return zeros(x)

    x, still = torch.zeros(_D), Oracle(zeros, torch.sum)
    probe = algorithm.probe(x, still) if algorithm.probes else None
    server = algorithm.server_init(x, probe)
    round = traced(algorithm, _D, still, Oracle(gradient, torch.sum))
    down, broadcast = _vectors(round.msg), _vectors(algorithm.broadcast(server))
    return Costs(
        server=_vectors(server),
        memory=_vectors(round.mem),
        down=down,
        # what a client answers before the round comes down again as a mean
        up=_vectors(round.up) + tuple(name for name in down if name not in broadcast),
        probe=() if probe is None else _vectors(probe),
        gradients=float(len(gradients) - algorithm.probes),
    )


def _vectors(record: Rec) -> tuple[str, ...]:
    return tuple(k for k, v in fields(record).items() if isinstance(v, Tensor) and v.numel() == _D)
