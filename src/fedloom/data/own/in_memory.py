"""Your own arrays as a federation: lists, numpy arrays, tensors, and torch Datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from fedloom.data.client_indices import Partition, Ragged
from fedloom.data.clients import Unseen
from fedloom.data.dataset import Arrays, Samples
from fedloom.data.federated import FederatedData
from fedloom.data.own.columns import warn_of_look_alikes
from fedloom.data.pictures import as_array
from fedloom.data.transforms import Transform, check_dtype
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


def _refuse_loader(value: Any, subject: str) -> None:
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
    _refuse_loader(inputs, "the data set")
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
    _refuse_loader(pair, subject)
    try:
        inputs, targets = pair
    except (TypeError, ValueError) as error:
        raise DataError(f"{subject} is not a pair (inputs, targets): {error}") from error
    _refuse_several(inputs, targets, f"{subject}: inputs")
    rows = _as_tensor(inputs, f"{subject}: inputs")
    if transform is None:
        if rows.dtype == torch.uint8:
            raise DataError(
                f"{subject}: inputs have type uint8, as images do; divide them by 255 to get "
                "float32, give transform=Images(...) (or turn tokens into int64)"
            )
        rows = _converted(rows.to(dtype) if rows.dtype == torch.bool else rows, dtype)
    labels = _converted(_as_tensor(targets, f"{subject}: targets"), dtype)
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


def _refuse_several(inputs: Any, targets: Any, subject: str) -> None:
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


def _converted(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Floats as dtype, other numbers as int64: labels or tokens."""
    return tensor.to(check_dtype(dtype) if tensor.is_floating_point() else torch.int64)


def _as_tensor(value: Any, subject: str) -> Tensor:
    """Numbers (n, ...), which share memory with the argument where they can. Raises DataError."""
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


_TWICE = 5  # samples of a Dataset that are read twice: five flips are alike once in 32 times


def from_datasets(
    datasets: Sequence[Any] | Mapping[str, Any],
    test: Any = None,
    client_tests: Sequence[Any] | Mapping[str, Any] | None = None,
    name: str = "yours",
    class_names: Sequence[str] = (),
    transform: Transform | None = None,
) -> FederatedData:
    """Make a federation of one torch Dataset per client: anything with len() and [i] that gives
    (inputs, target). {name: Dataset} gives the clients names.

    Every sample is read once, into memory, so no Dataset may augment at random: for that give
    transform=Images(...), which takes uint8 or pillow pictures. test: a Dataset for all;
    client_tests: one per client. Datasets that list the names of their classes, as torchvision's do
    (`classes`), are joined by these names, in the order of class_names or of the first Dataset.
    Raises DataError naming the client and the sample where a Dataset raises, samples differ in
    shape, or the same sample differs when it is read again.

    >>> one = [(torch.zeros(2), 0), (torch.ones(2), 1)]
    >>> from_datasets([one, one[:1]]).sizes.tolist()
    [2, 1]
    """
    stored = transform is not None

    def read(every: Any, role: str) -> dict[str, _Samples]:
        return {n: _samples(each, f"{role} {n}", stored) for n, each in _by_name(every).items()}

    train, tests = read(datasets, "client"), read(client_tests or (), "client_tests")
    common = [] if test is None else [_samples(test, "test", stored)]
    names = _joined_classes([*train.values(), *common, *tests.values()], tuple(class_names))

    def pairs(every: Any, parts: Mapping[str, _Samples]) -> Any:
        relabelled = {name: part.relabelled(names) for name, part in parts.items()}
        return relabelled if isinstance(every, Mapping) else [*relabelled.values()]

    return from_clients(
        pairs(datasets, train),
        common[0].relabelled(names) if common else None,
        None if client_tests is None else pairs(client_tests, tests),
        name,
        class_names or names,
        transform=transform,
    )


class _Samples(NamedTuple):
    """The samples of a Dataset, and the names of its classes, if it lists them."""

    where: str
    inputs: Any
    targets: Any
    classes: tuple[str, ...]

    def relabelled(self, names: Sequence[str]) -> tuple[Any, Any]:
        """Inputs and targets, with the classes numbered as in names."""
        if not self.classes or self.classes == tuple(names[: len(self.classes)]):
            return self.inputs, self.targets
        return self.inputs, torch.tensor([*map(names.index, self.classes)])[self.targets]


def _joined_classes(parts: Sequence[_Samples], classes: tuple[str, ...]) -> tuple[str, ...]:
    """The classes of all Datasets in one order. Raises DataError where some have other classes than
    the rest, and nothing says by what name to join them.
    """
    listed_names = dict.fromkeys(name for part in parts for name in part.classes)
    names = classes if listed_names.keys() <= {*classes} else tuple(listed_names)
    with_classes = [part for part in parts if part.classes]
    others = [part for part in parts if part.classes != names[: len(part.classes)]]
    without = next((part for part in parts if not part.classes and len(part.targets)), None)
    if others and (without is not None or (classes and names != classes)):
        why = f"{without.where} lists none" if without else f"class_names are {', '.join(classes)}"
        first = next((part for part in with_classes if part is not others[0]), with_classes[0])
        raise DataError(
            f"{others[0].where} has the classes {', '.join(others[0].classes)}, "
            f"{first.where} {', '.join(first.classes)}, and {why}; number the classes of all alike"
        )
    if not classes:
        warn_of_look_alikes("classes of the Datasets", names)
    return names


def _samples(dataset: Any, where: str, stored: bool) -> _Samples:
    _refuse_loader(dataset, where)
    samples: list[tuple[Tensor, Tensor]] = []
    try:
        count = len(dataset)
    except TypeError as error:
        raise DataError(
            f"{where}: {type(dataset).__name__} has no len(); an iterable Dataset must be read "
            "into a list first"
        ) from error
    for i in range(count):
        sample = _sample(dataset, i, where, stored)
        again = _sample(dataset, i, where, stored) if i < _TWICE else sample
        pairs = zip(sample, again, strict=True)
        if not all(np.array_equal(a, b, equal_nan=a.is_floating_point()) for a, b in pairs):
            raise DataError(
                f"{where}, sample {i} is another one when it is read twice: the Dataset is random, "
                "and each sample is read once, so an augmentation would be the same in all rounds; "
                "take it out, and give transform=Images(mean, std, crop=4, flip=True)"
            )
        samples.append(sample)
        for kind, one, first in zip(("inputs", "target"), sample, samples[0], strict=True):
            if one.shape != first.shape:
                raise DataError(
                    f"{where}, sample {i}: its {kind} have shape {tuple(one.shape)}, those of "
                    f"sample 0 {tuple(first.shape)}; bring all to one shape"
                )
    if not samples:
        return _Samples(where, [], [], ())
    inputs, labels = (torch.stack(arrays) for arrays in zip(*samples, strict=True))
    return _Samples(where, inputs, labels, _classes(dataset, labels))


def _sample(dataset: Any, i: int, where: str, stored: bool) -> tuple[Tensor, Tensor]:
    try:
        x, y = dataset[i]
        if hasattr(x, "convert"):  # a pillow picture; without a transform as torchvision makes it
            pixels = torch.from_numpy(as_array(x, None, "the picture", None).copy())
            x = pixels if stored else pixels.float() / 255
        return torch.as_tensor(x), torch.as_tensor(y)
    except DataError as error:
        raise DataError(f"{where}, sample {i}: {error}") from error
    except Exception as error:  # the user's own code
        raise DataError(
            f"{where}, sample {i}: {type(dataset).__name__} raised {type(error).__name__}: "
            f"{error}; a sample must be a pair of inputs and target, each one array of numbers "
            f"({ONE_ARRAY})"
        ) from error


def _classes(dataset: Any, labels: Tensor) -> tuple[str, ...]:
    """The names that a Dataset, or that of which it is a Subset, lists for its labels."""
    while hasattr(dataset, "dataset"):
        dataset = dataset.dataset
    names = getattr(dataset, "classes", None)
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return ()
    are_labels = not labels.is_floating_point() and labels.ndim == 1
    if not are_labels or getattr(dataset, "target_transform", None) is not None:
        return ()
    inside = bool((labels >= 0).all()) and int(labels.max()) < len(names)
    return tuple(names) if inside else ()
