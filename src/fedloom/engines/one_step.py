"""One local step of a few clients, tried beside a run: what it takes, and whether it can be."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import torch

from ..core.bfloat16 import has_bfloat16
from ..core.net import Net
from ..core.vector import rec, tree
from ..federation.federation import Federation
from ..plan import Plan
from .author_checks import at_server
from .base import Engine
from .client_results import Asked
from .extra_exchanges import answered
from .serial import Serial
from .summation import root


def try_step(
    plan: Plan, fed: Federation, net: Net, engine: Engine, members: list[int], times: int = 1
) -> None:
    """Take one step of these clients, so many times. The model's buffers are then the initial ones.
    Raises FedloomError where that cannot be.
    """
    fed = replace(fed, local=replace(fed.local, epochs=None, steps=1))
    asked = _asked(plan, fed, net, members)
    try:
        engine.open(plan, fed, net)
        asked = answered(engine.ask, plan.algorithm, asked)[0]
        for _ in range(times):
            engine.round(asked)
    finally:
        engine.close()
        net.load_buffers(net.init_buffers())


def bfloat16_gain(plan: Plan, fed: Federation, net: Net) -> float | None:
    """The part of a step's time that `local.precision = bf16` would take, by the second of two
    steps each; None for a run that is not on a CPU with bfloat16, or not in float32 throughout. The
    model's buffers and the way that it computes stay as they were.
    """
    if net.device.type != "cpu" or net.dtype != torch.float32 or not has_bfloat16(net.device):
        return None
    if fed.local.precision != "full":
        return None
    took, ways, buffers = [], (net.onednn, net.bf16), net.buffers().clone()
    try:
        for precision in ("full", "bf16"):
            local = replace(fed.local, precision=precision)
            clock = _Clocked(net.onednn)
            try_step(plan, replace(fed, local=local), net, clock, [0], times=2)
            took.append(clock.took)
    finally:
        net.onednn, net.bf16 = ways
        net.load_buffers(buffers)
    return took[1] / took[0]


class _Clocked(Serial):
    """The reference engine, with the seconds of its last round."""

    took = 0.0

    def _train(self, asked: Asked) -> Any:
        began = time.perf_counter()
        found = super()._train(asked)
        self.took = time.perf_counter() - began
        return found


def _asked(plan: Plan, fed: Federation, net: Net, members: list[int]) -> Asked:
    """What round 1 asks of these clients."""
    x, alg = net.init(), plan.algorithm
    up: Any = None
    if alg.probes:
        one = Serial()
        one.open(plan, fed, net)
        total = root(one.probe(Asked(rec(x=x), net.init_buffers(), {}, members[:1], -1)).nodes)
        up = tree(lambda v: v / total.n, total.up)
    begun = at_server(alg, fed.seed, "server_init", 0, x, up)
    msg = at_server(alg, fed.seed, "broadcast", 0, begun)
    return Asked(msg, net.init_buffers(), {}, members, 0)
