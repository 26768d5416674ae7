"""What is measured beside the loss; any function of outputs and targets will do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from .data import FederatedData
from .objectives import Objective

__all__ = ["accuracy", "default_metrics"]


def accuracy(outputs: Any, targets: Any) -> Tensor:
    """1 where the largest output is the target's, else 0: (B, C) and (B,) -> (B,); sequences (B, C,
    T) -> their share.

    >>> import torch
    >>> accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
    tensor([1., 0.])
    """
    right: Tensor = (outputs.argmax(1) == targets).float()
    return right if right.ndim == 1 else right.flatten(1).mean(1)


def default_metrics(
    objective: Objective, data: FederatedData
) -> dict[str, Callable[[Any, Any], Tensor]]:
    """Accuracy where the targets are labels; for numbers the loss is the measure."""
    return {} if data.classes is None else {"accuracy": accuracy}
