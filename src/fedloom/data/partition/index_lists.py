"""Your own index lists, or those of a published file."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fedloom.core.parsing import decoded
from fedloom.data.client_indices import Ragged, Split
from fedloom.data.client_test_sets import proportional
from fedloom.errors import DataError


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

    .npz as `fedloom partition --save` writes it (arrays offsets and indices; its test lists serve
    where test sets are asked for). Any other file is text, JSON or a Python literal: one list of
    indices per client, or a dictionary from 0, 1, ... to lists, which is how FedACG's are
    published. A relative path is seen from the folder in which the command is run. Raises DataError
    for a file that cannot be read.
    """
    if Path(file).suffix != ".npz":
        return ByLists(lists=_from_text(Path(file)))
    clients, tests, _, samples = Split.read(file)
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
        found = _parsed(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError, OverflowError):
        raise DataError(
            f"{path} is neither JSON nor a Python literal; expected one list of indices per "
            "client, as in [[4, 2], [0, 1]]"
        ) from None
    if isinstance(found, Mapping):
        names = {str(name): part for name, part in found.items()}
        if set(names) != {str(i) for i in range(len(names))}:
            raise DataError(
                f"{path} is a dictionary whose keys are not 0 to {len(names) - 1}; number the "
                "clients from 0"
            )
        found = [names[str(i)] for i in range(len(names))]
    if not isinstance(found, list) or not found:
        raise DataError(f"{path} holds no lists; expected one list of indices per client")
    try:
        return Ragged.from_lists(found)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return ast.literal_eval(text)


def _within(lists: Ragged, samples: int, what: str) -> Ragged:
    indices = lists.indices
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < samples:
        raise DataError(
            f"the lists name {what} {int(indices.min())} to {int(indices.max())}, but there "
            f"are {samples} {what}, numbered from 0"
        )
    return lists
