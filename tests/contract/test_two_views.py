"""Samples of which training sees two views, and evaluation one: in every engine."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from test_unmeasured import ENGINES, ends
from torch import Tensor
from torch.nn import functional

from fedloom import FedAvg
from fedloom.data.transforms import Transform
from fedloom.objectives import CrossEntropy
from tiny import clusters


@dataclasses.dataclass(frozen=True)
class TwoViews(Transform):
    """(n, 5) in evaluation, two noisy copies (n, 2, 5) in training."""

    @property
    def draws(self) -> int:
        return 10

    @property
    def out(self) -> torch.dtype:
        return torch.float64

    def plain(self, inputs: Tensor) -> Tensor:
        return inputs

    def augmented(self, inputs: Tensor, draws: Tensor) -> Tensor:
        return inputs[:, None] + draws.view(-1, 2, 5).to(inputs) / 4


class Agreement(CrossEntropy):
    """The outputs of two views are to be alike; by example."""

    def loss(self, net, x, batch, ref, mem):
        views, targets = batch
        one, other = (net(x, views[:, v]) for v in (0, 1))
        return functional.cross_entropy(one, targets, reduction="none") + ((one - other) ** 2).sum(
            1
        )


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_two_views_of_a_sample_are_trained_in_every_engine(engine, engine_of):
    engine = engine_of(engine) if engine.startswith("workers") else engine
    given = {"data": dataclasses.replace(clusters(torch.float64), transform=TwoViews())}
    given |= {"objective": Agreement(), "metrics": {"norm": lambda out, y: out.norm(dim=1)}}
    one, rows = ends(FedAvg(), engine, **given)
    other, alone = ends(FedAvg(), "serial", **given)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    losses = [[row["train_loss"] for row in found] for found in (rows, alone)]
    assert losses[0] == pytest.approx(losses[1]) and None not in losses[0]
