"""Index lists of all clients as two arrays, counts over them, and the interface of partitions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from fedloom.core.parsing import user_path
from fedloom.errors import DataError

Ints = np.ndarray[Any, np.dtype[np.int64]]
_COUNTED = 100_000  # clients whose labels are counted at once


class Ragged(NamedTuple):
    """One list of indices per client in two arrays: a million clients need no million objects.

    offsets: (N+1,) int64, from 0 upwards; indices: (sum of the sizes,) int64. Client i owns
    indices[offsets[i] : offsets[i+1]].

    >>> lists = Ragged.from_lists([[4, 2], [0], [1, 3]])
    >>> lists.count, lists.sizes.tolist(), lists.of(2).tolist()
    (3, [2, 1, 2], [1, 3])
    """

    offsets: Tensor
    indices: Tensor

    @classmethod
    def from_lists(cls, lists: Iterable[Any]) -> Ragged:
        """Join lists, arrays or tensors of integers, one per client, in their order.

        Raises DataError for a list that is not one-dimensional or holds anything but integers.
        """
        parts = [_as_indices(part, client) for client, part in enumerate(lists)]
        sizes = np.array([len(part) for part in parts], dtype=np.int64)
        indices = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
        return cls.from_sizes(torch.from_numpy(sizes), torch.from_numpy(indices))

    @classmethod
    def from_sizes(cls, sizes: Tensor, indices: Tensor | None = None) -> Ragged:
        """Cut indices (total,), by default 0, 1, ..., into consecutive lists of sizes (N,)."""
        offsets = torch.zeros(len(sizes) + 1, dtype=torch.int64)
        torch.cumsum(sizes, 0, out=offsets[1:])
        return cls(offsets, torch.arange(int(offsets[-1])) if indices is None else indices)

    @classmethod
    def from_owners(cls, indices: Ints, owners: Ints, count: int) -> Ragged:
        """Give each index (n,) to its owner (n,), a client below count; each list ascends."""
        sizes, order = np.bincount(owners, minlength=count), np.lexsort((indices, owners))
        return cls.from_sizes(torch.from_numpy(sizes), torch.from_numpy(indices[order]))

    @property
    def count(self) -> int:  # type: ignore[override]  # tuple.count: of no use for two tensors
        """The number of clients N."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Tensor:
        """The length of every list, (N,) int64."""
        return self.offsets[1:] - self.offsets[:-1]

    def of(self, i: int) -> Tensor:
        """Return the indices of client i, a view; raises DataError if there is no such client."""
        if not 0 <= i < self.count:
            raise DataError(f"there is no client {i}; clients are numbered 0 to {self.count - 1}")
        return self.indices[int(self.offsets[i]) : int(self.offsets[i + 1])]

    def select(self, clients: Iterable[int]) -> Ragged:
        """The lists of these clients, in this order."""
        return Ragged.from_lists([self.of(i) for i in clients])

    def owners(self) -> Tensor:
        """The owner of every entry of indices, (total,) int64."""
        return torch.repeat_interleave(torch.arange(self.count), self.sizes)

    def digest(self) -> str:
        """The SHA-256 of the lists: equal digests mean the same split."""
        state = hashlib.sha256(np.array([self.count, len(self.indices)], dtype="<i8").tobytes())
        for part in self:
            state.update(np.ascontiguousarray(part.numpy(), dtype="<i8").data)
        return state.hexdigest()


@runtime_checkable
class Partition(Protocol):
    """Assigns samples to clients; any object with these two methods is a partition."""

    def split(self, targets: Tensor, seed: int) -> Ragged:
        """Return the indices of every client into targets (n, ...). One of your own may return a
        list of indices for each client: lists, arrays or tensors of integers.
        """
        ...

    def about(self) -> dict[str, Any]:
        """Describe the partition and its numbers, fit for JSON."""
        ...


@runtime_checkable
class MatchedPartition(Partition, Protocol):
    """Assigns test samples too, so that a client's test set resembles its training samples."""

    def split_tests(self, targets: Tensor, tests: Tensor, seed: int) -> Ragged:
        """Return the indices of every client into test targets (m, ...), for the clients that
        split(targets, seed) makes.
        """
        ...


def read_numpy(path: str | PathLike[str]) -> dict[str, np.ndarray[Any, Any]]:
    """{name: array} of a .npz file, or of a .npy file by its own name; pickles are refused. Raises
    ValueError of one line, for a missing file too.
    """
    arrays, name = {}, ""
    try:
        with open(path, "rb") as file:  # given a name, numpy leaves a damaged file open
            content = np.load(file, allow_pickle=False)
            if isinstance(content, np.ndarray):
                return {Path(path).stem: content}
            for name in content.files:
                if not isinstance(array := content[name], np.ndarray):
                    raise ValueError("it is no array")
                arrays[name] = array
    except Exception as error:  # of a damaged file it may be any
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        where = f"array '{name[:60]}': " if name else ""
        raise ValueError(f"{where}{reason.splitlines()[0][:300]}") from None
    return arrays


def read_arrays(path: str | PathLike[str]) -> dict[str, Tensor]:
    """The int64 arrays of a .npz file of index lists: offsets, indices, and any others.

    Raises DataError for a file that cannot be read or lacks these two.
    """
    try:
        arrays = read_numpy(user_path(path))
    except ValueError as error:
        raise DataError(f"{path} is not a readable .npz file of index lists: {error}") from error
    for name, array in arrays.items():
        if array.dtype.kind not in "iu":
            raise DataError(f"array '{name}' of {path} has type {array.dtype}; integers are needed")
    if missing := {"offsets", "indices"} - arrays.keys():
        raise DataError(
            f"{path} has no array '{min(missing)}'; a split needs offsets (clients + 1,) and "
            "indices (samples of all clients,)"
        )
    return {name: torch.from_numpy(array.astype(np.int64)) for name, array in arrays.items()}


def _as_indices(part: Any, client: int) -> Ints:
    try:
        array = np.asarray(part)
    except ValueError as error:
        raise DataError(f"the indices of client {client} are not a flat list: {error}") from error
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise DataError(
            f"the indices of client {client} have shape {tuple(array.shape)} and type "
            f"{array.dtype}; give a flat list of integers"
        )
    return array.astype(np.int64)


def as_lists(result: Any, partition: object) -> Ragged:
    """What a partition returned: a Ragged, or lists of indices, one per client. Raises DataError
    for anything else; partition: what an error names.
    """
    if isinstance(result, Ragged):
        return result
    subject = f"partition {getattr(partition, '__name__', type(partition).__name__)}"
    if isinstance(result, str | Mapping) or not isinstance(result, Iterable):
        raise DataError(
            f"{subject} returned a {type(result).__name__}; return a list of indices for each "
            "client, as in [[0, 2], [1]], or a Ragged"
        )
    try:
        return Ragged.from_lists(result)
    except DataError as error:
        raise DataError(f"{subject}: {error}") from error


def count_labels(
    lists: Ragged, targets: Tensor, classes: int, ignored: int | None = None
) -> Tensor:
    """Count the labels, or all tokens or pixels, of targets (n, ...) on every list: (N, C) int64.
    ignored: a label that is not counted.
    """
    counts = torch.zeros(lists.count, classes, dtype=torch.int64)
    for a in range(0, lists.count, _COUNTED):  # a million at once would take gigabytes
        part = Ragged(lists.offsets[a : a + _COUNTED + 1], lists.indices)
        labels = targets[lists.indices[part.offsets[0] : part.offsets[-1]]]
        first = (part.owners() * classes).view(-1, *[1] * (labels.ndim - 1))
        codes = first + labels if ignored is None else (first + labels)[labels != ignored]
        binned = torch.bincount(codes.flatten(), minlength=part.count * classes)
        counts[a : a + _COUNTED] = binned.view(-1, classes)
    return counts


def refuse_shared_samples(clients: Ragged) -> None:
    """Raise DataError if a sample is on several clients' lists."""
    times = torch.bincount(clients.indices)
    if int(times.max()) > 1:
        raise DataError(
            f"sample {int(times.argmax())} is on {int(times.max())} clients' lists, so holding it "
            "out of one leaves it at another; choose validation samples before the partition"
        )


def check_lists(subject: str, lists: Ragged, samples: int, split: str) -> None:
    """Raise DataError for lists that are not complete or name more samples than there are."""
    offsets, indices = lists
    rising = offsets.ndim == 1 and offsets.dtype == torch.int64 and len(offsets) > 1
    rising = rising and int(offsets[0]) == 0 and int(offsets[-1]) == len(indices)
    if not rising or bool((lists.sizes < 0).any()):
        raise DataError(
            f"{subject} needs int64 offsets of at least one client that rise from 0 to the number "
            f"of indices ({len(indices)}); build it by Ragged.from_lists"
        )
    check_indices(subject, indices, samples, split)


def check_indices(subject: str, indices: Tensor, samples: int, split: str) -> None:
    """Raise DataError for values that are no indices into that many samples."""
    if indices.dtype != torch.int64 or indices.ndim != 1:
        raise DataError(
            f"{subject} indices have type {indices.dtype} and shape {tuple(indices.shape)}; int64 "
            "in one dimension is needed"
        )
    outside = ((indices < 0) | (indices >= samples)).nonzero()
    if len(outside):
        raise DataError(
            f"{subject} names sample {int(indices[outside[0]])}, but there are {samples} {split} "
            f"samples, numbered 0 to {samples - 1}"
        )
