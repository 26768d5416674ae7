"""Label shares from a Dirichlet distribution: client after client, per class (unequal sizes), or
sample by sample in a random order of the clients.

That order is FedSMOO's and FIARSE's code's: one client after the other, drawn uniformly among those
whose quota is not full. What a client takes is a class drawn from its own p_i; the partitions
differ in where p_i comes from and in what happens when a class has no sample left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
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
    check_classes,
    even_sizes,
    in_order,
    ranks,
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
    """

    alpha: Alpha = hyper()
    clients: Clients = hyper()

    def split(self, targets: Tensor, seed: int) -> Ragged:
        """Return the lists for labels (n,)."""
        return self._fill(*self._pools(targets, seed))[0]

    def split_tests(self, targets: Tensor, tests: Tensor, seed: int) -> Ragged:
        """Return test lists by the same procedure with the clients' own shares p_i."""
        laws = self._fill(*self._pools(targets, seed))[1]
        return self._fill(*self._test_pools(targets, tests, seed), laws)[0]

    def _fill(
        self, pools: Pools, rng: np.random.Generator, laws: Sequence[Floats] = ()
    ) -> tuple[Ragged, list[Floats]]:
        """The lists, and each client's shares (C,), which are drawn when its turn comes unless they
        are given.
        """
        left = np.array([len(pool) for pool in pools], dtype=np.int64)
        samples = int(left.sum())
        sizes = even_sizes(samples, self.clients)
        order = np.empty(samples, dtype=np.int64)
        used, start, shares = np.zeros_like(left), 0, [*laws]
        for client, size in enumerate(sizes.tolist()):
            if not laws:
                shares.append(rng.dirichlet(np.full(len(pools), self.alpha)))
            counts = _draw_counts(rng, shares[client], left, size)
            for label in counts.nonzero()[0].tolist():
                first, count = used[label], counts[label]
                order[start : start + count] = pools[label][first : first + count]
                start += count
            used += counts
            left -= counts
        return in_order(order, sizes), shares


class dirichlet_unbalanced(ByLabel, NamedPartition):
    """Assign every class by shares over the clients from Dir(alpha 1_N): sizes differ as well.

    All shares are drawn again until every client has at least min_size samples, at most `tries`
    times, or until it is clear that this will not happen. capped: class after class, clients that
    hold n / N samples get no more, and the others' shares are scaled up.

    Source: Yurochkin et al., ICML 2019 (a draw per class over the clients). Capped it is the rule
    of FIARSE's code for text (alpha 1, min_size 4) and of FedACG's unused one (min_size 10). Raises
    DataError as `dirichlet` does, and when no try succeeded.
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


_AT_ONCE = 50_000  # clients that are drawn: a million would need gigabytes of random numbers


class dirichlet_interleaved(ByLabel, NamedPartition):
    """Assign sample by sample to clients whose label shares differ (FIARSE's partition).

    Client i has p_i ~ Dir(alpha 1_C). Sample by sample a client is drawn uniformly among those that
    are not full, a class from its p_i among those that have samples left, and a sample of it.
    Unlike `dirichlet`, no client comes late: all share what is left at the end. Disjoint, complete,
    sizes that differ by at most one (the code leaves n % N samples over and may never end).

    Source: Wu et al., FIARSE, NeurIPS 2024, code ("balanced"). Raises DataError as `dirichlet`.
    """

    alpha: Alpha = hyper()
    clients: Clients = hyper()

    def _assign(self, pools: Pools, rng: np.random.Generator, targets: Tensor, seed: int) -> Ragged:
        laws = _log_dirichlet(self._stream(seed, "laws"), self.alpha, self.clients, len(pools))
        totals = np.array([len(pool) for pool in pools])
        sizes = even_sizes(int(totals.sum()), self.clients)
        turns = _turns(rng, sizes)
        return _deal_samples(pools, turns, _draw_available(rng, turns, laws, totals), sizes)


class dirichlet_recycled(ByLabel, NamedPartition):
    """Assign from pools per class that restart when they are empty (FedSMOO's Dirichlet).

    Client i has p_i ~ Dir(alpha 1_C) and a quota of n // N (client 0: and the remainder). Sample by
    sample a client is drawn uniformly among those that are not full, and a class from its p_i; it
    gets the next sample of the class's shuffled list. A list that has ended restarts, and the
    class is drawn again. So every client follows its p_i, wanted classes are held more than once,
    others in part: the lists overlap, and no validation part can be cut from them.

    Source: Sun et al., FedSMOO, ICML 2023 ("with replacement"), and its code. Raises DataError as
    `dirichlet`.
    """

    alpha: Alpha = hyper()
    clients: Clients = hyper()

    def _assign(self, pools: Pools, rng: np.random.Generator, targets: Tensor, seed: int) -> Ragged:
        laws = _log_dirichlet(self._stream(seed, "laws"), self.alpha, self.clients, len(pools))
        return _recycle(pools, rng, laws)


class pathological(ByLabel, NamedPartition):
    """Assign c random classes to each client, evenly, from pools that restart (FedSMOO's).

    As `dirichlet_recycled`, with p_i uniform over a set of `classes` classes, every set being as
    likely as any other. `classes_per_client` and `shards` use every sample once.

    Source: Sun et al., FedSMOO, ICML 2023, and its code. Raises DataError for more classes than
    there are, and as `dirichlet` does.
    """

    classes: PositiveInt = hyper(meaning="classes of each client")
    clients: Clients = hyper()

    def _assign(self, pools: Pools, rng: np.random.Generator, targets: Tensor, seed: int) -> Ragged:
        check_classes(self.classes, len(pools))
        draws = self._stream(seed, "classes").random((self.clients, len(pools)))
        # each row of argsort is a uniform permutation, so every set of classes is equally likely
        selected = np.argsort(draws, axis=1) < self.classes
        return _recycle(pools, rng, np.where(selected, 0.0, -np.inf))


class drawn(ByLabel, NamedPartition):
    """Draw every client's samples from the whole set, by label shares of its own.

    Client i has p_i ~ Dir(alpha 1_C) and `each` samples: their classes are drawn from p_i, and the
    samples uniformly among those of the class, with replacement. Clients are independent of each
    other, so there may be more of them than samples: a federation of a million devices from a small
    set. The lists overlap, so that no validation part can be cut from them.

    Source: the Dirichlet label shares of Hsu, Qi and Brown, 2019. Raises DataError as `dirichlet`,
    but for more clients than samples.
    """

    alpha: Alpha = hyper()
    clients: Clients = hyper()
    each: PositiveInt = hyper(meaning="training samples of each client")

    def split(self, targets: Tensor, seed: int) -> Ragged:
        """Return the lists for labels (n,)."""
        labels = self._labels(targets)
        return self._draw([np.flatnonzero(labels == c) for c in np.unique(labels)], seed, "samples")

    def split_tests(self, targets: Tensor, tests: Tensor, seed: int) -> Ragged:
        """Return `each` test samples for every client, by its label shares in training."""
        labels = self._labels(tests)
        classes = self._classes(targets, labels)
        return self._draw([np.flatnonzero(labels == c) for c in classes], seed, "test samples")

    def _draw(self, pools: Pools, seed: int, purpose: str) -> Ragged:
        laws, rng = self._stream(seed, "laws"), self._stream(seed, purpose)
        sizes = np.array([len(pool) for pool in pools])
        first, samples = np.cumsum(sizes) - sizes, np.concatenate(pools)
        out = np.empty((self.clients, self.each), dtype=np.int64)
        for start in range(0, self.clients, _AT_ONCE):
            part = out[start : start + _AT_ONCE]
            logs = _log_dirichlet(laws, self.alpha, len(part), len(pools))
            shares = np.diff(_shares(logs, sizes > 0), prepend=0.0)  # a test set may lack a class
            counts = rng.multinomial(self.each, shares)
            classes = np.repeat(np.tile(np.arange(len(pools)), len(part)), counts.ravel())
            positions = (rng.random(classes.size) * sizes[classes]).astype(np.int64)
            part[:] = np.sort(samples[first[classes] + positions].reshape(part.shape), axis=1)
        lengths = torch.full((self.clients,), self.each)
        return Ragged.from_sizes(lengths, torch.from_numpy(out.reshape(-1)))


# ------------------------------------------------------------------------------------------- turns
def _turns(rng: np.random.Generator, quotas: Ints) -> Ints:
    """The client that draws next, sample by sample (sum of the quotas,).

    The next is uniform among those that are not full. Blocks of draws among the clients that were
    not full when the block began, without the draws of clients that have become full, have the same
    distribution.
    """
    remaining = quotas.copy()
    out: list[Ints] = [np.empty(0, dtype=np.int64)]
    while len(waiting := remaining.nonzero()[0]):
        batch = waiting[rng.integers(len(waiting), size=int(remaining.sum()))]
        batch = batch[ranks(batch) < remaining[batch]]
        remaining -= np.bincount(batch, minlength=len(remaining))
        out.append(batch)
    return np.concatenate(out)


def _deal_samples(pools: Pools, turns: Ints, classes: Ints, sizes: Ints) -> Ragged:
    """Give each turn the next sample of its class; a pool that has ended restarts."""
    order = np.empty(len(turns), dtype=np.int64)
    for label, pool in enumerate(pools):
        rows = (classes == label).nonzero()[0]
        if len(rows):
            order[rows] = np.resize(pool, len(rows))
    return in_order(order[np.argsort(turns, kind="stable")], sizes)


# ------------------------------------------------------------------------------------------ classes
def _log_dirichlet(rng: np.random.Generator, alpha: float, rows: int, classes: int) -> Floats:
    """Logarithms of draws from Dir(alpha 1_C), (rows, C), each row up to a constant.

    log Gamma(alpha) = log Gamma(alpha + 1) + log(U) / alpha: nothing underflows, so that a client
    of a tiny alpha whose class is used up still has a next one.
    """
    boost = rng.standard_exponential((rows, classes)) / alpha
    return np.log(rng.standard_gamma(alpha + 1, (rows, classes))) - boost


def _shares(laws: Floats, available: Any) -> Floats:
    """Cumulative shares (rows, C) of the remaining classes; laws are logarithms of the shares."""
    masked = np.where(available, laws, -np.inf)
    weights = np.exp(masked - masked.max(axis=1, keepdims=True))
    sums = np.cumsum(weights, axis=1)
    shares: Floats = sums / sums[:, -1:]
    return shares


def _draw(rng: np.random.Generator, rows: Ints, sums: Floats) -> Ints:
    """A class for each entry of rows by inverse CDF: the first whose cumulative share exceeds u."""
    count, classes = sums.shape
    u = np.minimum(rng.random(len(rows)), 1 - 1e-9)  # rounding must not reach the next row
    flat = (sums + np.arange(count)[:, None]).ravel()
    labels: Ints = np.searchsorted(flat, u + rows, side="right") - rows * classes
    return labels


def _draw_available(rng: np.random.Generator, turns: Ints, laws: Floats, totals: Ints) -> Ints:
    """The class of every turn, none taken more often than it has samples (C,).

    All classes are drawn at once. From the first turn with an exhausted class on, all turns are
    drawn again among the classes that are left: at most once for each class.
    """
    available = totals > 0
    classes = _draw(rng, turns, _shares(laws, available))
    while (over := ranks(classes) >= totals[classes]).any():
        first = int(over.argmax())
        available[classes[first]] = False
        again = first + (classes[first:] == classes[first]).nonzero()[0]
        owners, rows = np.unique(turns[again], return_inverse=True)
        classes[again] = _draw(rng, rows, _shares(laws[owners], available))
    return classes


def _recycle(pools: Pools, rng: np.random.Generator, laws: Floats) -> Ragged:
    """Fill the clients from pools that restart."""
    totals = np.array([len(pool) for pool in pools])
    clients = len(laws)
    lacking = np.isneginf(np.where(totals > 0, laws, -np.inf)).all(axis=1)
    if lacking.any():
        raise DataError(
            f"there are no samples of any class of client {int(lacking.argmax())}; take "
            "independent test sets, or more classes per client"
        )
    samples = int(totals.sum())
    sizes = np.full(clients, samples // clients, dtype=np.int64)
    sizes[0] += samples % clients
    turns, sums = _turns(rng, sizes), _shares(laws, totals > 0)
    classes = _draw(rng, turns, sums).tolist()
    remaining, owners = totals.tolist(), turns.tolist()
    for turn, label in enumerate(classes):
        choice = label
        while not remaining[choice]:  # it restarts, and the class is drawn again
            remaining[choice] = int(totals[choice])
            choice = int(np.searchsorted(sums[owners[turn]], rng.random(), side="right"))
        remaining[choice] -= 1
        classes[turn] = choice
    return _deal_samples(pools, turns, np.array(classes, dtype=np.int64), sizes)
