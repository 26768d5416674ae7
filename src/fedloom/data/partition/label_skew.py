"""Partitions that choose each client's classes, and use every sample at most once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from fedloom.core.hyper import PositiveInt, Share, hyper
from fedloom.data.client_indices import Ragged
from fedloom.data.partition.base import (
    ByLabel,
    Clients,
    NamedPartition,
    Pools,
    assign,
    check_classes,
    even_sizes,
)
from fedloom.errors import DataError


class classes_per_client(ByLabel, NamedPartition):
    """Assign c classes to each client, every class to equally many clients (CFedAvg's partition).

    A class is held by c N / C clients, which are drawn at random, and cut into as many pieces; each
    of them gets one. Where C does not divide c N, some classes have one client more. equal: every
    piece is as long as the shortest, so that all clients take the same steps, and the rest is not
    used (MNIST's classes are unequal; Fashion-MNIST's and CIFAR-10's are not, and all is used).
    Otherwise every sample is used once. FAFED's "high" with random classes is 5 of 10 for 20
    clients. samples: fewer clients that hold as much as those of the paper (20 of 600 images, where
    100 clients of 600 use all of MNIST's); what is left over is not used.

    Source: Yang et al., CFedAvg, section on experiments; how the classes are chosen is not said.
    Raises DataError for more classes than there are, fewer than all classes held, a class with
    fewer samples than clients, fewer samples than classes, and targets that are no labels.
    """

    classes: PositiveInt = hyper(meaning="classes of each client")
    clients: Clients = hyper()
    equal: bool = True
    samples: PositiveInt | None = hyper(default=None, meaning="samples of a client, at most")

    def _pools(self, targets: Tensor, seed: int) -> tuple[Pools, np.random.Generator]:
        pools, rng = super()._pools(targets, seed)
        if self.samples is None:
            return pools, rng
        if self.samples < self.classes:
            raise DataError(
                f"samples = {self.samples} are fewer than the {self.classes} classes of a client; "
                f"take at least {self.classes}"
            )
        most = self.samples // self.classes
        assigned = self._class_table(len(pools), seed)
        cut = [pool[: most * int(row.sum())] for pool, row in zip(pools, assigned, strict=True)]
        return cut, rng

    def _check(self, pools: Pools, targets: Tensor, seed: int) -> None:
        if not _least(pools, self._class_table(len(pools), seed)):
            raise DataError(
                f"{self.clients} clients with {self.classes} classes each are too many: a class "
                "has fewer samples than clients; take fewer of either"
            )

    def _assign(self, pools: Pools, rng: np.random.Generator, targets: Tensor, seed: int) -> Ragged:
        assigned = self._class_table(len(pools), seed)
        counts, least = np.zeros(assigned.shape, dtype=np.int64), _least(pools, assigned)
        for label, (pool, row) in enumerate(zip(pools, assigned, strict=True)):
            sizes = even_sizes(len(pool), int(row.sum()))
            counts[label, row] = least if self.equal else rng.permutation(sizes)
        return assign(pools, counts)

    def _class_table(self, classes: int, seed: int) -> Any:
        """The classes of each client: booleans (C, N), with `classes` true in each column, and rows
        whose sums differ by at most one.
        """
        check_classes(self.classes, classes)
        pieces = self.clients * self.classes
        if pieces < classes:
            raise DataError(
                f"{self.clients} clients with {self.classes} classes each leave some of the "
                f"{classes} classes to nobody; take at least {-(-classes // self.classes)} "
                "clients, or more classes per client"
            )
        rng = self._stream(seed, "classes")
        left = rng.permutation(even_sizes(pieces, classes))
        assigned = np.zeros((classes, self.clients), dtype=bool)
        for waiting in range(self.clients, 0, -1):
            # a class with as many pieces left as there are clients goes to each of them; then the
            # others can always be assigned, whichever are drawn now
            draws = np.where(left == waiting, -1.0, rng.standard_exponential(classes))
            draws = np.divide(draws, left, out=np.full(classes, np.inf), where=left > 0)
            selected = np.argsort(draws)[: self.classes]
            assigned[selected, waiting - 1] = True
            left[selected] -= 1
        return assigned[:, rng.permutation(self.clients)]


def _least(pools: Pools, assigned: Any) -> int:
    """The shortest piece of a class, which is cut for all clients that hold it."""
    return min(len(pool) // int(row.sum()) for pool, row in zip(pools, assigned, strict=True))


class shards(ByLabel, NamedPartition):
    """Assign pieces of the sorted labels, some to each client (FedAvg's partition).

    The samples, sorted by label, are cut into N * per_client pieces whose sizes differ by at most
    one; every client gets per_client of them at random. Disjoint and complete.

    Source: McMahan et al., AISTATS 2017 (200 pieces of 300 digits, two each). Raises DataError for
    more pieces than samples, and targets that are no labels.
    """

    clients: Clients = hyper()
    per_client: PositiveInt = hyper(2, "shards of each client")

    def _check(self, pools: Pools, targets: Tensor, seed: int) -> None:
        pieces, samples = self.clients * self.per_client, len(targets)
        if pieces > samples:
            raise DataError(
                f"{samples} samples cannot be cut into {pieces} shards ({self.clients} clients "
                f"with {self.per_client} each); take fewer of either"
            )

    def _assign(self, pools: Pools, rng: np.random.Generator, targets: Tensor, seed: int) -> Ragged:
        pieces, order = self.clients * self.per_client, np.concatenate(pools)
        owners = self._stream(seed, "owners").permutation(pieces) // self.per_client
        return Ragged.from_owners(
            order, np.repeat(owners, even_sizes(len(order), pieces)), self.clients
        )


class class_groups(ByLabel, NamedPartition):
    """Assign groups of classes to groups of clients: FAFED's "high" heterogeneity.

    The clients are cut into as many neighbouring groups as there are groups of classes, the first
    ones larger by one where that is needed. A group's samples, sorted by label, are assigned in
    turn to its clients, so that each has as much of every class of the group. groups: lists of
    labels, as many as clients to say each one's; samples of a label of several groups are cut
    between these, by their numbers of clients. None stands for two, the lower and the upper half of
    the labels. Disjoint and complete.

    Source: Wu et al., FAFED, AAAI 2023 ("5 of 10 classes"), and the code taken for its authors': 20
    clients and two groups, {0-4} and {5-9} for Fashion-MNIST, {0, 1, 2, 5, 9} and {3, 4, 6, 7, 8}
    for MNIST, {1, 2, 3, 4, 9} and {0, 5, 6, 7, 8} for CIFAR-10. Raises DataError for groups that
    are not as described.
    """

    clients: Clients = hyper()
    groups: Sequence[Sequence[int]] = ()

    def __post_init__(self) -> None:
        """Refuse groups that are no lists of classes."""
        object.__setattr__(self, "groups", tuple(tuple(group) for group in self.groups))
        members = [label for group in self.groups for label in group]
        if any(isinstance(x, bool) or not isinstance(x, int) for x in members):
            raise DataError(f"groups must be lists of classes, got {self.groups}")
        if any(len(set(group)) < len(group) or not group for group in self.groups):
            raise DataError(
                f"every group needs at least one class, and each of its classes once; got "
                f"{[list(group) for group in self.groups]}"
            )
        self._check_clients(len(self.groups))

    def _check_clients(self, groups: int) -> None:
        if groups > self.clients:
            raise DataError(
                f"{groups} groups of classes need as many clients or more, got {self.clients}"
            )

    def _check(self, pools: Pools, targets: Tensor, seed: int) -> None:
        groups = self._groups(pools, targets)
        for group, crowd in zip(groups, even_sizes(self.clients, len(groups)), strict=True):
            if (samples := sum(map(len, group))) < crowd:
                raise DataError(
                    f"a group of classes has {samples} samples for {crowd} clients; take fewer "
                    "clients"
                )

    def _assign(self, pools: Pools, rng: np.random.Generator, targets: Tensor, seed: int) -> Ragged:
        return _striding(self._groups(pools, targets), self.clients)

    def _groups(self, pools: Pools, targets: Tensor) -> list[Pools]:
        names = np.unique(targets.cpu().numpy()).tolist()
        if not self.groups:
            half = -(-len(names) // 2)
            halves = [part for part in (pools[:half], pools[half:]) if part]
            self._check_clients(len(halves))
            return halves
        grouped = {label for group in self.groups for label in group}
        if odd := grouped ^ set(names):
            raise DataError(
                f"class {min(odd)} is in {'no group' if min(odd) in names else 'the groups'}"
                f"{'' if min(odd) in names else ' but has no samples'}; the labels are "
                f"{names[0]} to {names[-1]}: put each in a group"
            )
        return [
            [self._share(pools[names.index(label)], label, k) for label in group]
            for k, group in enumerate(self.groups)
        ]

    def _share(self, pool: Any, label: int, group: int) -> Any:
        """The samples of a label that go to a group: all, or of several groups each one's part."""
        crowds = even_sizes(self.clients, len(self.groups))
        sizes = [crowd * (label in of) for crowd, of in zip(crowds, self.groups, strict=True)]
        before, all_of = sum(sizes[:group]), sum(sizes)
        edges = [round(len(pool) * n / all_of) for n in (before, before + sizes[group])]
        return pool[edges[0] : edges[1]]

    def about(self) -> dict[str, Any]:
        """Describe the partition, fit for JSON."""
        return super().about() | {"groups": [list(group) for group in self.groups]}


class stratified(ByLabel, NamedPartition):
    """Assign every class evenly: each client has all labels in the shares of the whole.

    The samples, sorted by label, are assigned in turn: a client's count of a class differs from any
    other's by at most one, and so do the sizes. FAFED's "moderate" on CIFAR-10, whose code keeps
    the file's order within a class; here the seed shuffles it. Disjoint and complete.

    Source: Wu et al., FAFED, AAAI 2023, and the code taken for its authors'.
    """

    clients: Clients = hyper()

    def _assign(self, pools: Pools, rng: np.random.Generator, targets: Tensor, seed: int) -> Ragged:
        return _striding([pools], self.clients)


def _striding(groups: Sequence[Pools], clients: int) -> Ragged:
    """Assign each group's samples, sorted by label, in turn to its part of the clients."""
    orders = [np.concatenate(group) for group in groups]
    first, owners = 0, []
    for order, crowd in zip(orders, even_sizes(clients, len(groups)), strict=True):
        owners.append(first + np.arange(len(order)) % crowd)
        first += crowd
    return Ragged.from_owners(np.concatenate(orders), np.concatenate(owners), clients)


class similarity(ByLabel, NamedPartition):
    """Assign a share of every client's samples at random, the rest sorted by label and in order.

    Of n_i samples (n // N, the first clients one more where that is needed) round(share n_i) are
    drawn at random from all; what nobody drew is sorted by label and cut in the clients' order.
    share 1 is i.i.d., 0 gives neighbouring clients neighbouring labels. Disjoint and complete.

    Source: Karimireddy et al., SCAFFOLD, ICML 2020, section 7 (after Hsu et al., 2019); 0.95 is
    FAFED's "low" heterogeneity. Raises DataError for a share outside [0, 1].
    """

    clients: Clients = hyper()
    share: Share = hyper(
        0.95, remedy="0.95 is FAFED's low heterogeneity, 0 sorts everything by label"
    )

    def _assign(self, pools: Pools, rng: np.random.Generator, targets: Tensor, seed: int) -> Ragged:
        by_label = np.concatenate(pools)
        sizes = even_sizes(len(by_label), self.clients)
        random = np.floor(self.share * sizes + 0.5).astype(np.int64)
        mixed = np.zeros(len(by_label), dtype=bool)
        mixed[rng.permutation(len(by_label))[: int(random.sum())]] = True
        clients = np.arange(self.clients)
        order = np.concatenate([rng.permutation(by_label[mixed]), by_label[~mixed]])
        owners = np.concatenate([np.repeat(clients, random), np.repeat(clients, sizes - random)])
        return Ragged.from_owners(order, owners, self.clients)
