"""Partitions without labels: at random, in blocks; the makers of the samples; your own index lists,
or those of a published file.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedloom.core.hyper import PositiveInt, hyper
from fedloom.core.parsing import decoded, user_path
from fedloom.data.client_indices import Ragged, read_arrays
from fedloom.data.client_test_sets import proportional
from fedloom.data.partition.base import (
    Clients,
    NamedPartition,
    check_enough,
    even_sizes,
    in_order,
    stream,
)
from fedloom.errors import DataError


class _ByNumber(NamedPartition):
    """A partition of samples of any kind, by their number; tests are assigned in the same way."""

    clients: Clients = hyper()

    def split(self, targets: Tensor, seed: int) -> Ragged:
        """Return the lists for targets (n, ...) of any type."""
        return self._assign(len(targets), seed)

    def split_tests(self, targets: Tensor, tests: Tensor, seed: int) -> Ragged:
        """Return test lists, made in the same way."""
        return self._assign(len(tests), seed, "tests")

    def _assign(self, samples: int, seed: int, *purpose: str) -> Ragged:
        raise NotImplementedError


class iid(_ByNumber):
    """Assign all samples at random; sizes differ by at most one. Fits any targets.

    >>> iid(clients=3).split(torch.zeros(7), seed=0).sizes.tolist()
    [3, 2, 2]
    """

    def _assign(self, samples: int, seed: int, *purpose: str) -> Ragged:
        check_enough(self.clients, samples)
        order = stream(seed, "iid", *purpose).permutation(samples)
        return in_order(order, even_sizes(samples, self.clients))


class blocks(_ByNumber):
    """Assign blocks of neighbouring samples in the order of the file; the seed changes nothing.
    Fits any targets and text.

    FAFED's "moderate" on MNIST and Fashion-MNIST, whose files are in no order of labels, so that
    blocks are nearly i.i.d.; its shards of a text are blocks too. Sizes differ by at most one.

    Source: Wu et al., FAFED, AAAI 2023, and the code that is taken for its authors'.

    >>> [blocks(clients=2).split(torch.zeros(5), seed=0).of(i).tolist() for i in (0, 1)]
    [[0, 1, 2], [3, 4]]
    """

    def _assign(self, samples: int, seed: int, *purpose: str) -> Ragged:
        check_enough(self.clients, samples)
        return Ragged.from_sizes(torch.from_numpy(even_sizes(samples, self.clients)))


class natural(NamedPartition):
    """Make a client of everyone who made samples: the writers of FEMNIST and MNIST, the celebrities
    of CelebA, the roles of Shakespeare, the folders or the client column of your own data.

    min_size: leave out makers with fewer training samples. clients: keep this many, drawn at random
    by the seed; all by default. A client keeps its own test samples, if the data have them, and
    those of all clients together are the test set. Raises DataError when there are too few.

    Source: LEAF, Caldas et al. 2018.

    >>> natural(min_size=2).choose(torch.tensor([7, 4, 7, -1]), "writers", seed=0)[1].tolist()
    [7]
    """

    by: ClassVar[str | None] = None  # what the makers must be
    clients: PositiveInt | None = hyper(None, "clients to keep, drawn by the seed; none: all")
    min_size: PositiveInt = hyper(1, "fewest training samples of a client that is kept")

    def split(self, targets: Tensor, seed: int) -> Ragged:
        """Refuse: labels do not say who made a sample. A data set with owners calls `choose`."""
        raise DataError(
            "partition natural needs data that say who made each sample: femnist, celeba, "
            "shakespeare, mnist, or your own folders and tables; others take iid or dirichlet"
        )

    def choose(self, owners: Tensor, by: str, seed: int) -> tuple[Ragged, Tensor]:
        """-> the samples of every client, and the owners that are clients (N,), in ascending order.

        owners: (n,) int64, the maker of each sample; -1: nobody. by: what these owners are called.
        """
        if self.by not in (None, by):
            raise DataError(f"the clients of these data are {by}, not {self.by}; use natural")
        makers = owners.numpy()
        rows = np.flatnonzero(makers >= 0)
        ids, which, sizes = np.unique(makers[rows], return_inverse=True, return_counts=True)
        enough = np.flatnonzero(sizes >= self.min_size)
        if not len(enough):
            raise DataError(
                f"none of the {len(ids)} {by} has {self.min_size} samples (most: "
                f"{int(sizes.max()) if len(sizes) else 0}); take a smaller min_size"
            )
        if self.clients is not None:
            if self.clients > len(enough):
                raise DataError(
                    f"there are {len(enough)} {by} with at least {self.min_size} samples, fewer "
                    f"than clients = {self.clients}; take fewer clients or a smaller min_size"
                )
            rng = stream(seed, "natural")
            enough = np.sort(rng.permutation(enough)[: self.clients])
        places = np.full(len(ids), -1)
        places[enough] = np.arange(len(enough))
        clients, kept = places[which], places[which] >= 0
        lists = Ragged.from_owners(rows[kept], clients[kept], len(enough))
        return lists, torch.from_numpy(ids[enough].astype(np.int64))

    def about(self) -> dict[str, Any]:
        """Describe the partition, fit for JSON."""
        return {k: v for k, v in super().about().items() if v is not None}


class writers(natural):
    """Make a client of every writer of MNIST (539 by QMNIST's records) or FEMNIST: `natural`,
    refused where the makers are not writers.
    """

    by = "writers"


@dataclass(frozen=True, kw_only=True, eq=False)
class ByLists:
    """Assign samples by given lists; see `by_lists`. tests: lists of test samples, if there are
    any; samples: how many training samples the lists are for, if known.
    """

    lists: Ragged
    tests: Ragged | None = None
    samples: int | None = None

    def split(self, targets: Tensor, seed: int) -> Ragged:
        """Return the lists; raises DataError if they name more samples than there are."""
        if self.samples not in (None, len(targets)):
            raise DataError(
                f"the lists were made for {self.samples} samples, but there are {len(targets)}; "
                "load the data that they were made for"
            )
        return _within(self.lists, len(targets), "samples")

    def split_tests(self, targets: Tensor, tests: Tensor, seed: int) -> Ragged:
        """Return the test lists; without them, a part of the test set for each client that
        resembles its training samples (`proportional`).
        """
        if self.tests is None:
            return proportional(targets, self.split(targets, seed), tests, seed)
        return _within(self.tests, len(tests), "test samples")

    def about(self) -> dict[str, Any]:
        """Describe the partition, fit for JSON: the digest stands for the lists."""
        digest = self.lists.digest()
        return {"kind": "lists", "clients": self.lists.count, "sha256": digest}


def by_lists(lists: Iterable[Any] | Ragged) -> ByLists:
    """Assign samples by explicit index lists, one per client; they may overlap or leave some out.

    >>> import torch
    >>> by_lists([[0, 2], [1]]).split(torch.zeros(3), seed=0).of(0).tolist()
    [0, 2]
    """
    return ByLists(lists=lists if isinstance(lists, Ragged) else Ragged.from_lists(lists))


def lists(file: str) -> ByLists:
    """Assign samples by the index lists of a file: a published split, or one that was saved.

    .npz as `fedloom data partition --save` writes it (arrays offsets and indices; its test lists
    serve where test sets are asked for). Any other file is text, JSON or a Python literal: one list
    of indices per client, or a dictionary from 0, 1, ... to lists, which is how FedACG's are
    published. A relative path is seen from the folder in which the command is run. Raises DataError
    for a file that cannot be read.
    """
    if user_path(file).suffix != ".npz":
        return ByLists(lists=_from_text(user_path(file)))
    arrays, tests, samples = read_arrays(file), None, None
    if "test_offsets" in arrays and "test_indices" in arrays:
        tests = Ragged(arrays["test_offsets"], arrays["test_indices"])
    if "samples" in arrays:
        samples = int(arrays["samples"])
    clients = Ragged(arrays["offsets"], arrays["indices"])
    return ByLists(lists=clients, tests=tests, samples=samples)


def _from_text(path: Path) -> Ragged:
    try:
        text = decoded(path.read_bytes())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise DataError(
            f"{path} cannot be read: {reason}; give a .npz file of index lists or a text with one "
            "list per client"
        ) from None
    try:
        content = _parsed(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError, OverflowError):
        raise DataError(
            f"{path} is neither JSON nor a Python literal; expected one list of indices per "
            "client, as in [[4, 2], [0, 1]]"
        ) from None
    if isinstance(content, Mapping):
        names = {str(name): part for name, part in content.items()}
        if set(names) != {str(i) for i in range(len(names))}:
            raise DataError(
                f"{path} is a dictionary whose keys are not 0 to {len(names) - 1}; number the "
                "clients from 0"
            )
        content = [names[str(i)] for i in range(len(names))]
    if not isinstance(content, list) or not content:
        raise DataError(f"{path} holds no lists; expected one list of indices per client")
    try:
        return Ragged.from_lists(content)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return ast.literal_eval(text)


def _within(lists: Ragged, samples: int, unit: str) -> Ragged:
    indices = lists.indices
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < samples:
        raise DataError(
            f"the lists name {unit} {int(indices.min())} to {int(indices.max())}, but there "
            f"are {samples} {unit}, numbered from 0"
        )
    return lists
