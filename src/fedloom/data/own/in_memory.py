"""Your own arrays as a federation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedloom.data.client_indices import Partition, Ragged
from fedloom.data.federated import FederatedData
from fedloom.data.tensors import as_inputs, as_targets, check_dtype
from fedloom.data.transforms import Transform
from fedloom.errors import DataError


def from_clients(
    pairs: Sequence[tuple[Any, Any]],
    test: tuple[Any, Any] | None = None,
    client_tests: Sequence[tuple[Any, Any]] | None = None,
    name: str = "yours",
    class_names: Sequence[str] = (),
    dtype: torch.dtype = torch.float32,
    transform: Transform | None = None,
) -> FederatedData:
    """Make a federation of one (inputs, targets) pair per client: lists, numpy arrays or tensors.

    Inputs are (n_i, ...), targets (n_i,) integer labels or (n_i, ...) floats for regression.
    Floats become dtype (float32 unless torch.float64 is asked for), integer inputs stay integers
    (tokens); with a transform, such as Images, inputs keep the type that they have. `test` is one
    common test set; `client_tests` has one pair per client, and all of them together are then the
    common test set. Raises DataError that names the client.

    >>> data = from_clients([([[0.0], [1.0]], [0, 1]), ([[2.0]], [1])], test=([[3.0]], [0]))
    >>> data.sizes.tolist(), data.inputs.dtype, len(data.test_inputs)
    ([2, 1], torch.float32, 1)
    """
    if test is not None and client_tests is not None:
        raise DataError(
            "both test and client_tests are given; give test (one common set) or client_tests "
            "(one per client, together the common set)"
        )
    if client_tests is not None and len(client_tests) != len(pairs):
        raise DataError(
            f"client_tests has {len(client_tests)} pairs for {len(pairs)} clients; give one each"
        )
    inputs, targets, clients = _join(pairs, dtype, "client {}", transform)
    tests = None
    test_inputs, test_targets = _test_arrays(test, dtype, transform)
    if client_tests is not None:
        test_inputs, test_targets, tests = _join(client_tests, dtype, "client_tests {}", transform)
    return FederatedData(
        name=name,
        inputs=inputs,
        targets=targets,
        clients=clients,
        test_inputs=test_inputs,
        test_targets=test_targets,
        test_clients=tests,
        class_names=tuple(class_names),
        about=_about(name, transform) | {"partition": {"kind": "given", "clients": clients.count}},
        transform=transform,
    )


def from_arrays(
    inputs: Any,
    targets: Any,
    partition: Partition,
    test: tuple[Any, Any] | None = None,
    seed: int = 0,
    name: str = "yours",
    class_names: Sequence[str] = (),
    dtype: torch.dtype = torch.float32,
    transform: Transform | None = None,
) -> FederatedData:
    """Make a federation of one data set, dealt to clients by a partition with this seed.

    Inputs are (n, ...), targets (n,) integer labels or (n, ...) floats for regression (`iid` and
    `by_lists` deal those). Types are converted as by `from_clients`; arrays that need no
    conversion are shared. Raises DataError for data or partitions that do not fit.

    >>> from fedloom.data.partition import iid
    >>> data = from_arrays(torch.rand(10, 3), torch.rand(10), iid(clients=4))
    >>> sorted(data.sizes.tolist()), data.classes
    ([2, 2, 3, 3], None)
    """
    rows = as_inputs(inputs, dtype, stored=transform is not None)
    labels = as_targets(targets, dtype)
    if len(rows) != len(labels):
        raise DataError(f"there are {len(rows)} inputs, but {len(labels)} targets; one each needed")
    test_inputs, test_targets = _test_arrays(test, dtype, transform)
    return FederatedData(
        name=name,
        inputs=rows,
        targets=labels,
        clients=partition.split(labels, seed),
        test_inputs=test_inputs,
        test_targets=test_targets,
        class_names=tuple(class_names),
        about=_about(name, transform) | {"partition": partition.about(), "seed": seed},
        transform=transform,
    )


def _about(name: str, transform: Transform | None) -> dict[str, Any]:
    return {"source": name} | ({} if transform is None else transform.about())


def _test_arrays(
    test: tuple[Any, Any] | None, dtype: torch.dtype, transform: Transform | None
) -> tuple[Tensor, Tensor] | tuple[None, None]:
    if test is None:
        return None, None
    inputs, targets = _pair(test, "test")
    rows = as_inputs(inputs, dtype, "test inputs", transform is not None)
    return rows, as_targets(targets, dtype, "test targets")


def _pair(pair: Any, what: str) -> tuple[Any, Any]:
    try:
        inputs, targets = pair
    except (TypeError, ValueError) as error:
        raise DataError(f"{what} is not a pair (inputs, targets): {error}") from error
    return inputs, targets


def _join(
    pairs: Sequence[tuple[Any, Any]],
    dtype: torch.dtype,
    label: str,
    transform: Transform | None,
) -> tuple[Tensor, Tensor, Ragged]:
    check_dtype(dtype)
    if not len(pairs):
        raise DataError("there are no clients; give at least one (inputs, targets) pair")
    parts: list[tuple[Tensor, Tensor]] = []
    for client, pair in enumerate(pairs):
        what = label.format(client)
        inputs, targets = _pair(pair, what)
        rows = as_inputs(inputs, dtype, f"{what}: inputs", transform is not None)
        labels = as_targets(targets, dtype, f"{what}: targets")
        if len(rows) != len(labels):
            raise DataError(f"{what} has {len(rows)} inputs, but {len(labels)} targets")
        parts.append((rows, labels))
    # a client without samples, [] in Python, says nothing about shape or type
    first = next((i for i, (rows, _) in enumerate(parts) if len(rows)), 0)
    for client, part in enumerate(parts):
        if len(part[0]):
            _check_alike(part, parts[first], label.format(client), label.format(first))
    full = [part for part in parts if len(part[0])] or parts[:1]
    sizes = torch.tensor([len(rows) for rows, _ in parts])
    lists = Ragged.from_sizes(sizes, torch.arange(int(sizes.sum())))
    return torch.cat([rows for rows, _ in full]), torch.cat([part[1] for part in full]), lists


def _check_alike(
    part: tuple[Tensor, Tensor], first: tuple[Tensor, Tensor], what: str, other: str
) -> None:
    for kind, mine, theirs in zip(("inputs", "targets"), part, first, strict=True):
        if mine.shape[1:] != theirs.shape[1:] or mine.dtype != theirs.dtype:
            raise DataError(
                f"{what} has {kind} of shape {tuple(mine.shape[1:])} and type {mine.dtype} a "
                f"sample, {other} {tuple(theirs.shape[1:])} and {theirs.dtype}; all must be alike"
            )
