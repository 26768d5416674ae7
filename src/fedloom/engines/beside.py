"""The evaluation of a model that worker processes do where the next cohort leaves them idle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.vector import Vec
from .evaluation import Score


@dataclass
class Beside:
    """A model, what it is evaluated on, and the results: parts that are on their way, or found."""

    x: Vec
    buffers: Vec
    inputs: Tensor
    targets: Tensor
    post: str  # of the model, see shared_memory.Board
    results: Iterator[Any] | None = None
    found: list[Score] | None = None

    def wait(self) -> None:
        """Wait for results that are on their way."""
        results, self.results = self.results, None  # an interrupt leaves none
        if results is not None:
            self.found = [score for part in results for score in part]

    def of(self, x: Vec, buffers: Vec, inputs: Tensor, targets: Tensor) -> list[Score] | None:
        """The scores of this model on these data, if they were found."""
        same = inputs is self.inputs and targets is self.targets
        same = same and torch.equal(x, self.x) and torch.equal(buffers, self.buffers)
        return self.found if same else None
