"""What the partitions share: checks, pools of shuffled indices per class, lists cut from them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.core.rng import key
from fedloom.data.client_indices import Ragged
from fedloom.errors import DataError

Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Pools = list[Ints]  # per class, ascending, the shuffled indices of its samples


# ------------------------------------------------------------------------------------------ checks
def check_count(name: str, value: int) -> None:
    """Raise DataError for anything but a whole number of at least one."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise DataError(f"{name} must be a whole number of at least 1, got {value!r}")


def check_alpha(alpha: float) -> None:
    """Raise DataError for an alpha that no Dirichlet distribution can be drawn with."""
    number = isinstance(alpha, int | float) and not isinstance(alpha, bool)
    if not number or not math.isfinite(alpha) or not 1e-9 <= alpha <= 1e9:
        raise DataError(
            f"alpha must be in [1e-9, 1e9], got {alpha!r}; 0.1 is very uneven, 100 nearly iid"
        )


def check_enough(clients: int, samples: int) -> None:
    """Raise DataError where somebody would get nothing."""
    if clients > samples:
        raise DataError(
            f"{clients} clients cannot share {samples} samples; take at most {samples} clients"
        )


def check_classes(classes: int, there: int) -> None:
    """Raise DataError for more classes per client than there are."""
    if classes > there:
        raise DataError(
            f"a client cannot hold {classes} classes, the labels have {there}; take at most {there}"
        )


# ------------------------------------------------------------------------------------------- pools
def stream(seed: int, *place: str) -> np.random.Generator:
    """A generator for one part of one partition."""
    return np.random.default_rng(key(seed, "partition", *place))


def pools_for_training(
    targets: Tensor, clients: int, seed: int, kind: str
) -> tuple[Pools, np.random.Generator]:
    """Shuffle the indices of every class that occurs. The generator is for the draws to come.

    Raises DataError for targets that are no labels (n,), and for more clients than samples.
    """
    labels, rng = _labels(targets, kind), stream(seed, kind)
    check_enough(clients, len(labels))
    return _pools(labels, np.unique(labels), rng), rng


def pools_for_tests(
    targets: Tensor, tests: Tensor, clients: int, seed: int, kind: str
) -> tuple[Pools, np.random.Generator]:
    """Shuffle test labels alike, for the classes of the training labels: a pool may be empty.

    Raises DataError as pools_for_training does, and for a class that training does not know.
    """
    labels, rng = _labels(tests, kind), stream(seed, kind, "tests")
    if clients > len(labels):
        raise DataError(
            f"{clients} clients cannot share {len(labels)} test samples; take at most "
            f"{len(labels)} clients, or no client test sets"
        )
    classes = np.unique(_labels(targets, kind))
    if len(odd := np.setdiff1d(labels, classes)):
        raise DataError(
            f"the test set has class {odd[0]}, which no training sample has: it can match no "
            "client's labels; take independent test sets"
        )
    return _pools(labels, classes, rng), rng


def _labels(targets: Tensor, kind: str) -> Ints:
    if targets.is_floating_point() or targets.ndim != 1:
        raise DataError(
            f"{kind} needs labels (n,) int64, but the targets are {targets.dtype} of shape "
            f"{tuple(targets.shape)}; for these use iid, blocks or by_lists"
        )
    labels: Ints = targets.cpu().numpy()
    return labels


def _pools(labels: Ints, classes: Ints, rng: np.random.Generator) -> Pools:
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    sizes = np.bincount(np.searchsorted(classes, labels), minlength=len(classes))
    return np.split(order, np.cumsum(sizes)[:-1])


# ------------------------------------------------------------------------------------------- lists
def even_sizes(samples: int, parts: int) -> Ints:
    """Sizes that differ by at most one, the larger ones first.

    >>> even_sizes(7, 3).tolist()
    [3, 2, 2]
    """
    sizes = np.full(parts, samples // parts, dtype=np.int64)
    sizes[: samples % parts] += 1
    return sizes


def ranks(values: Ints) -> Ints:
    """How often each value has come before.

    >>> ranks(np.array([5, 2, 5, 5, 2])).tolist()
    [0, 0, 1, 2, 1]
    """
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    out = np.empty_like(order)
    out[order] = np.arange(len(values)) - np.searchsorted(ordered, ordered)
    return out


def in_order(order: Ints, sizes: Ints) -> Ragged:
    """Cut order into lists of these sizes, and put each list in ascending order."""
    owners = np.repeat(np.arange(len(sizes)), sizes)
    indices = order[np.lexsort((order, owners))]
    return Ragged.from_sizes(torch.from_numpy(sizes), torch.from_numpy(indices))


def deal(pools: Pools, counts: Ints) -> Ragged:
    """Give client i the next counts[c, i] samples of every pool c; what is over is left out."""
    clients = np.arange(counts.shape[1])
    owners = np.concatenate([np.repeat(clients, row) for row in counts])
    totals = counts.sum(axis=1).tolist()
    order = np.concatenate([pool[:n] for pool, n in zip(pools, totals, strict=True)])
    indices = order[np.lexsort((order, owners))]
    return Ragged.from_sizes(torch.from_numpy(counts.sum(axis=0)), torch.from_numpy(indices))


def by_owner(order: Ints, whose: Ints, clients: int) -> Ragged:
    """Give each index of order (n,) to the client in whose (n,)."""
    sizes = np.bincount(whose, minlength=clients)
    return in_order(order[np.argsort(whose, kind="stable")], sizes)
