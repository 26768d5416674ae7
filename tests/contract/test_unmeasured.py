"""A method that computes no gradient of a step has no training loss, in any engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_deployment import deployed
from torch import Tensor

from fedloom import FedAvg, Local
from fedloom.checks.tiny_federation import experiment
from fedloom.errors import ClientError
from fedloom.objectives import CrossEntropy
from tiny import small, timeless, trace

ENGINES = ("serial", "workers:2", "vectorised:1", "vectorised:3", "workers:2+vectorised:2", "auto")


class Walks(FedAvg):
    """A direction that asks for no gradient."""

    def direction(self, x, loc, msg, mem, grad, job):
        return torch.ones_like(x), loc


class Looks(FedAvg):
    """Losses alone, of the batch and of all data."""

    def direction(self, x, loc, msg, mem, grad, job):
        return torch.ones_like(x) * torch.sign(grad.loss(x) + job.full.loss(x)), loc


class Whole(FedAvg):
    """The gradient over all data, and none of the batch."""

    def direction(self, x, loc, msg, mem, grad, job):
        return job.full(x), loc


def ends(kind: Any, engine: Any, **more: Any) -> tuple[Tensor, list[dict[str, Any]]]:
    """The last model, and the rows."""
    made = small(kind, torch.float64, local=Local(steps=3, batch=4, lr=0.25), engine=engine, **more)
    start, *_, loop = [(t.state.srv.x.clone(), t) for t in trace(made, 2)]
    return loop[0] - start[0], timeless(loop[1].log.history)


@pytest.mark.quick("Walks")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", [Walks, Looks])
def test_a_direction_without_a_gradient_runs_and_has_no_loss(kind, engine, engine_of):
    engine = engine_of(engine) if engine.startswith("workers") else engine
    moved, rows = ends(kind(), engine)
    assert torch.allclose(moved, torch.full_like(moved, -2 * 3 * 0.25))  # rounds, steps, lr
    assert [row["train_loss"] for row in rows] == [None, None]
    assert [row["gradients"] for row in rows] == [0, 0]
    assert [row["answered"] for row in rows] == [4, 4]


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_the_gradient_of_all_data_is_no_loss_of_a_step(engine, engine_of):
    engine = engine_of(engine) if engine.startswith("workers") else engine
    one, rows = ends(Whole(), engine)
    other, alone = ends(Whole(), "serial")
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    assert [row["train_loss"] for row in [*rows, *alone]] == [None] * 4
    assert [row["gradients"] for row in rows] == [row["gradients"] for row in alone]


def test_a_node_without_a_gradient_sends_no_loss(tmp_path: Path):
    short = {"local": Local(epochs=1, batch=4, lr=0.05), "rounds": 2}
    end, engine = deployed(lambda: experiment(algorithm=Walks(), **short), tmp_path)
    assert [row["train_loss"] for row in end.history] == [None, None] and not engine.refused


def test_a_loss_that_is_not_finite_is_still_an_error(engine_of):
    class Bad(CrossEntropy):
        def loss(self, net, x, batch, ref, mem):
            return super().loss(net, x, batch, ref, mem) * float("nan")

    for engine in ("serial", "vectorised:3"):
        with pytest.raises(ClientError, match="its loss was nan"):
            ends(FedAvg(), engine, objective=Bad())
