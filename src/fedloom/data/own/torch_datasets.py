"""torch Datasets, one per client, read into memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedloom.data.federated import FederatedData
from fedloom.data.own.columns import warn_of_look_alikes
from fedloom.data.own.in_memory import ONE_ARRAY, from_clients, refuse_loader
from fedloom.data.pictures import as_array
from fedloom.data.transforms import Transform
from fedloom.errors import DataError

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
    train = _read(datasets, "client", stored)
    tests = {} if test is None else {"test": _samples(test, "test", stored)}
    client_samples = {} if client_tests is None else _read(client_tests, "client_tests", stored)
    parts = [*train.values(), *tests.values(), *client_samples.values()]
    names = _joined_classes(parts, tuple(class_names))
    pairs, test_pairs = _like(datasets, train, names), _like(client_tests, client_samples, names)
    common = tests["test"].relabelled(names) if tests else None
    return from_clients(pairs, common, test_pairs, name, class_names or names, transform=transform)


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


def _like(datasets: Any, parts: Mapping[Any, _Samples], names: Sequence[str]) -> Any:
    """Pairs by client, or in a list, as the Datasets were given; None for none."""
    if datasets is None:
        return None
    pairs = {client: part.relabelled(names) for client, part in parts.items()}
    return pairs if isinstance(datasets, Mapping) else [*pairs.values()]


def _read(datasets: Any, role: str, stored: bool) -> dict[Any, _Samples]:
    """The samples of every Dataset by its name or number."""
    every = datasets.items() if isinstance(datasets, Mapping) else enumerate(datasets)
    return {client: _samples(dataset, f"{role} {client}", stored) for client, dataset in every}


def _samples(dataset: Any, where: str, stored: bool) -> _Samples:
    refuse_loader(dataset, where)
    inputs: list[Tensor] = []
    targets: list[Tensor] = []
    try:
        count = len(dataset)
    except TypeError as error:
        raise DataError(
            f"{where}: {type(dataset).__name__} has no len(); an iterable Dataset must be read "
            "into a list first"
        ) from error
    for i in range(count):
        x, y = _sample(dataset, i, where, stored)
        if i < _TWICE and not all(map(_equal, (x, y), _sample(dataset, i, where, stored))):
            raise DataError(
                f"{where}, sample {i} is another one when it is read twice: the Dataset is random, "
                "and each sample is read once, so an augmentation would be the same in all rounds; "
                "take it out, and give transform=Images(mean, std, crop=4, flip=True)"
            )
        for kind, one, others in (("inputs", x, inputs), ("target", y, targets)):
            if others and one.shape != others[0].shape:
                raise DataError(
                    f"{where}, sample {i}: its {kind} have shape {tuple(one.shape)}, those of "
                    f"sample 0 {tuple(others[0].shape)}; bring all to one shape"
                )
            others.append(one)
    if not inputs:
        return _Samples(where, [], [], ())
    labels = torch.stack(targets)
    return _Samples(where, torch.stack(inputs), labels, _classes(dataset, labels))


def _sample(dataset: Any, i: int, where: str, stored: bool) -> tuple[Tensor, Tensor]:
    try:
        x, y = dataset[i]
        return torch.as_tensor(_plain(x, stored)), torch.as_tensor(y)
    except DataError as error:
        raise DataError(f"{where}, sample {i}: {error}") from error
    except Exception as error:  # the user's own code
        raise DataError(
            f"{where}, sample {i}: {type(dataset).__name__} raised {type(error).__name__}: "
            f"{error}; a sample must be a pair of inputs and target, each one array of numbers "
            f"({ONE_ARRAY})"
        ) from error


def _plain(value: Any, stored: bool) -> Any:
    """A pillow picture as an array (C, H, W): uint8 as stored for a transform, or the floats in
    [0, 1] that torchvision would make.
    """
    if not hasattr(value, "convert"):
        return value
    pixels = torch.from_numpy(as_array(value, None, "the picture", None).copy())
    return pixels if stored else pixels.float() / 255


def _equal(one: Tensor, other: Tensor) -> bool:
    return np.array_equal(one.numpy(), other.numpy(), equal_nan=one.is_floating_point())


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
