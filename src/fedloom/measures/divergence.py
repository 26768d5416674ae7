"""How far the local models of a round lie apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..core.vector import Vec
from ..server.rounds import Run
from .base import Measure, Readings
from .local_models import local_models


def divergence(models: Sequence[Vec], around: Vec) -> float:
    """1/n sum ||x_i - x||^2 of models (d,) around another one.

    >>> divergence([torch.tensor([1.0, 0.0]), torch.tensor([0.0, 3.0])], torch.zeros(2))
    5.0
    """
    squares = [float((x - around).double().square().sum()) for x in models]
    return math.fsum(squares) / len(squares)


class Divergence(Measure):
    """The weight divergence 1/n sum ||x_i - x||^2 of the local models of the next cohort.

    Around the server's model at the round's end (FedSMOO's Table 2), at its beginning (FedACG's
    Figure 2b) and around their own mean; beside them the squared length of the model, to divide by.
    It costs a round. A run's columns are divergence, divergence_before and divergence_mean. Source:
    Sun et al., FedSMOO, ICML 2023, Table 2; Kim et al., FedACG, CVPR 2024, Figure 2b.
    """

    def _of(self, run: Run) -> Readings:
        local = local_models(run)
        models = list(local.models.values())
        middle = torch.stack(models).mean(0)
        each = {str(i): divergence([x], local.after) for i, x in local.models.items()}
        return {
            "clients": len(models),
            "after": divergence(models, local.after),
            "before": divergence(models, local.before),
            "mean": divergence(models, middle),
            "model_square": float(local.after.double().square().sum()),
            "each": each,
        }

    def columns(self, result: Mapping[str, Any]) -> dict[str, float]:
        names = {"divergence": "after", "divergence_before": "before", "divergence_mean": "mean"}
        return {name: result[key] for name, key in names.items()}
