"""Deal the samples of one data set to clients. A partition is a frozen value; the seed comes later.

    iid                    at random, sizes differ by at most one
    dirichlet              equal sizes, label shares from Dir(alpha) per client (FedACG's)
    dirichlet_unbalanced   per class, shares over the clients from Dir(alpha): unequal sizes
    by_lists               index lists of your own

The first three give disjoint lists that together are complete, each in ascending order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.data.natural import contiguous, natural, writers
from fedloom.data.ragged import Partition, Ragged
from fedloom.errors import DataError
from fedloom.rng import key

__all__ = [
    "PARTITIONS",
    "ByLists",
    "Dirichlet",
    "DirichletUnbalanced",
    "Iid",
    "by_lists",
    "dirichlet",
    "dirichlet_unbalanced",
    "iid",
]

Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, kw_only=True)
class Iid:
    """Deal samples at random; see `iid`."""

    clients: int

    def __post_init__(self) -> None:
        """Refuse a number of clients below one."""
        _check_count("clients", self.clients)

    def split(self, targets: Tensor, seed: int) -> Ragged:
        """Return the lists for targets (n, ...) of any type."""
        _check_enough(self.clients, len(targets))
        order = np.random.default_rng(key(seed, "partition", "iid")).permutation(len(targets))
        return _in_order(order, _even_sizes(len(targets), self.clients))

    def about(self) -> dict[str, Any]:
        """Describe the partition, fit for JSON."""
        return {"kind": "iid", "clients": self.clients}


@dataclass(frozen=True, kw_only=True)
class Dirichlet:
    """Deal equal numbers of samples with label shares from Dir(alpha); see `dirichlet`."""

    alpha: float
    clients: int

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        _check_alpha(self.alpha)
        _check_count("clients", self.clients)

    def split(self, targets: Tensor, seed: int) -> Ragged:
        """Return the lists for labels (n,)."""
        pools, rng = _pools(targets, self.clients, seed, "dirichlet")
        left = np.array([len(pool) for pool in pools], dtype=np.int64)
        sizes = _even_sizes(len(targets), self.clients)
        alphas = np.full(len(pools), self.alpha)
        order = np.empty(len(targets), dtype=np.int64)
        used = np.zeros_like(left)
        start = 0
        for size in sizes.tolist():
            counts = _draw_counts(rng, rng.dirichlet(alphas), left, size)
            for label in counts.nonzero()[0].tolist():
                first, count = used[label], counts[label]
                order[start : start + count] = pools[label][first : first + count]
                start += count
            used += counts
            left -= counts
        return _in_order(order, sizes)

    def about(self) -> dict[str, Any]:
        """Describe the partition, fit for JSON."""
        return {"kind": "dirichlet", "alpha": self.alpha, "clients": self.clients}


@dataclass(frozen=True, kw_only=True)
class DirichletUnbalanced:
    """Deal each class by shares from Dir(alpha) over clients; see `dirichlet_unbalanced`."""

    alpha: float
    clients: int
    min_size: int = 1
    tries: int = 1000

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        _check_alpha(self.alpha)
        for name in ("clients", "min_size", "tries"):
            _check_count(name, getattr(self, name))

    def split(self, targets: Tensor, seed: int) -> Ragged:
        """Return the lists for labels (n,)."""
        pools, rng = _pools(targets, self.clients, seed, "dirichlet_unbalanced")
        if self.clients * self.min_size > len(targets):
            raise DataError(
                f"{self.clients} clients with min_size={self.min_size} need "
                f"{self.clients * self.min_size} samples, but there are {len(targets)}; take fewer "
                "clients or a smaller min_size"
            )
        totals = np.array([len(pool) for pool in pools])[:, None]
        best = 0
        for _ in range(self.tries):
            shares = rng.dirichlet(np.full(self.clients, self.alpha), size=len(pools))
            cuts = np.floor(np.cumsum(shares, axis=1) * totals + 1e-9).astype(np.int64)
            cuts[:, -1] = totals[:, 0]  # the sum of the shares is 1 but for rounding
            counts = np.diff(np.minimum(cuts, totals), axis=1, prepend=0)  # (classes, clients)
            smallest = int(counts.sum(axis=0).min())
            if smallest >= self.min_size:
                return _deal(pools, counts)
            best = max(best, smallest)
        raise DataError(
            f"no split of {len(targets)} samples over {self.clients} clients with "
            f"alpha={self.alpha} gave everyone {self.min_size} in {self.tries} tries (best try: "
            f"{best}); take a larger alpha, fewer clients, a smaller min_size, or dirichlet, "
            "which has equal sizes"
        )

    def about(self) -> dict[str, Any]:
        """Describe the partition, fit for JSON."""
        return {
            "kind": "dirichlet_unbalanced",
            "alpha": self.alpha,
            "clients": self.clients,
            "min_size": self.min_size,
            "tries": self.tries,
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class ByLists:
    """Deal samples by given lists; see `by_lists`."""

    lists: Ragged

    def split(self, targets: Tensor, seed: int) -> Ragged:
        """Return the lists as they are; raises DataError where they name more than there is."""
        indices = self.lists.indices
        if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < len(targets):
            raise DataError(
                f"the lists name samples {int(indices.min())} to {int(indices.max())}, but there "
                f"are {len(targets)} samples, numbered from 0"
            )
        return self.lists

    def about(self) -> dict[str, Any]:
        """Describe the partition, fit for JSON: the digest stands for the lists."""
        digest = self.lists.digest()
        return {"kind": "lists", "clients": self.lists.count, "sha256": digest}


def iid(clients: int) -> Iid:
    """Deal all samples at random; sizes differ by at most one. Fits any targets.

    >>> iid(clients=3).split(torch.zeros(7), seed=0).sizes.tolist()
    [3, 2, 2]
    """
    return Iid(clients=clients)


def dirichlet(alpha: float, clients: int) -> Dirichlet:
    """Deal equal numbers of samples to clients whose label shares differ (FedACG's partition).

    For client i = 0, 1, ...: p_i ~ Dir(alpha 1_C); every sample that nobody has yet weighs
    p_i[label], and n // N samples are drawn without replacement by these weights. Early clients
    follow their p_i closely, later ones get what is left. Two rulings where the published code
    leaves samples over or fails: the n % N left over go one each to the first clients, and a
    client whose classes are used up (tiny alpha) draws the rest uniformly from what is left.
    Small alpha (0.1) gives clients of one or two classes, large alpha (100) nearly iid ones.

    Source: Kim, Kim and Han, FedACG, CVPR 2024, and its code. Raises DataError for alpha outside
    [1e-9, 1e9], fewer than one client, more clients than samples, targets that are no labels.

    >>> lists = dirichlet(0.3, clients=4).split(torch.arange(20) % 5, seed=0)
    >>> lists.sizes.tolist(), sorted(lists.indices.tolist()) == list(range(20))
    ([5, 5, 5, 5], True)
    """
    return Dirichlet(alpha=alpha, clients=clients)


def dirichlet_unbalanced(
    alpha: float, clients: int, min_size: int = 1, tries: int = 1000
) -> DirichletUnbalanced:
    """Deal every class by shares over the clients from Dir(alpha 1_N): sizes differ as well.

    All shares are drawn again until every client has at least min_size samples, at most `tries`
    times. Source: Yurochkin et al., ICML 2019 (a Dirichlet draw per class over the clients).
    Raises DataError as `dirichlet` does, and when no try succeeded.

    >>> lists = dirichlet_unbalanced(1.0, clients=3).split(torch.arange(30) % 5, seed=0)
    >>> int(lists.sizes.min()) >= 1, int(lists.sizes.sum())
    (True, 30)
    """
    return DirichletUnbalanced(alpha=alpha, clients=clients, min_size=min_size, tries=tries)


def by_lists(lists: Iterable[Any] | Ragged) -> ByLists:
    """Deal samples by explicit index lists, one per client; they may overlap or leave some out.

    >>> by_lists([[0, 2], [1]]).split(torch.zeros(3), seed=0).of(0).tolist()
    [0, 2]
    """
    return ByLists(lists=lists if isinstance(lists, Ragged) else Ragged.from_lists(lists))


PARTITIONS: dict[str, Callable[..., Partition]] = {
    "natural": natural,
    "writers": writers,
    "contiguous": contiguous,
    "iid": iid,
    "dirichlet": dirichlet,
    "dirichlet_unbalanced": dirichlet_unbalanced,
}


def _check_count(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise DataError(f"{name} must be a whole number of at least 1, got {value!r}")


def _check_alpha(alpha: float) -> None:
    number = isinstance(alpha, int | float) and not isinstance(alpha, bool)
    if not number or not math.isfinite(alpha) or not 1e-9 <= alpha <= 1e9:
        raise DataError(
            f"alpha must be in [1e-9, 1e9], got {alpha!r}; 0.1 is very uneven, 100 nearly iid"
        )


def _check_enough(clients: int, samples: int) -> None:
    if clients > samples:
        raise DataError(
            f"{clients} clients cannot share {samples} samples; take at most {samples} clients"
        )


def _pools(
    targets: Tensor, clients: int, seed: int, kind: str
) -> tuple[list[Ints], np.random.Generator]:
    """Shuffle the indices of every class that occurs; classes come in ascending order."""
    if targets.is_floating_point() or targets.ndim != 1:
        raise DataError(
            f"{kind} needs labels (n,) int64, but the targets are {targets.dtype} of shape "
            f"{tuple(targets.shape)}; for regression use iid or by_lists"
        )
    _check_enough(clients, len(targets))
    rng = np.random.default_rng(key(seed, "partition", kind))
    labels = targets.numpy()
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    sizes = np.unique(labels, return_counts=True)[1]
    return np.split(order, np.cumsum(sizes)[:-1]), rng


def _even_sizes(samples: int, clients: int) -> Ints:
    sizes = np.full(clients, samples // clients, dtype=np.int64)
    sizes[: samples % clients] += 1
    return sizes


def _in_order(order: Ints, sizes: Ints) -> Ragged:
    """Cut order into lists of these sizes, and put each list in ascending order."""
    owners = np.repeat(np.arange(len(sizes)), sizes)
    indices = order[np.lexsort((order, owners))]
    return Ragged.from_sizes(torch.from_numpy(sizes), torch.from_numpy(indices))


def _deal(pools: list[Ints], counts: Ints) -> Ragged:
    """Give client i the next counts[c, i] samples of every pool c."""
    clients = np.arange(counts.shape[1])
    owners = np.concatenate([np.repeat(clients, row) for row in counts])
    order = np.concatenate(pools)
    indices = order[np.lexsort((order, owners))]
    return Ragged.from_sizes(torch.from_numpy(counts.sum(axis=0)), torch.from_numpy(indices))


def _draw_counts(rng: np.random.Generator, weights: Floats, left: Ints, size: int) -> Ints:
    """Count the labels of `size` samples drawn without replacement, a sample weighing weights[c].

    left[c] samples of class c can still be drawn. What no positive weight is left for is drawn
    uniformly: shares of a tiny alpha underflow to zero.
    """
    counts = np.zeros_like(left)
    some = (weights > 0) & (left > 0)
    first = min(size, int(left[some].sum()))
    counts[some] = _race(rng, weights[some], left[some], first)
    if first < size:
        rest = left - counts
        some = rest > 0
        counts[some] += _race(rng, np.ones(int(some.sum())), rest[some], size - first)
    return counts


def _race(rng: np.random.Generator, weights: Floats, left: Ints, size: int) -> Ints:
    """Draw as if one sample after the other, all at once.

    Give every sample an exponential clock of rate weights[c]: the first `size` to ring are
    distributed as sequential draws without replacement (Efraimidis and Spirakis 2006). Within a
    class only the times of the first, second, ... ring matter, and with j of n gone the next gap is
    exponential of rate (n - j) weights[c]. Logarithms, because a weight may be 1e-300.
    """
    if size == 0:
        return np.zeros_like(left)
    if size == left.sum():
        return left
    depth = min(size, int(left.max()))
    waiting = left[:, None] - np.arange(depth)  # (classes, depth)
    gaps = rng.standard_exponential(waiting.shape) / np.maximum(waiting, 1)
    with np.errstate(divide="ignore"):  # a gap of exactly 0 rings first
        times = np.log(np.cumsum(gaps, axis=1)) - np.log(weights)[:, None]
    times[waiting <= 0] = np.inf
    winners = np.argpartition(times, size - 1, axis=None)[:size]
    return np.bincount(winners // depth, minlength=len(left))
