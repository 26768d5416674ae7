"""Partitions that say which classes a client holds, and deal every sample at most once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from fedloom.data.client_indices import Ragged
from fedloom.data.partition.base import (
    Pools,
    by_owner,
    check_classes,
    check_count,
    deal,
    even_sizes,
    pools_for_tests,
    pools_for_training,
    stream,
)
from fedloom.errors import DataError


@dataclass(frozen=True, kw_only=True)
class ClassesPerClient:
    """Deal pieces of some classes to each client; see `classes_per_client`."""

    classes: int
    clients: int
    equal: bool = True

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_count("classes", self.classes)
        check_count("clients", self.clients)

    def split(self, targets: Tensor, seed: int) -> Ragged:
        """Return the lists for labels (n,)."""
        pools, rng = pools_for_training(targets, self.clients, seed, "classes_per_client")
        held = self._held(len(pools), seed)
        least = min(len(pool) // int(row.sum()) for pool, row in zip(pools, held, strict=True))
        if not least:
            raise DataError(
                f"{self.clients} clients with {self.classes} classes each are too many: a class "
                "has fewer samples than clients; take fewer of either"
            )
        return self._deal(pools, held, rng)

    def split_tests(self, targets: Tensor, tests: Tensor, seed: int) -> Ragged:
        """Return test lists: pieces of the client's own classes. Where a class has fewer test
        samples than clients, some get none of it.
        """
        pools, rng = pools_for_tests(targets, tests, self.clients, seed, "classes_per_client")
        return self._deal(pools, self._held(len(pools), seed), rng)

    def _held(self, there: int, seed: int) -> Any:
        """Who holds what: booleans (C, N), with `classes` true in each column and as many in one
        row as in any other, or one more.
        """
        check_classes(self.classes, there)
        pieces = self.clients * self.classes
        if pieces < there:
            raise DataError(
                f"{self.clients} clients with {self.classes} classes each leave some of the "
                f"{there} classes to nobody; take at least {-(-there // self.classes)} clients, or "
                "more classes per client"
            )
        rng = stream(seed, "classes_per_client", "classes")
        left = rng.permutation(even_sizes(pieces, there))
        held = np.zeros((there, self.clients), dtype=bool)
        for waiting in range(self.clients, 0, -1):
            # a class with as many pieces left as there are clients goes to each of them; then the
            # others can always be dealt, whichever are drawn now
            draws = np.where(left == waiting, -1.0, rng.standard_exponential(there))
            draws = np.divide(draws, left, out=np.full(there, np.inf), where=left > 0)
            chosen = np.argsort(draws)[: self.classes]
            held[chosen, waiting - 1] = True
            left[chosen] -= 1
        return held[:, rng.permutation(self.clients)]

    def _deal(self, pools: Pools, held: Any, rng: np.random.Generator) -> Ragged:
        counts = np.zeros(held.shape, dtype=np.int64)
        least = min(len(pool) // int(row.sum()) for pool, row in zip(pools, held, strict=True))
        for label, (pool, row) in enumerate(zip(pools, held, strict=True)):
            sizes = even_sizes(len(pool), int(row.sum()))
            counts[label, row] = least if self.equal else rng.permutation(sizes)
        return deal(pools, counts)

    def about(self) -> dict[str, Any]:
        """Describe the partition, fit for JSON."""
        return {
            "kind": "classes_per_client",
            "classes": self.classes,
            "clients": self.clients,
            "equal": self.equal,
        }


@dataclass(frozen=True, kw_only=True)
class Shards:
    """Deal pieces of the sorted labels; see `shards`."""

    clients: int
    per_client: int = 2

    def __post_init__(self) -> None:
        """Refuse numbers below one."""
        check_count("clients", self.clients)
        check_count("per_client", self.per_client)

    def split(self, targets: Tensor, seed: int) -> Ragged:
        """Return the lists for labels (n,)."""
        pools, _ = pools_for_training(targets, self.clients, seed, "shards")
        pieces, samples = self.clients * self.per_client, len(targets)
        if pieces > samples:
            raise DataError(
                f"{samples} samples cannot be cut into {pieces} shards ({self.clients} clients "
                f"with {self.per_client} each); take fewer of either"
            )
        return self._deal(pools, seed)

    def split_tests(self, targets: Tensor, tests: Tensor, seed: int) -> Ragged:
        """Return test lists: the same places among the sorted test labels."""
        return self._deal(pools_for_tests(targets, tests, self.clients, seed, "shards")[0], seed)

    def _deal(self, pools: Pools, seed: int) -> Ragged:
        pieces = self.clients * self.per_client
        owners = stream(seed, "shards", "owners").permutation(pieces) // self.per_client
        order = np.concatenate(pools)
        whose = np.repeat(owners, even_sizes(len(order), pieces))
        return by_owner(order, whose, self.clients)

    def about(self) -> dict[str, Any]:
        """Describe the partition, fit for JSON."""
        return {"kind": "shards", "clients": self.clients, "per_client": self.per_client}


@dataclass(frozen=True, kw_only=True)
class ClassGroups:
    """Deal groups of classes to groups of clients; see `class_groups`."""

    clients: int
    groups: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        """Refuse a number of clients below one, and groups that share a class."""
        check_count("clients", self.clients)
        members = [label for group in self.groups for label in group]
        if any(isinstance(x, bool) or not isinstance(x, int) for x in members):
            raise DataError(f"groups must be lists of classes, got {self.groups}")
        if len(set(members)) < len(members) or not all(self.groups):
            raise DataError(
                f"every group needs at least one class, and every class one group; got "
                f"{[list(group) for group in self.groups]}"
            )
        self._check_clients(len(self.groups))

    def _check_clients(self, groups: int) -> None:
        if groups > self.clients:
            raise DataError(
                f"{groups} groups of classes need as many clients or more, got {self.clients}"
            )

    def split(self, targets: Tensor, seed: int) -> Ragged:
        """Return the lists for labels (n,)."""
        pools, _ = pools_for_training(targets, self.clients, seed, "class_groups")
        groups = self._groups(pools, targets)
        crowds = even_sizes(self.clients, len(groups)).tolist()
        for group, crowd in zip(groups, crowds, strict=True):
            if sum(map(len, group)) < crowd:
                raise DataError(
                    f"a group of classes has {sum(map(len, group))} samples for {crowd} clients; "
                    "take fewer clients"
                )
        return _striding(groups, crowds)

    def split_tests(self, targets: Tensor, tests: Tensor, seed: int) -> Ragged:
        """Return test lists: the same groups."""
        pools, _ = pools_for_tests(targets, tests, self.clients, seed, "class_groups")
        groups = self._groups(pools, targets)
        return _striding(groups, even_sizes(self.clients, len(groups)).tolist())

    def _groups(self, pools: Pools, targets: Tensor) -> list[Pools]:
        names = np.unique(targets.cpu().numpy()).tolist()
        if not self.groups:
            half = -(-len(names) // 2)
            halves = [part for part in (pools[:half], pools[half:]) if part]
            self._check_clients(len(halves))
            return halves
        named = {label for group in self.groups for label in group}
        if odd := named ^ set(names):
            raise DataError(
                f"class {min(odd)} is in {'no group' if min(odd) in names else 'the groups'}"
                f"{'' if min(odd) in names else ' but has no samples'}; the labels are "
                f"{names[0]} to {names[-1]}: put each in one group"
            )
        return [[pools[names.index(label)] for label in group] for group in self.groups]

    def about(self) -> dict[str, Any]:
        """Describe the partition, fit for JSON."""
        groups = [list(group) for group in self.groups]
        return {"kind": "class_groups", "clients": self.clients, "groups": groups}


@dataclass(frozen=True, kw_only=True)
class Stratified:
    """Deal every class evenly; see `stratified`."""

    clients: int

    def __post_init__(self) -> None:
        """Refuse a number of clients below one."""
        check_count("clients", self.clients)

    def split(self, targets: Tensor, seed: int) -> Ragged:
        """Return the lists for labels (n,)."""
        pools, _ = pools_for_training(targets, self.clients, seed, "stratified")
        return _striding([pools], [self.clients])

    def split_tests(self, targets: Tensor, tests: Tensor, seed: int) -> Ragged:
        """Return test lists: every class evenly too."""
        pools, _ = pools_for_tests(targets, tests, self.clients, seed, "stratified")
        return _striding([pools], [self.clients])

    def about(self) -> dict[str, Any]:
        """Describe the partition, fit for JSON."""
        return {"kind": "stratified", "clients": self.clients}


def classes_per_client(classes: int, clients: int, equal: bool = True) -> ClassesPerClient:
    """Deal c classes to each client, every class to equally many clients (CFedAvg's partition).

    A class is held by c N / C clients, which are drawn at random, and cut into as many pieces; each
    of them gets one. Where C does not divide c N, some classes have one client more. equal: every
    piece is as long as the shortest, so that all clients take the same steps, and the rest is not
    used (MNIST's classes are unequal; Fashion-MNIST's and CIFAR-10's are not, and all is used).
    Otherwise everything is dealt once. FAFED's "high" with random classes is 5 of 10 for 20
    clients.

    Source: Yang et al., CFedAvg, section on experiments; how the classes are chosen is not said.
    Raises DataError for more classes than there are, fewer than all classes held, a class with
    fewer samples than clients, and targets that are no labels.

    >>> import torch
    >>> labels = torch.arange(60) % 6
    >>> lists = classes_per_client(2, clients=3).split(labels, seed=0)
    >>> [len(labels[lists.of(i)].unique()) for i in range(3)], lists.sizes.tolist()
    ([2, 2, 2], [20, 20, 20])
    """
    return ClassesPerClient(classes=classes, clients=clients, equal=equal)


def shards(clients: int, per_client: int = 2) -> Shards:
    """Deal pieces of the sorted labels, some to each client (FedAvg's partition).

    The samples, sorted by label, are cut into N * per_client pieces whose sizes differ by at most
    one; every client gets per_client of them at random. Disjoint and complete.

    Source: McMahan et al., AISTATS 2017 (200 pieces of 300 digits, two each). Raises DataError for
    more pieces than samples, and targets that are no labels.

    >>> import torch
    >>> labels = torch.arange(40) % 10
    >>> lists = shards(clients=5).split(labels, seed=0)
    >>> [len(labels[lists.of(i)].unique()) for i in range(5)]
    [2, 2, 2, 2, 2]
    """
    return Shards(clients=clients, per_client=per_client)


def class_groups(clients: int, groups: Sequence[Sequence[int]] = ()) -> ClassGroups:
    """Deal groups of classes to groups of clients: FAFED's "high" heterogeneity.

    The clients are cut into as many neighbouring groups as there are groups of classes, the first
    ones larger by one where that is needed. A group's samples, sorted by label, are dealt in turn
    to its clients, so that each has as much of every class of the group. groups: lists of labels,
    each label in one of them; none stands for two, the lower and the upper half of the labels.
    Disjoint and complete.

    Source: Wu et al., FAFED, AAAI 2023 ("5 of 10 classes"), and the code taken for its authors': 20
    clients and two groups, {0-4} and {5-9} for Fashion-MNIST, {0, 1, 2, 5, 9} and {3, 4, 6, 7, 8}
    for MNIST, {1, 2, 3, 4, 9} and {0, 5, 6, 7, 8} for CIFAR-10. Raises DataError for groups that
    are not as described.

    >>> import torch
    >>> labels = torch.arange(40) % 4
    >>> lists = class_groups(4, [[0, 3], [1, 2]]).split(labels, seed=0)
    >>> [labels[lists.of(i)].unique().tolist() for i in range(4)], lists.sizes.tolist()
    ([[0, 3], [0, 3], [1, 2], [1, 2]], [10, 10, 10, 10])
    """
    return ClassGroups(clients=clients, groups=tuple(tuple(group) for group in groups))


def stratified(clients: int) -> Stratified:
    """Deal every class evenly: each client has all labels in the shares of the whole.

    The samples, sorted by label, are dealt in turn: a client's count of a class differs from any
    other's by at most one, and so do the sizes. FAFED's "moderate" on CIFAR-10, whose code keeps
    the file's order within a class; here the seed shuffles it. Disjoint and complete.

    Source: Wu et al., FAFED, AAAI 2023, and the code taken for its authors'.

    >>> import torch
    >>> labels = torch.arange(12) % 3
    >>> [labels[stratified(2).split(labels, seed=0).of(i)].bincount().tolist() for i in (0, 1)]
    [[2, 2, 2], [2, 2, 2]]
    """
    return Stratified(clients=clients)


def _striding(groups: Sequence[Pools], crowds: Sequence[int]) -> Ragged:
    """Deal each group's samples, sorted by label, in turn to that many clients."""
    orders = [np.concatenate(group) for group in groups]
    first, owners = 0, []
    for order, crowd in zip(orders, crowds, strict=True):
        owners.append(first + np.arange(len(order)) % crowd)
        first += crowd
    return by_owner(np.concatenate(orders), np.concatenate(owners), first)
