"""What partitions share: checks, pools of shuffled indices per class, cutting into lists; and what
makes a partition of a user's function.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, dataclass_transform

import numpy as np
from annotated_types import Ge, Le
from torch import Tensor

from fedloom.core.hyper import Hyper, Part, PositiveInt
from fedloom.core.own_parts import line_of
from fedloom.core.rng import key
from fedloom.data.client_indices import Ints, Partition, Ragged, as_lists
from fedloom.errors import DataError, FedloomError

Floats = np.ndarray[Any, np.dtype[np.float64]]
Clients = Annotated[PositiveInt, Hyper(meaning="number of clients")]
Alpha = Annotated[float, Ge(1e-9), Le(1e9), Hyper(remedy="0.1 is very uneven, 100 nearly iid")]
Pools = list[Ints]  # per class, ascending, the shuffled indices of its samples


# ------------------------------------------------------------------------------------------ values
@dataclass_transform(frozen_default=True)
class NamedPartition(Part, kw_only=False):
    """A partition: a frozen value whose fields are its options, with their ranges.

    Its class is written like a function (`dirichlet(0.3, clients=100)`) and has its name in a
    configuration.
    """

    title: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__(kw_only=False)

    def about(self) -> dict[str, Any]:
        """Describe the partition, fit for JSON."""
        options = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"kind": type(self).__name__, **options}


class ByLabel:
    """A partition of labels (n,): `_assign` assigns the samples of each class to clients."""

    clients: int

    def split(self, targets: Tensor, seed: int) -> Ragged:
        """Return the lists for labels (n,)."""
        pools, rng = self._pools(targets, seed)
        self._check(pools, targets, seed)
        return self._assign(pools, rng, targets, seed)

    def split_tests(self, targets: Tensor, tests: Tensor, seed: int) -> Ragged:
        """Return test lists by the same procedure, with what each client drew for training."""
        pools, rng = self._test_pools(targets, tests, seed)
        return self._assign(pools, rng, targets, seed)

    def _check(self, pools: Pools, targets: Tensor, seed: int) -> None:
        """Raise DataError for training samples that cannot be divided."""

    def _assign(self, pools: Pools, rng: np.random.Generator, targets: Tensor, seed: int) -> Ragged:
        """Assign pools of training or of test samples; targets: of training."""
        raise NotImplementedError

    def _stream(self, seed: int, *purpose: str) -> np.random.Generator:
        return stream(seed, type(self).__name__, *purpose)

    def _pools(self, targets: Tensor, seed: int) -> tuple[Pools, np.random.Generator]:
        """Shuffle the indices of every class that occurs. The generator is for the draws to come.

        Raises DataError for targets that are no labels (n,), and for more clients than samples.
        """
        labels, rng = self._labels(targets), self._stream(seed)
        check_enough(self.clients, len(labels))
        return _pools(labels, np.unique(labels), rng), rng

    def _test_pools(
        self, targets: Tensor, tests: Tensor, seed: int
    ) -> tuple[Pools, np.random.Generator]:
        """Shuffle test labels alike, for the classes of the training labels: a pool may be empty.

        Raises DataError as _pools does, and for a class that training does not know.
        """
        labels, rng = self._labels(tests), self._stream(seed, "tests")
        if self.clients > len(labels):
            raise DataError(
                f"{self.clients} clients cannot share {len(labels)} test samples; take at most "
                f"{len(labels)} clients, or no client test sets"
            )
        return _pools(labels, self._classes(targets, labels), rng), rng

    def _classes(self, targets: Tensor, tests: Ints) -> Ints:
        """The classes of training labels. Raises DataError for one that test labels alone have."""
        classes = np.unique(self._labels(targets))
        if len(odd := np.setdiff1d(tests, classes)):
            raise DataError(
                f"the test set has class {odd[0]}, which no training sample has: it can match no "
                "client's labels; take independent test sets"
            )
        return classes

    def _labels(self, targets: Tensor) -> Ints:
        if targets.is_floating_point() or targets.ndim != 1:
            raise DataError(
                f"{type(self).__name__} needs labels (n,) int64, one of a sample, but the targets "
                f"are {targets.dtype} of shape {tuple(targets.shape)}; for these use iid, blocks "
                "or by_lists"
            )
        labels: Ints = targets.cpu().numpy()
        return labels


# ------------------------------------------------------------------------------------------ checks
def check_enough(clients: int, samples: int) -> None:
    """Raise DataError if a client would get nothing."""
    if clients > samples:
        raise DataError(
            f"{clients} clients cannot share {samples} samples; take at most {samples} clients"
        )


def check_classes(classes: int, count: int) -> None:
    """Raise DataError for more classes per client than there are."""
    if classes > count:
        raise DataError(
            f"a client cannot hold {classes} classes, the labels have {count}; take at most {count}"
        )


# ------------------------------------------------------------------------------------------- pools
def stream(seed: int, *purpose: str) -> np.random.Generator:
    """A generator for one part of one partition."""
    return np.random.default_rng(key(seed, "partition", *purpose))


def _pools(labels: Ints, classes: Ints, rng: np.random.Generator) -> Pools:
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    sizes = np.bincount(np.searchsorted(classes, labels), minlength=len(classes))
    return np.split(order, np.cumsum(sizes)[:-1])


# ------------------------------------------------------------------------------------------- lists
def even_sizes(samples: int, parts: int) -> Ints:
    """Sizes that differ by at most one, the larger ones first.

    >>> even_sizes(7, 3).tolist()
    [3, 2, 2]
    """
    sizes = np.full(parts, samples // parts, dtype=np.int64)
    sizes[: samples % parts] += 1
    return sizes


def ranks(values: Ints) -> Ints:
    """For each value, how often it occurred before.

    >>> ranks(np.array([5, 2, 5, 5, 2])).tolist()
    [0, 0, 1, 2, 1]
    """
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    out = np.empty_like(order)
    out[order] = np.arange(len(values)) - np.searchsorted(ordered, ordered)
    return out


def in_order(order: Ints, sizes: Ints) -> Ragged:
    """Cut order into lists of these sizes, and put each list in ascending order."""
    return Ragged.from_owners(order, np.repeat(np.arange(len(sizes)), sizes), len(sizes))


def assign(pools: Pools, counts: Ints) -> Ragged:
    """Give client i the next counts[c, i] samples of every pool c; the rest is left out."""
    owners = np.concatenate([np.repeat(np.arange(len(row)), row) for row in counts])
    order = [pool[: row.sum()] for pool, row in zip(pools, counts, strict=True)]
    return Ragged.from_owners(np.concatenate(order), owners, counts.shape[1])


_GIVEN = ["targets", "seed"]


@dataclass(frozen=True)
class ByFunction:
    """What f(targets, seed, **options) returns: a list of indices for each client."""

    function: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict)

    def split(self, targets: Tensor, seed: int) -> Ragged:
        """Call the function. Raises DataError for anything but lists of indices."""
        try:
            result = self.function(targets, seed, **self.options)
        except FedloomError:
            raise
        except Exception as error:  # whatever a user's function raises
            place = f", {line}" if (line := line_of(error)) else ""
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
            name = self.function.__name__
            raise DataError(f"partition {name} failed{place}: {text}; correct it") from error
        return as_lists(result, self.function)

    def about(self) -> dict[str, Any]:
        """The function's name, and its options."""
        return {"kind": self.function.__name__, **self.options}


def from_function(function: Callable[..., Any]) -> Callable[..., Partition]:
    """What makes a partition of a user's function: itself, or where it is one of the targets and a
    seed, a function of its other parameters.
    """
    signature = inspect.signature(function)
    if [*signature.parameters][:2] != _GIVEN:
        return function

    @functools.wraps(function)
    def make(**options: Any) -> Partition:
        return ByFunction(function, options)

    rest = [p for name, p in signature.parameters.items() if name not in _GIVEN]
    make.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
    return make
