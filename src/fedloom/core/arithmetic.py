"""Sums and means of doubles of any size. It needs no torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any


def total(values: Iterable[float]) -> float:
    """math.fsum, but inf or nan instead of an exception if no double holds the sum.

    >>> total([0.1] * 10), total([1e308, 1e308])
    (1.0, inf)
    """
    values = list(values)
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):  # an intermediate sum; inf - inf
        return sum(values)


def average(values: Sequence[float]) -> float:
    """The mean of doubles. If all are finite, so is the mean, even if their sum is not.

    >>> average([1.0, 2.0]), average([1e308, 1e308])
    (1.5, 1e+308)
    """
    try:
        return math.fsum(values) / len(values)
    except (OverflowError, ValueError):
        return total(v / len(values) for v in values)


def plain_number(value: Any) -> Any:
    """A number of numpy or torch, or an array of one, as Python's own; another value as it is.

    >>> import numpy
    >>> plain_number(numpy.float32(0.5)), plain_number("0.5")
    (0.5, '0.5')
    """
    return value.item() if getattr(value, "ndim", None) == 0 else value
