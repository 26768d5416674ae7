"""Client test sets, cut from the common test set."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import Tensor

from fedloom.core.rng import key
from fedloom.data.client_indices import Ints, MatchedPartition, Partition, Ragged, as_lists
from fedloom.data.federated import FederatedData
from fedloom.errors import DataError, unknown

TESTS = ("matched", "independent")


def with_client_tests(
    data: FederatedData, partition: Partition, kind: str = "matched", seed: int = 0
) -> FederatedData:
    """Return a copy in which every client has a part of the test set; the whole stays common.

    partition and seed are those of the training samples. "matched" divides the test samples by the
    same procedure with the same draws of the clients: its p_i, its classes, its pieces. A partition
    of your own without `split_tests` gets `proportional` parts. "independent" divides them by the
    same partition with another seed, so that a client's test labels have nothing to do with its
    training labels (FIARSE's release).

    Source: FIARSE (Wu et al., NeurIPS 2024), section 5, "Local"; matched is our reading. Raises
    DataError for data without a test set or with client test sets of their own, and for partitions
    that cannot divide the test samples.

    >>> import torch
    >>> from fedloom.data import dirichlet, from_arrays
    >>> labels, split = torch.arange(200) % 4, dirichlet(0.1, clients=4)
    >>> data = from_arrays(torch.zeros(200, 1), labels, split, (torch.zeros(40, 1), labels[:40]))
    >>> tests = with_client_tests(data, split).test_clients
    >>> tests.sizes.tolist()
    [10, 10, 10, 10]
    """
    if kind not in TESTS:
        raise DataError(unknown("kind of test sets", kind, TESTS))
    if data.test_targets is None:
        raise DataError(
            f"'{data.name}' has no test set to divide among clients; give one, or no client tests"
        )
    if data.test_clients is not None:
        raise DataError(
            f"the clients of '{data.name}' have test sets of their own; leave client tests away"
        )
    targets, tests = data.targets.cpu(), data.test_targets.cpu()
    if kind == "independent":
        try:
            lists = as_lists(partition.split(tests, key(seed, "client tests")), partition)
        except DataError as error:
            raise DataError(f"the test samples cannot be divided independently: {error}") from error
    elif isinstance(partition, MatchedPartition):
        lists = as_lists(partition.split_tests(targets, tests, seed), partition)
    else:
        lists = proportional(targets, data.clients, tests, seed)
    about = {**data.about, "tests": {"kind": kind, "seed": seed}}
    return replace(data, test_clients=lists, about=about)


def proportional(targets: Tensor, clients: Ragged, tests: Tensor, seed: int) -> Ragged:
    """Divide every class of the test set by the clients' shares of that class: their training
    labels decide how many test samples they get, and of which classes.

    A count is the exact share rounded up or down, at random and right on average. Classes that no
    client holds are left out; a client may get none. Targets that are no labels (n,) count as one
    class.
    """
    train_labels, test_labels = _classes(targets)[clients.indices.numpy()], _classes(tests)
    owners = clients.owners().numpy()
    rng = np.random.default_rng(key(seed, "client tests", "proportional"))
    owner_parts: list[Ints] = [np.empty(0, dtype=np.int64)]
    index_parts: list[Ints] = [np.empty(0, dtype=np.int64)]
    for label in np.unique(test_labels).tolist():
        class_counts = np.bincount(owners[train_labels == label], minlength=clients.count)
        if not class_counts.sum():
            continue
        pool = rng.permutation((test_labels == label).nonzero()[0])
        line = rng.permutation(clients.count)  # rounding favours no client
        ends = np.cumsum(class_counts[line]) / class_counts.sum() * len(pool)
        cuts = np.floor(ends + rng.random()).astype(np.int64)
        cuts[-1] = max(len(pool), int(cuts[-1]))
        counts = np.diff(cuts, prepend=0)
        receivers = np.repeat(line, counts)
        owner_parts.append(receivers[: len(pool)])
        index_parts.append(pool[: len(receivers)])
    owner, index = np.concatenate(owner_parts), np.concatenate(index_parts)
    return Ragged.from_owners(index, owner, clients.count)


def _classes(targets: Tensor) -> Ints:
    if targets.is_floating_point() or targets.ndim != 1:
        return np.zeros(len(targets), dtype=np.int64)
    labels: Ints = targets.numpy()
    return labels
