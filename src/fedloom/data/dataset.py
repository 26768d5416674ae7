"""From the arrays of a data set, and the owners of the samples, to a federation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedloom.core.rng import key
from fedloom.data.client_indices import Partition, Ragged, as_lists
from fedloom.data.federated import FederatedData
from fedloom.data.partition.without_labels import iid, natural
from fedloom.data.raw_inputs import Raw
from fedloom.data.transforms import Transform
from fedloom.errors import DataError


@dataclass(frozen=True, kw_only=True, eq=False)
class Arrays:
    """A data set before it is divided among clients.

    owners, test_owners: (n,) int64, the maker of each sample; -1: no client may have it (a window
    of text with two speakers). by: what the owners are, in the plural. owner_names: of owner 0, 1,
    ..., if they have names. details: further entries of `about`.
    """

    name: str
    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor | None = None
    test_targets: Tensor | None = None
    owners: Tensor | None = None
    test_owners: Tensor | None = None
    by: str = "owners"
    owner_names: Sequence[str] = ()
    class_names: tuple[str, ...] = ()
    transform: Transform | None = None
    raw: Raw | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def divided(self, partition: Partition, seed: int) -> FederatedData:
        """Divide the samples by a partition. Raises DataError for one that does not fit."""
        names: tuple[str, ...] = ()
        if not hasattr(partition, "about"):
            raise DataError(
                f"a {type(partition).__name__} is no partition, which has split(targets, seed) and "
                "about(); for lists of indices give by_lists([[4, 2], [0, 1]])"
            )
        if isinstance(partition, natural):
            if self.owners is None:
                partition.split(self.targets, seed)  # refuses, and says what to do
                raise AssertionError
            if partition.parts > 1:
                whole = dataclasses.replace(partition, parts=1)
                data = self._in_parts(partition.parts, seed).divided(whole, seed)
                about = {**data.about, "partition": partition.about()}
                return dataclasses.replace(data, about=about)
            clients, selected = partition.choose(self.owners, self.by, seed)
            test, tests = self._tests_of(selected)
            if self.owner_names:
                names = tuple(self.owner_names[owner] for owner in selected.tolist())
        else:
            clients = self._split(partition, seed)
            test, tests = self._test_samples(), None
        inputs, targets = _pick(self.test_inputs, test), _pick(self.test_targets, test)
        tested = inputs is not None and len(inputs) > 0
        about = {"source": self.name, **self.details}
        if self.transform is not None:
            about |= self.transform.about()
        return FederatedData(
            name=self.name,
            inputs=self.inputs,
            targets=self.targets,
            clients=clients,
            test_inputs=inputs if tested else None,
            test_targets=targets if tested else None,
            test_clients=tests if tested else None,
            class_names=self.class_names,
            about=about | {"partition": partition.about(), "seed": seed},
            transform=self.transform,
            raw=self.raw,
            client_names=names,
        )

    def _in_parts(self, parts: int, seed: int) -> Arrays:
        """The samples of each maker as those of several, its parts."""
        assert self.owners is not None
        within = iid(parts)
        owners = torch.where(self.owners < 0, -1, self.owners * parts)
        tests = self.test_owners
        tests = None if tests is None else torch.where(tests < 0, -1, tests * parts)
        for maker in sorted({*self.owners.tolist()} - {-1}):
            indices = (self.owners == maker).nonzero().flatten()
            of_maker = key(seed, "partition", "parts", maker)
            try:
                _count_parts(owners, indices, within.split(self.targets[indices], of_maker))
                if tests is not None and self.test_targets is not None:
                    rows = (self.test_owners == maker).nonzero().flatten()
                    labels = self.targets[indices], self.test_targets[rows]
                    _count_parts(tests, rows, within.split_tests(*labels, of_maker))
            except DataError as error:
                name = self.owner_names[maker] if self.owner_names else maker
                raise DataError(f"{self.by}, {name}: {error}") from None
        names = [f"{name}/{part}" for name in self.owner_names for part in range(parts)]
        details = {k: v for k, v in self.details.items() if k != "client_names"}
        arrays = dataclasses.replace(self, owners=owners, test_owners=tests)
        return dataclasses.replace(arrays, owner_names=names, details=details)

    def _split(self, partition: Partition, seed: int) -> Ragged:
        if self.owners is None or bool((self.owners >= 0).all()):
            return as_lists(partition.split(self.targets, seed), partition)
        usable = (self.owners >= 0).nonzero().flatten()
        lists = as_lists(partition.split(self.targets[usable], seed), partition)
        return Ragged(lists.offsets, usable[lists.indices])

    def _test_samples(self) -> Tensor | None:
        """The test samples that count; None: all."""
        if self.test_owners is None or bool((self.test_owners >= 0).all()):
            return None
        return (self.test_owners >= 0).nonzero().flatten()

    def _tests_of(self, selected: Tensor) -> tuple[Tensor | None, Ragged | None]:
        """The test samples of these owners, client by client, and how many each has."""
        if self.test_owners is None:
            return None, None
        positions = torch.searchsorted(selected, self.test_owners).clamp_max(len(selected) - 1)
        matches = selected[positions] == self.test_owners
        rows = matches.nonzero().flatten()
        order = rows[torch.argsort(positions[rows], stable=True)]
        sizes = torch.bincount(positions[rows], minlength=len(selected))
        if len(order) == len(self.test_owners) and bool((order.diff() > 0).all()):
            return None, Ragged.from_sizes(sizes, torch.arange(len(order)))
        return order, Ragged.from_sizes(sizes, torch.arange(len(order)))


def _count_parts(owners: Tensor, rows: Tensor, lists: Ragged) -> None:
    """Add to the owners of these rows the number of the list that each is in."""
    for part in range(lists.count):
        owners[rows[lists.of(part)]] += part


def _pick(values: Tensor | None, rows: Tensor | None) -> Tensor | None:
    return values if values is None or rows is None else values[rows]


def check_labels(labels: Tensor, classes: int, where: object) -> Tensor:
    """Labels (n,), all in 0 .. classes - 1; else DataError, naming the first wrong one."""
    wrong = ((labels < 0) | (labels >= classes)).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"{where}: label {row} is {int(labels[row])}; labels go from 0 to {classes - 1}: the "
            "file is altered, or another set's"
        )
    return labels
