"""The concordance index: are those whose event comes first those with the higher risk?"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..objectives.cox import columns

_AT_ONCE = 1000  # events that are compared with everybody together


class Concordance:
    """Harrell's concordance index on a whole set: the share of comparable pairs in which the one
    with the earlier event has the higher output; equal outputs count half.

    A pair is comparable if the earlier time is that of an event; of two at the same time, an event
    comes before a censored example, and two events are not compared (as lifelines counts them).
    Targets are (n, 2), time and event; the outputs are risks.

    >>> metric = Concordance()
    >>> metric.update(torch.tensor([2.0, 3.0, 1.0]), torch.tensor([[1.0, 1], [2, 1], [3, 0]]))
    >>> round(metric.compute(), 4)
    0.6667
    """

    higher_is_better = True

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        self._batches: list[tuple[Tensor, ...]] = []

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Add one batch: outputs (B,) or (B, 1), targets (B, 2)."""
        self._batches.append((outputs.detach().reshape(-1), *columns(outputs, targets)))

    def compute(self) -> float:
        """The index; NaN where no pair is comparable."""
        if not self._batches:
            return math.nan
        risks, times, events = map(torch.cat, zip(*self._batches, strict=True))
        right, pairs = 0.0, 0
        for some in torch.split((events > 0).nonzero()[:, 0], _AT_ONCE):
            later = (times > times[some, None]) | (
                (times == times[some, None]) & (events == 0)
            )  # (k, n)
            gap = risks[some, None] - risks
            right += float(((gap > 0) & later).sum()) + 0.5 * float(((gap == 0) & later).sum())
            pairs += int(later.sum())
        return right / pairs if pairs else math.nan
