"""From the samples of a data set, and their owners, to a federation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedloom.data.client_indices import Partition, Ragged, as_lists
from fedloom.data.federated import FederatedData
from fedloom.data.partition.without_labels import natural
from fedloom.data.raw_inputs import Raw
from fedloom.data.transforms import Transform
from fedloom.errors import DataError


class Samples(NamedTuple):
    """Inputs and targets (n, ...), and the maker of each sample, (n,) int64; -1: no client may have
    it (a window of text with two speakers).
    """

    inputs: Tensor
    targets: Tensor
    owners: Tensor | None = None

    def at(self, rows: Tensor) -> Samples:
        """The samples of these rows; the same arrays where these are all rows in their order."""
        if len(rows) == len(self.inputs) and bool((rows.diff() > 0).all()):
            return self
        owners = None if self.owners is None else self.owners[rows]
        return Samples(self.inputs[rows], self.targets[rows], owners)

    def split(self, test: Tensor) -> tuple[Samples, Samples]:
        """The samples to train on and those to test on; test: booleans (n,)."""
        return self.at((~test).nonzero().flatten()), self.at(test.nonzero().flatten())

    def owned(self) -> Tensor | None:
        """The rows that a client may have; None: all."""
        return None if self.owners is None else (self.owners >= 0).nonzero().flatten()

    def of(self, makers: Tensor) -> tuple[Samples, Ragged | None]:
        """The samples of these makers (ascending), and the list of each; all samples and None if
        nothing says who made them.
        """
        if self.owners is None:
            return self, None
        positions = torch.searchsorted(makers, self.owners).clamp_max(len(makers) - 1)
        rows = (makers[positions] == self.owners).nonzero().flatten()
        lists = Ragged.from_owners(rows.numpy(), positions[rows].numpy(), len(makers))
        return self.at(lists.indices), Ragged.from_sizes(lists.sizes)


@dataclass(frozen=True, kw_only=True, eq=False)
class Arrays:
    """A data set before it is divided among clients. by: what the owners are, in the plural.
    owner_names: of owner 0, 1, ..., if they have names. details: further entries of `about`.
    """

    name: str
    train: Samples
    test: Samples | None = None
    by: str = "owners"
    owner_names: Sequence[str] = ()
    class_names: tuple[str, ...] = ()
    transform: Transform | None = None
    raw: Raw | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def divided(self, partition: Partition, seed: int) -> FederatedData:
        """Divide the samples by a partition. Raises DataError for one that does not fit."""
        if not hasattr(partition, "about"):
            raise DataError(
                f"a {type(partition).__name__} is no partition, which has split(targets, seed) and "
                "about(); for lists of indices give by_lists([[4, 2], [0, 1]])"
            )
        train, test, tests, names = self.train, self.test, None, ()
        if not isinstance(partition, natural):
            usable = train.owned()
            targets = train.targets if usable is None else train.targets[usable]
            clients = as_lists(partition.split(targets, seed), partition)
            if usable is not None:
                clients = Ragged(clients.offsets, usable[clients.indices])
            if test is not None and (usable := test.owned()) is not None:
                test = test.at(usable)
        elif train.owners is None:
            partition.split(train.targets, seed)  # refuses, and says what to do
            raise AssertionError
        else:
            clients, makers = partition.choose(train.owners, self.by, seed)
            if test is not None:
                test, tests = test.of(makers)
            if self.owner_names:
                names = tuple(self.owner_names[maker] for maker in makers.tolist())
        tested = test is not None and len(test.inputs) > 0
        about = {"source": self.name, **self.details}
        about |= {} if self.transform is None else self.transform.about()
        return FederatedData(
            name=self.name,
            inputs=train.inputs,
            targets=train.targets,
            clients=clients,
            test_inputs=test.inputs if test is not None and tested else None,
            test_targets=test.targets if test is not None and tested else None,
            test_clients=tests if tested else None,
            class_names=self.class_names,
            about=about | {"partition": partition.about(), "seed": seed},
            transform=self.transform,
            raw=self.raw,
            client_names=names,
        )
