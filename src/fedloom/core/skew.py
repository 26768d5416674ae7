"""How unequal clients are: formulas on numbers alone, for data sets and for reports."""

from __future__ import annotations

from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]


def gini(values: Any) -> float:
    """The Gini coefficient of numbers (N,) from 0: the mean absolute difference of two of them,
    drawn with replacement, over twice their mean.

    >>> gini([3, 3, 3]), gini([0, 0, 0, 8])
    (0.0, 0.75)
    """
    v = np.sort(np.asarray(values, dtype=np.float64))
    n, total = len(v), float(v.sum())
    if total == 0:
        return 0.0
    return float(2 * (np.arange(1, n + 1) * v).sum() / (n * total) - (n + 1) / n)


def between_pairs(p: Floats) -> float:
    """Mean of sum_c |p_ic - p_jc| / 2 over the pairs i < j of distributions (N, C), the total
    variation between two of them; 0 for one.

    In sorted order the k-th of N values of a class is subtracted N - k times and added k - 1 times,
    so no loop over pairs is needed: 10,000 clients take milliseconds.

    >>> between_pairs(np.array([[1.0, 0.0], [0.0, 1.0]]))
    1.0
    """
    n = len(p)
    if n < 2:
        return 0.0
    signs = 2 * np.arange(1, n + 1) - n - 1
    return float((signs[:, None] * np.sort(p, axis=0)).sum() / (n * (n - 1)))


def label_distance(counts: Any) -> float:
    """How much the labels of two clients differ on average, in [0, 1]: the total variation between
    the label distributions of label counts (N, C). Clients without samples are left out.

    >>> label_distance([[5, 0], [0, 3], [0, 0]])
    1.0
    """
    table = np.asarray(counts, dtype=np.float64)
    filled = table[table.sum(axis=1) > 0]
    return between_pairs(filled / filled.sum(axis=1, keepdims=True))
