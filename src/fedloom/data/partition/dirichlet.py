"""Label shares from a Dirichlet distribution: per client (equal sizes), or per class (unequal)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from fedloom.core.hyper import PositiveInt, hyper
from fedloom.data.client_indices import Ints, Ragged
from fedloom.data.partition.base import (
    Alpha,
    ByLabel,
    Clients,
    Floats,
    NamedPartition,
    Pools,
    assign,
    even_sizes,
    in_order,
)
from fedloom.errors import DataError

_LOOK, _HOPELESS = 10, 50  # tries, and clients that come short in each of them


class dirichlet(ByLabel, NamedPartition):
    """Assign equal numbers of samples to clients whose label shares differ (FedACG's partition).

    For client i = 0, 1, ...: p_i ~ Dir(alpha 1_C); every sample that nobody has yet weighs
    p_i[label], and n // N samples are drawn without replacement by these weights. Early clients
    follow their p_i closely, later ones get the rest. Two rules where the published code leaves
    samples over or fails: the n % N left over go one each to the first clients, and a
    client whose classes are used up (tiny alpha) draws the rest uniformly from all that are left.
    Small alpha (0.1) gives clients of one or two classes, large alpha (100) nearly iid ones.

    Source: Kim, Kim and Han, FedACG, CVPR 2024, and its code. Raises DataError for alpha outside
    [1e-9, 1e9], fewer than one client, more clients than samples, targets that are no labels.

    >>> import torch
    >>> lists = dirichlet(0.3, clients=4).split(torch.arange(20) % 5, seed=0)
    >>> lists.sizes.tolist(), sorted(lists.indices.tolist()) == list(range(20))
    ([5, 5, 5, 5], True)
    """

    alpha: Alpha = hyper()
    clients: Clients = hyper()

    def split(self, targets: Tensor, seed: int) -> Ragged:
        """Return the lists for labels (n,)."""
        return self._train(targets, seed, [])

    def split_tests(self, targets: Tensor, tests: Tensor, seed: int) -> Ragged:
        """Return test lists by the same procedure with the clients' own shares p_i."""
        laws: list[Floats] = []
        self._train(targets, seed, laws)
        pools, rng = self._test_pools(targets, tests, seed)
        return self._fill(pools, rng, iter(laws))

    def _train(self, targets: Tensor, seed: int, laws: list[Floats]) -> Ragged:
        pools, rng = self._pools(targets, seed)
        return self._fill(pools, rng, self._laws(rng, len(pools), laws))

    def _laws(
        self, rng: np.random.Generator, classes: int, record: list[Floats]
    ) -> Iterator[Floats]:
        """One client's shares (C,) after another, each drawn when its turn comes, and recorded."""
        alphas = np.full(classes, self.alpha)
        while True:
            record.append(rng.dirichlet(alphas))
            yield record[-1]

    def _fill(self, pools: Pools, rng: np.random.Generator, laws: Iterator[Floats]) -> Ragged:
        left = np.array([len(pool) for pool in pools], dtype=np.int64)
        samples = int(left.sum())
        sizes = even_sizes(samples, self.clients)
        order = np.empty(samples, dtype=np.int64)
        used = np.zeros_like(left)
        start = 0
        for size in sizes.tolist():
            counts = _draw_counts(rng, next(laws), left, size)
            for label in counts.nonzero()[0].tolist():
                first, count = used[label], counts[label]
                order[start : start + count] = pools[label][first : first + count]
                start += count
            used += counts
            left -= counts
        return in_order(order, sizes)


class dirichlet_unbalanced(ByLabel, NamedPartition):
    """Assign every class by shares over the clients from Dir(alpha 1_N): sizes differ as well.

    All shares are drawn again until every client has at least min_size samples, at most `tries`
    times, or until it is clear that this will not happen. capped: class after class, clients that
    hold n / N samples get no more, and the others' shares are scaled up.

    Source: Yurochkin et al., ICML 2019 (a draw per class over the clients). Capped it is the rule
    of FIARSE's code for text (alpha 1, min_size 4) and of FedACG's unused one (min_size 10). Raises
    DataError as `dirichlet` does, and when no try succeeded.

    >>> import torch
    >>> lists = dirichlet_unbalanced(1.0, clients=3).split(torch.arange(30) % 5, seed=0)
    >>> int(lists.sizes.min()) >= 1, int(lists.sizes.sum())
    (True, 30)
    """

    alpha: Alpha = hyper()
    clients: Clients = hyper()
    min_size: PositiveInt = hyper(1, "training samples that every client gets")
    tries: PositiveInt = hyper(1000, "draws before it is given up")
    capped: bool = False

    def _assign(self, pools: Pools, rng: np.random.Generator, targets: Tensor, seed: int) -> Ragged:
        trained, draws = self._pools(targets, seed)
        shares = self._find(np.array([len(pool) for pool in trained]), draws)
        return assign(pools, _counts(shares, np.array([len(pool) for pool in pools])))

    def _find(self, totals: Ints, rng: np.random.Generator) -> Floats:
        """Draw shares (C, N) until every client has min_size samples of classes of these sizes."""
        samples, best, attempts, fewest = int(totals.sum()), 0, 0, self.clients
        if self.clients * self.min_size > samples:
            raise DataError(
                f"{self.clients} clients with min_size={self.min_size} need "
                f"{self.clients * self.min_size} samples, but there are {samples}; take fewer "
                "clients or a smaller min_size"
            )
        while attempts < self.tries and (attempts < _LOOK or fewest < _HOPELESS):
            shares = self._draw(totals, rng)
            sizes = _counts(shares, totals).sum(axis=0)
            attempts, best = attempts + 1, max(best, int(sizes.min()))
            fewest = min(fewest, int((sizes < self.min_size).sum()))
            if not fewest:
                return shares
        raise DataError(
            f"no split of {samples} samples over {self.clients} clients with "
            f"alpha={self.alpha} gave everyone {self.min_size} in {attempts} tries (best try: "
            f"{best}; {fewest} clients or more came short); take a larger alpha, fewer clients, "
            "a smaller min_size, or dirichlet, which has equal sizes"
        )

    def _draw(self, totals: Ints, rng: np.random.Generator) -> Floats:
        if not self.capped:
            return rng.dirichlet(np.full(self.clients, self.alpha), size=len(totals))
        shares = np.zeros((len(totals), self.clients))
        sizes = np.zeros(self.clients, dtype=np.int64)
        for label in range(len(totals)):
            # Dir(alpha 1_N) with some shares set to 0 and the rest scaled up is Dir(alpha) of the
            # rest, which also exists where the rest of a tiny alpha is 0 in floating point
            open_to = (sizes * self.clients < totals.sum()).nonzero()[0]
            shares[label, open_to] = rng.dirichlet(np.full(len(open_to), self.alpha))
            sizes += _counts(shares[label : label + 1], totals[label : label + 1])[0]
        return shares


def _counts(shares: Floats, totals: Ints) -> Ints:
    """Cut classes of these sizes (C,) by shares (C, N) -> counts (C, N)."""
    ends = totals[:, None]
    cuts = np.floor(np.cumsum(shares, axis=1) * ends + 1e-9).astype(np.int64)
    cuts[:, -1] = totals  # the sum of the shares is 1 but for rounding
    return np.diff(np.minimum(cuts, ends), axis=1, prepend=0)


def _draw_counts(rng: np.random.Generator, weights: Floats, left: Ints, size: int) -> Ints:
    """Count the labels of `size` samples drawn without replacement, a sample weighing weights[c].

    left[c] samples of class c can still be drawn. If no class with a positive weight is left, the
    rest is drawn uniformly: shares of a tiny alpha underflow to zero.
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
