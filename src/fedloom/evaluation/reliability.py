"""The reliability curve of a binary outcome: among examples with about the same probability, how
many are of the second class. Murphy and Winkler, Applied Statistics 26 (1977).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..engines.scores import Score
from .metrics import brier

BINS = 10  # of equal width
LEAST = 10  # examples of a bin, and of each class in it that is there, of which a node tells
# in each bin: examples, the sum of their probabilities, those of the second class
Bins = list[list[float]]


def binned(score: Score, metrics: Mapping[str, Any], targets: Tensor | None) -> Tensor | None:
    """What each of the examples of a score adds to the bins, (n, 3, BINS); None without the metric
    `brier` of two classes.

    targets: of these examples, (n,) or (n, 1), 0 or 1. An example's probability of the second class
    follows from its Brier score b: it is sqrt(b) for class 0, and 1 - sqrt(b) for class 1.
    """
    name = next((k for k, metric in metrics.items() if metric is brier and k in score.each), None)
    if name is None or targets is None or bool((targets > 1).any()):
        return None
    outcome = targets.reshape(-1).cpu().double()
    likely = (outcome - score.each[name].double().sqrt()).abs()
    bins = (likely * BINS).long().clamp(0, BINS - 1)
    columns = torch.stack([torch.ones_like(likely), likely, outcome], 1)
    return columns[:, :, None] * torch.nn.functional.one_hot(bins, BINS)[:, None, :]


def disclosed(bins: Tensor | None, least: int = LEAST) -> Bins:
    """What a node tells of its examples: nothing of bins with fewer than `least` of them, or of
    one of the classes in it.
    """
    if bins is None:
        return []
    total = bins.sum(0)
    counts = torch.stack([total[2], total[0] - total[2]])
    few = (total[0] < least) | ((counts > 0) & (counts < least)).any(0)
    return (total * ~few).tolist()
