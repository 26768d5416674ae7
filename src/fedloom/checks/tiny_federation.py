"""A federation small enough to run a part in every engine within a second."""

from __future__ import annotations

import dataclasses
import functools
from collections import OrderedDict
from typing import Any, NamedTuple

import torch
from torch import nn

from ..algorithm import LocalSGD
from ..core.rng import generator
from ..core.vector import Rec
from ..data import FederatedData, from_clients
from ..experiment.experiment import Experiment
from ..federation.local import Local
from ..federation.schedules import Exponential
from ..models import MultiExit
from ..objectives import OBJECTIVES, Needs
from ..server.rounds import Run
from ..submodels import FjORD

SIZES = (3, 11, 7, 16, 1, 9)  # a client with one example, short last batches, unequal K_i
INPUTS, CLASSES = 6, 3
CAPACITIES = (1.0, 0.5, 0.25)


def network() -> nn.Module:
    """147 parameters in three named blocks, with a normalisation and dropout."""
    return nn.Sequential(
        OrderedDict(
            first=nn.Sequential(
                nn.Linear(INPUTS, 8), nn.GroupNorm(2, 8), nn.Tanh(), nn.Dropout(0.25)
            ),
            second=nn.Sequential(nn.Linear(8, 6), nn.Tanh()),
            head=nn.Linear(6, CLASSES),
        )
    )


def exits() -> nn.Module:
    """285 parameters in three stages, with an exit behind each but the last. One group: of two, a
    narrow slice would leave single values, which cannot be normalised.
    """
    stages: dict[str, nn.Module] = {
        "first": nn.Sequential(
            nn.Linear(INPUTS, 8), nn.GroupNorm(1, 8), nn.Tanh(), nn.Dropout(0.25)
        ),
        "second": nn.Sequential(nn.Linear(8, 12), nn.Tanh()),
        "head": nn.Linear(12, CLASSES),
    }
    return MultiExit(stages, {"first": nn.Linear(8, CLASSES), "second": nn.Linear(12, CLASSES)})


def _of_exits(part: Any) -> bool:
    return Needs.EXITS in (getattr(part, "needs", None), getattr(part, "trains", None))


def network_for(part: Any) -> nn.Module:
    """The network that an objective or a rule of views can work with."""
    return exits() if _of_exits(part) else network()


@functools.cache
def federation(dtype: torch.dtype, labels: bool = True) -> FederatedData:
    """Six clients, each with inputs around a point of its own; labels, or three numbers."""
    draw = generator(0, "checks", "data")

    def sample(i: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.randn(n, INPUTS, generator=draw) + i / 3
        if labels:
            return inputs.to(dtype), torch.randint(0, CLASSES, (n,), generator=draw)
        return inputs.to(dtype), torch.randn(n, CLASSES, generator=draw).to(dtype)

    pairs = [sample(i, n) for i, n in enumerate(SIZES)]
    return from_clients(pairs, test=sample(2, 20), dtype=dtype)


def one_output() -> nn.Module:
    """41 parameters that give one number, for times until an event."""
    return nn.Sequential(nn.Linear(INPUTS, 6), nn.Tanh(), nn.Linear(6, 1))


@functools.cache
def survival(dtype: torch.dtype) -> FederatedData:
    """The same inputs with a time, and whether the event was seen then: for two of three."""
    data, draw = federation(dtype), generator(0, "checks", "times")

    def times(n: int) -> torch.Tensor:
        observed = torch.rand(n, generator=draw) < 2 / 3
        return torch.stack([torch.rand(n, generator=draw), observed.float()], 1).to(dtype)

    assert data.test_inputs is not None
    pairs = [(x, times(len(x))) for x, _ in map(data.client, range(data.population))]
    test = data.test_inputs, times(len(data.test_inputs))
    return from_clients(pairs, test=test, dtype=dtype)


def local_for(loss: Any) -> Local:
    """Rates that fall with rounds and steps; two passes, or for a loss that reads a text on a
    number of steps, so that rounds end within a pass.
    """
    schedule = Exponential(decay=0.9, step_decay=0.97)
    if getattr(loss, "needs", None) is Needs.TEXT_ORDER:
        return Local(steps=3, batch=4, lr=0.05, schedule=schedule, order="text")
    return Local(epochs=2, batch=4, lr=0.05, schedule=schedule)


class Setup(NamedTuple):
    """The author's own model and data, in the place of the small ones; None: these."""

    model: Any = None
    data: FederatedData | None = None

    def settings(self, dtype: torch.dtype) -> dict[str, Any]:
        """What an experiment takes from here: a few steps of some clients, whatever their sizes."""
        if self.data is None:
            return {}
        schedule = Exponential(decay=0.9, step_decay=0.97)
        return {
            "model": self.model,
            "data": self.data.astype(dtype),
            "cohort": min(4, self.data.population),
            "local": Local(steps=4, batch=4, lr=0.05, schedule=schedule),
        }


SMALL = Setup()


class Trial(Experiment, frozen=False):
    """An experiment that hands out the loop which it built last."""

    loop: Run = dataclasses.field(init=False, repr=False)

    def build(self) -> Run:
        self.loop = super().build()
        return self.loop


def experiment(dtype: torch.dtype = torch.float32, **changes: Any) -> Trial:
    """Four rounds with four of the six clients."""
    settings: dict[str, Any] = {
        "algorithm": LocalSGD(),
        "model": network,
        "data": federation(dtype),
        "rounds": 4,
        "cohort": 4,
        "local": local_for(changes.get("objective")),
        "seed": 7,
        "engine": "serial",
        "device": "cpu",
        "dtype": dtype,
    }
    return Trial(**(settings | _required(changes, dtype) | changes))


def _required(changes: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """The model, loss and data that an objective or a sub-model scheme cannot go without."""
    loss, submodel = changes.get("objective"), changes.get("submodel")
    out: dict[str, Any] = {}
    if _of_exits(submodel) or _of_exits(loss):
        out["model"] = exits
    if _of_exits(submodel):
        out["objective"] = OBJECTIVES["self_distillation"]()
    if getattr(loss, "needs", None) is Needs.SURVIVAL:
        out |= {"model": one_output, "data": survival(dtype)}
    if getattr(loss, "needs", None) is Needs.DRAWN_PARTS:
        out |= {"submodel": FjORD(), "capacities": CAPACITIES}
    return out


class End(NamedTuple):
    """What a run has learnt and what it has cost. history: without what a clock gave."""

    srv: Rec
    memory: dict[int, Rec]
    up: dict[str, int]
    down: dict[str, int]
    history: list[dict[str, Any]]


def run(exp: Experiment) -> End:
    """Run an experiment without a run folder -> how it ended."""
    loop = exp.build()
    try:
        loop.engine.open(loop.plan, loop.fed, loop.net)
        loop.begin()
        loop.until(exp.rounds)
        return finish(loop)
    finally:
        loop.engine.close()


def finish(loop: Run) -> End:
    """Everything of a loop that another engine must agree on."""
    history = [{k: v for k, v in row.items() if k != "seconds"} for row in loop.log.history]
    memory = loop.memory.get(range(loop.fed.population))
    return End(
        loop.state.srv, memory, dict(loop.state.ledger.up), dict(loop.state.ledger.down), history
    )
