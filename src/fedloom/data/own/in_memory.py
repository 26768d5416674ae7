"""Your own arrays as a federation: lists, numpy arrays or tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from fedloom.data.client_indices import Partition, Ragged
from fedloom.data.dataset import Arrays, Samples
from fedloom.data.federated import FederatedData
from fedloom.data.transforms import Transform, check_dtype
from fedloom.data.unseen import Unseen
from fedloom.errors import DataError, did_you_mean

_ClientArrays = tuple[Tensor, Tensor, Ragged]  # inputs, targets, the rows of each client


def from_clients(
    pairs: Sequence[tuple[Any, Any]] | Mapping[str, tuple[Any, Any]],
    test: tuple[Any, Any] | None = None,
    client_tests: Sequence[tuple[Any, Any]] | Mapping[str, tuple[Any, Any]] | None = None,
    name: str = "yours",
    class_names: Sequence[str] = (),
    dtype: torch.dtype = torch.float32,
    transform: Transform | None = None,
    ignore: int | None = None,
) -> FederatedData:
    """Make a federation of one (inputs, targets) pair per client: lists, numpy arrays or tensors;
    {name: pair} gives the clients names.

    Inputs are (n_i, ...), targets (n_i,) integer labels, (n_i, H, W) integer labels of pixels, or
    (n_i, ...) floats for regression. ignore: a label that does not count, such as 255 of pixels.
    Floats become dtype (float32 unless torch.float64 is asked for), integer inputs stay integers
    (tokens); with a transform, such as Images, inputs keep the type that they have. `test` is one
    common test set; `client_tests` has one pair per client, and all of them together are then the
    common test set; by name, a client may be left out. A client without training samples never
    trains, and is measured on its tests. Raises DataError that names the client.

    >>> data = from_clients([([[0.0], [1.0]], [0, 1]), ([[2.0]], [1])], test=([[3.0]], [0]))
    >>> data.sizes.tolist(), data.inputs.dtype, len(data.test_inputs)
    ([2, 1], torch.float32, 1)
    """
    if test is not None and client_tests is not None:
        raise DataError(
            "both test and client_tests are given; give test (one common set) or client_tests "
            "(one per client, together the common set)"
        )
    clients, named = _by_name(pairs), isinstance(pairs, Mapping)
    tests = None if client_tests is None else _tests_of(clients, client_tests, named)
    new = [n for n, pair in clients.items() if tests is not None and _empty(pair)]
    training = [n for n in clients if n not in {*new}]

    def joined(subject: str, arrays: Mapping[str, Any], names: Sequence[str]) -> _ClientArrays:
        return join({f"{subject} {n}": arrays[n] for n in names}, dtype, transform)

    inputs, targets, lists = joined("client", clients, training)
    test_inputs = test_targets = test_lists = unseen = None
    if test is not None:
        test_inputs, test_targets = _arrays(test, "test", dtype, transform)
    if tests is not None:
        test_inputs, test_targets, test_lists = joined("client_tests", tests, training)
        unseen = Unseen(tuple(new), *joined("client_tests", tests, new)) if new else None
    about = {"source": name, **_not_counted(ignore), **(transform.about() if transform else {})}
    about["partition"] = {"kind": "given", "clients": lists.count}
    return FederatedData(
        name=name,
        inputs=inputs,
        targets=targets,
        clients=lists,
        test_inputs=test_inputs,
        test_targets=test_targets,
        test_clients=test_lists,
        class_names=tuple(class_names),
        about=about | ({"unseen": new} if new else {}),
        transform=transform,
        client_names=tuple(training) if named or new else (),
        unseen=unseen,
    )


def _empty(pair: Any) -> bool:
    """True for a pair without samples; what is no pair is refused where it is read."""
    try:
        inputs, _ = pair
        return len(inputs) == 0
    except (TypeError, ValueError):
        return False


def refuse_loader(value: Any, subject: str) -> None:
    """Raise DataError for a DataLoader."""
    if isinstance(value, DataLoader):
        raise DataError(
            f"{subject} is a DataLoader; give its dataset, from_datasets([loader.dataset, ...]): "
            "fedloom draws the batches itself, of local.batch examples"
        )


def _by_name(parts: Any) -> dict[str, Any]:
    """The clients' parts by name, or by number."""
    items = parts.items() if isinstance(parts, Mapping) else enumerate(parts)
    return {str(name): part for name, part in items}


def _tests_of(clients: Mapping[str, Any], tests: Any, named: bool) -> dict[str, Any]:
    """The test pair of each client; no samples for a name without a pair. Raises DataError."""
    if not isinstance(tests, Mapping):
        if len(tests) != len(clients):
            raise DataError(
                f"client_tests has {len(tests)} pairs for {len(clients)} clients; give one each"
            )
        tests = dict(zip(clients, tests, strict=True))
    pairs = {name: ([], []) for name in clients} | _by_name(tests)
    if others := [name for name in pairs if name not in clients]:
        hint = did_you_mean(others[0], clients) if named else "give the clients names too"
        raise DataError(
            f"client_tests has a client '{others[0]}', which has no training samples; {hint}"
        )
    for name, pair in clients.items():
        if _empty(pair) and _empty(pairs[name]):
            raise DataError(
                f"client {name} has no samples, neither to train on nor to test on; leave it out"
            )
    return pairs


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
    ignore: int | None = None,
) -> FederatedData:
    """Make a federation of one data set, divided among clients by a partition with this seed.

    Inputs are (n, ...), targets (n,) integer labels, (n, H, W) integer labels of pixels or (n, ...)
    floats for regression (both for `iid` and `by_lists`). ignore: a label that does not count, such
    as 255 of pixels. Types are converted as by `from_clients`; arrays that need no conversion are
    shared. Raises DataError for data or partitions that do not fit.

    >>> from fedloom.data.partition import iid
    >>> data = from_arrays(torch.rand(10, 3), torch.rand(10), iid(clients=4))
    >>> sorted(data.sizes.tolist()), data.classes
    ([2, 2, 3, 3], None)
    """
    refuse_loader(inputs, "the data set")
    return Arrays(
        name=name,
        train=Samples(*_arrays((inputs, targets), "the data set", dtype, transform)),
        test=None if test is None else Samples(*_arrays(test, "test", dtype, transform)),
        class_names=tuple(class_names),
        transform=transform,
        details=_not_counted(ignore),
    ).divided(partition, seed)


def _not_counted(label: int | None) -> dict[str, Any]:
    """What `about` says of a label that does not count."""
    return {} if label is None else {"target_padding": label}


def _arrays(
    pair: Any, subject: str, dtype: torch.dtype, transform: Transform | None
) -> tuple[Tensor, Tensor]:
    """Inputs and targets as tensors. Raises DataError, which begins with `subject`."""
    refuse_loader(pair, subject)
    try:
        inputs, targets = pair
    except (TypeError, ValueError) as error:
        raise DataError(f"{subject} is not a pair (inputs, targets): {error}") from error
    one_input(inputs, targets, f"{subject}: inputs")
    rows = as_inputs(inputs, dtype, f"{subject}: inputs", transform is not None)
    labels = as_targets(targets, dtype, f"{subject}: targets")
    if len(rows) != len(labels):
        raise DataError(
            f"{subject} has {len(rows)} inputs, but {len(labels)} targets; give one each"
        )
    return rows, labels


def join(
    pairs: Mapping[str, Any],
    dtype: torch.dtype = torch.float32,
    transform: Transform | None = None,
) -> _ClientArrays:
    """Convert pairs of (inputs, targets), by their names in errors, and concatenate them -> also
    the rows of each pair. Raises DataError for pairs that do not fit.
    """
    check_dtype(dtype)
    if not len(pairs):
        raise DataError("there are no clients; give at least one (inputs, targets) pair")
    parts = {name: _arrays(pair, name, dtype, transform) for name, pair in pairs.items()}
    # [] in Python has no shape and no type
    full = {name: part for name, part in parts.items() if len(part[0])} or parts
    first_name, first = next(iter(full.items()))
    for name, part in full.items():
        for kind, values, expected in zip(("inputs", "targets"), part, first, strict=True):
            if values.shape[1:] != expected.shape[1:] or values.dtype != expected.dtype:
                raise DataError(
                    f"{name} has {kind} of shape {tuple(values.shape[1:])} and type "
                    f"{values.dtype} a sample, {first_name} {tuple(expected.shape[1:])} and "
                    f"{expected.dtype}; all must be alike"
                )
    inputs, targets = (torch.cat(arrays) for arrays in zip(*full.values(), strict=True))
    return inputs, targets, Ragged.from_sizes(torch.tensor([len(x) for x, _ in parts.values()]))


ONE_ARRAY = (
    "make one of them with fedloom.models.joined(inputs), and give the model "
    "SeveralInputs(net, inputs), which takes it apart"
)


def as_inputs(
    value: Any,
    dtype: torch.dtype = torch.float32,
    subject: str = "inputs",
    stored: bool = False,
) -> Tensor:
    """Turn inputs (n, ...) into a tensor: floats and booleans to dtype, integers to int64 tokens.

    stored: keep the type, a transform is going to convert. Shares memory with the argument where no
    conversion is needed. Raises DataError, which begins with `subject`, for uint8 images without a
    transform and for anything not a number.

    >>> as_inputs(np.zeros((2, 3))).dtype, as_inputs([[1, 2]]).dtype
    (torch.float32, torch.int64)
    """
    tensor = _as_tensor(value, subject)
    if stored:
        return tensor
    if tensor.dtype == torch.uint8:
        raise DataError(
            f"{subject} have type uint8, as images do; divide them by 255 to get float32, give "
            "transform=Images(...) (or turn tokens into int64)"
        )
    if tensor.is_floating_point() or tensor.dtype == torch.bool:
        return tensor.to(check_dtype(dtype))
    return tensor.to(torch.int64)


def one_input(inputs: Any, targets: Any, subject: str = "inputs") -> None:
    """Raise DataError for several inputs per sample: a dictionary of arrays, or a tuple or list of
    other arrays than one per sample.
    """
    if isinstance(inputs, Mapping):
        received = f"a dictionary of {', '.join(map(str, inputs))}"
    elif isinstance(inputs, tuple | list) and hasattr(targets, "__len__"):
        sizes = {len(v) for v in inputs if getattr(v, "ndim", 0) > 0}
        if sizes != {len(targets)} or len(inputs) == len(targets):
            return
        received = f"{len(inputs)} arrays of {len(targets)} samples"
    else:
        return
    raise DataError(f"{subject} are {received}, and a model gets one array: {ONE_ARRAY}")


def as_targets(value: Any, dtype: torch.dtype = torch.float32, subject: str = "targets") -> Tensor:
    """Turn targets into a tensor: integers and booleans to int64 labels, floats to dtype.

    Raises DataError, which begins with `subject`, for anything that is not a number.

    >>> as_targets(np.array([0, 1], dtype=np.uint8)).dtype, as_targets([0.5]).dtype
    (torch.int64, torch.float32)
    """
    tensor = _as_tensor(value, subject)
    if tensor.is_floating_point():
        return tensor.to(check_dtype(dtype))
    return tensor.to(torch.int64)


def _as_tensor(value: Any, subject: str) -> Tensor:
    tensor = value.detach() if isinstance(value, Tensor) else _from_numpy(value, subject)
    if tensor.is_complex():
        raise DataError(f"{subject} are complex numbers; give real numbers")
    if tensor.ndim == 0:
        raise DataError(
            f"{subject} are a single number; the first dimension must count the samples"
        )
    return tensor


def _from_numpy(value: Any, subject: str) -> Tensor:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise DataError(f"{subject} are not one array with equal rows: {error}") from error
    if array.dtype.kind not in "fiubc":
        raise DataError(f"{subject} have type {array.dtype}; give numbers")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.ndim:
        array = np.ascontiguousarray(array)
    # torch warns of read-only arrays, because a tensor has no way to be read-only
    return torch.from_numpy(array if array.flags.writeable else array.copy())
