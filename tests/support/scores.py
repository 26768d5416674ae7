"""Scores computed plainly, and metrics of a user's own."""

from __future__ import annotations

import torch
from torch import Tensor


def ranked(scores: Tensor, positive: Tensor) -> float:
    """The area under the ROC curve: how often a positive example is above a negative one."""
    one, other = scores[positive][:, None], scores[~positive]
    return float(((one > other) + 0.5 * (one == other)).double().mean())


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    return float((outputs.argmax(1) == targets).double().mean())


def right(outputs: Tensor, targets: Tensor) -> Tensor:
    """By example."""
    return (outputs.argmax(1) == targets).float()


class Auc:
    """Class 1 against the rest, on the whole set; not a number without both."""

    higher_is_better = True

    def __init__(self) -> None:
        self.seen = [(torch.tensor([9.0]), torch.tensor([False]))]  # of nobody

    def reset(self) -> None:
        self.seen = []

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.seen.append((outputs[:, 1] - outputs[:, 0], targets == 1))

    def compute(self) -> float:
        return ranked(*map(torch.cat, zip(*self.seen, strict=True)))
